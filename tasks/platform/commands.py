"""How a command of `tasks` that is no stage ends."""

import sys
from collections.abc import Callable
from pathlib import Path

from orchestra.system.ending import told


def run_command(main: Callable[[list[str]], None]) -> None:
    """Run a command on its arguments: an `OrchestraError` is one line and exit code 2."""
    with told(Path.cwd()):
        main(sys.argv[1:])
