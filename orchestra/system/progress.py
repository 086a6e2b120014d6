"""What a person is told while something takes long."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestra.system.processes import SAY_EVERY_S


@contextmanager
def while_waiting(doing: str | Callable[[], str]) -> Iterator[None]:
    """While the block runs, a line on stderr every few seconds that says for how long."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(SAY_EVERY_S):
            now = doing if isinstance(doing, str) else doing()
            print(f"{now} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()
