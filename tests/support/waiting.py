"""Waiting for what other processes and threads do."""

import time
from collections.abc import Callable


def soon(holds: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether it comes to hold in time; a test whose work is slow on a busy machine gives it longer."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
