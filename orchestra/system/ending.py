"""How a command says what ended it: in one line, and for a bug after its traceback, without secrets."""

import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra.errors import EXIT_ERROR, OrchestraError, without_secrets
from orchestra.system.storage import storage_named
from orchestra.text import one_line, plain

EXIT_UNREAD = 1
"""Exit code where nobody reads on, as after `| head`: click ends a command with the same one."""


@contextmanager
def told(root: Path | None = None) -> Iterator[None]:
    """Ends the process: with one line and exit code 2 for an `OrchestraError`, with `bug`'s and 1 for anything else.

    Where the reader of the output is gone, it ends without a word.
    """
    try:
        with storage_named(root):
            yield
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _unread():
            # Python flushes at the end, which would fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_UNREAD)
        print_traceback()
        print(f"error: {bug(error)}", file=sys.stderr)
        sys.exit(1)


def _unread() -> bool:
    """Whether stdout is a pipe that nobody reads any more. A socket's broken pipe is a failure like any other."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def bug(error: Exception) -> str:
    """One line for an error that nobody foresaw."""
    return one_line(without_secrets(f"{type(error).__name__}: {error}"))


def print_traceback() -> None:
    """Print the traceback of the error being handled to stderr."""
    print(plain(without_secrets(traceback.format_exc())), end="", file=sys.stderr)
