"""The command `orchestra`."""

from orchestra.system.ending import told
from orchestra.system.environment import quiet


def main() -> None:
    """The console script: an `OrchestraError` is one line and exit code 2. Anything else is a bug, in one line too,
    after a traceback without secrets."""
    with told():
        quiet()
        # Takes a while, in which somebody may press Ctrl-C.
        from orchestra.cli.app import app

        app()


if __name__ == "__main__":
    main()
