"""How a benchmark ends that was told to: what it started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from orchestra.errors import ServiceError
from orchestra.system.processes import LOCALHOST, descendants, kill_tree, spawn, wait_until
from orchestra.system.servers import answers

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_TIMEOUT_S = 240.0


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


@contextlib.contextmanager
def answering(
    command: Sequence[str], port: int, where: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """That process, once it answers at the port; ended with the block. `where` is named if it does not start."""
    process = spawn(command, cwd=cwd, env=env)
    page = f"http://{LOCALHOST}:{port}/health"
    try:
        if not wait_until(lambda: answers(page), START_TIMEOUT_S, gone=lambda: process.poll() is not None):
            raise ServiceError("the process does not answer", where=where, fix="see above")
        yield process
    finally:
        kill_tree(process.pid)
