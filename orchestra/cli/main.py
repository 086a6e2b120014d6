"""The command `orchestra`."""

import sys
from importlib.util import find_spec

NEEDED = ("pydantic", "typer")
"""Packages without which no command works: where one is missing, this is not the environment's Python."""


def main() -> None:
    """The console script: an `OrchestraError` is one line and exit code 2. Anything else is a bug, in one line too,
    after a traceback without secrets."""
    _check_python()
    from orchestra.system.ending import told
    from orchestra.system.environment import quiet

    with told():
        quiet()
        # Takes a while, in which somebody may press Ctrl-C.
        from orchestra.cli.app import app

        app()


def _check_python() -> None:
    """End in one line under a Python that the commands cannot run with, before the first import that would fail."""
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        print(f"error: {sys.executable}: no package {missing} — make setup, then .venv/bin/orchestra", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
