"""How a command says what ended it: in one line, and for a bug after its traceback, without secrets."""

import os
import runpy
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from orchestra.errors import EXIT_ERROR, OrchestraError, without_secrets
from orchestra.system.environment import quiet
from orchestra.text import one_line, plain

EXIT_UNREAD = 1
"""Exit code where nobody reads on, as after `| head`: click ends a command with the same one."""
EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, that of a shell."""


@contextmanager
def told(root: Path | None = None) -> Iterator[None]:
    """Ends the process: with one line and exit code 2 for an `OrchestraError`, 130 after Ctrl-C or `kill`, with `bug`'s
    line and 1 for anything else.

    Where the reader of the output is gone, it ends without a word.
    """
    try:
        # Slow: it knows the settings of the store.
        from orchestra.system.storage import storage_named

        with _killed_as_stopped(), storage_named(root):
            yield
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        _stopped()
    except Exception as error:
        # pydantic, which was making a model of what it imports, raises its own error in place of Ctrl-C's.
        if type(error).__name__ == "SchemaError" and KeyboardInterrupt.__name__ in str(error):
            _stopped()
        if isinstance(error, BrokenPipeError) and _unread():
            # Python flushes at the end, which would fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_UNREAD)
        print_traceback()
        print(f"error: {bug(error)}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _killed_as_stopped() -> Iterator[None]:
    """While the block lasts, SIGTERM is Ctrl-C, so that what would be taken back after that one is taken back."""
    free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def interrupt(number: int, _frame: object) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt
        # A child that was forked has nothing to take back.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stopped() -> NoReturn:
    print("stopped", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


def _unread() -> bool:
    """Whether stdout is a pipe that nobody reads any more. A socket's broken pipe is a failure like any other."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def bug(error: Exception) -> str:
    """One line for an error that nobody foresaw."""
    said = " — ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return one_line(without_secrets(said))


def print_traceback() -> None:
    """Print the traceback of the error being handled to stderr."""
    print(plain(without_secrets(traceback.format_exc())), end="", file=sys.stderr)


def hand_over(*arguments: str) -> NoReturn:
    """Continue as `python -m ARGUMENTS` in this process, `told` from its first import on; until then Ctrl-C waits."""
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, "-m", __name__, *arguments])


def _go_on() -> None:
    """What `hand_over` began."""
    with told(Path.cwd()):
        quiet()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _go_on()
