"""How a benchmark ends that was told to: what it started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from orchestra.system.processes import descendants, kill_tree

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def cleaned_up() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP raise `SystemExit` in the block, so that what it has to close is closed.

    Further ones are ignored from then on: they would break the closing off. What the process still has for children
    after the block is ended, too. Outside of the main thread signals stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    own, leaving = set(descendants(os.getpid())), False

    def leave(number: int, _: FrameType | None) -> None:
        nonlocal leaving
        if not leaving:  # Two may have come before the first was handled.
            leaving = True
            for one in SIGNALS:
                signal.signal(one, signal.SIG_IGN)
            raise SystemExit(128 + number)

    for one in SIGNALS:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        for child in descendants(os.getpid()):
            if child not in own:
                kill_tree(child)
        for one, handler in before.items():
            signal.signal(one, handler)
