"""How a command says what ended it: in one line, and for a bug after its traceback, without secrets."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra.errors import EXIT_ERROR, OrchestraError, without_secrets
from orchestra.system.storage import storage_named
from orchestra.text import one_line, plain


@contextmanager
def told(root: Path | None = None) -> Iterator[None]:
    """Ends the process: with one line and exit code 2 for an `OrchestraError`, with `bug`'s and 1 for anything else."""
    try:
        with storage_named(root):
            yield
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except Exception as error:
        print_traceback()
        print(f"error: {bug(error)}", file=sys.stderr)
        sys.exit(1)


def bug(error: Exception) -> str:
    """One line for an error that nobody foresaw."""
    return one_line(without_secrets(f"{type(error).__name__}: {error}"))


def print_traceback() -> None:
    """Print the traceback of the error being handled to stderr."""
    print(plain(without_secrets(traceback.format_exc())), end="", file=sys.stderr)
