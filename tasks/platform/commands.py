"""How a command of `tasks` that is no stage ends."""

import sys
from collections.abc import Callable
from pathlib import Path

from orchestra.errors import EXIT_ERROR, OrchestraError
from orchestra.system.storage import storage_named


def run_command(main: Callable[[list[str]], None]) -> None:
    """Run a command on its arguments: an `OrchestraError` is one line and exit code 2."""
    try:
        with storage_named(Path.cwd()):
            main(sys.argv[1:])
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
