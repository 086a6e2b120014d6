"""How a command of `tasks` that is no stage ends."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from orchestra.errors import EXIT_ERROR, OrchestraError, without_secrets
from orchestra.system.storage import storage_named
from orchestra.text import one_line, plain


def run_command(main: Callable[[list[str]], None]) -> None:
    """Run a command on its arguments: an `OrchestraError` is one line and exit code 2."""
    try:
        with storage_named(Path.cwd()):
            main(sys.argv[1:])
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except Exception as error:
        print(plain(without_secrets(traceback.format_exc())), end="", file=sys.stderr)
        print(f"error: {one_line(without_secrets(f'{type(error).__name__}: {error}'))}", file=sys.stderr)
        sys.exit(1)
