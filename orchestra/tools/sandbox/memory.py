"""What the processes of a program hold together, looked at by a thread of its own: to look may take the kernel long."""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

EVERY_S = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Calls `end` once, from its thread, when `over` says that a program holds too much."""

    def __init__(self, over: Callable[[], bool], end: Callable[[], object]) -> None:
        self.passed = False
        self._too_much, self._end = over, end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def join(self) -> None:
        """Stop, and wait for a look that is under way."""
        self.stop()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            if self._too_much():
                self.passed = True
                self._end()
                return


def held_more(pid: int, most: int) -> bool:
    """Whether a process and its descendants hold more than `most` bytes.

    Resident pages are quick to ask for, but count what processes share once for each. The exact part of each process is
    asked for only in doubt: that takes time in proportion to its mappings.
    """
    members = list(_tree(pid))
    resident = sum(_resident(member) for member in members)
    if resident <= most or resident > 2 * most:
        return resident > most
    return sum(_proportional(member) for member in members) > most


def _tree(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text(encoding="ascii").split():
                yield from _tree(int(child))


def _resident(pid: int) -> int:
    """Bytes that a process holds, shared ones included."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    return 0


def _proportional(pid: int) -> int:
    """Bytes that a process holds; of those it shares, its part."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"), re.M)
        return int(found[1]) << 10 if found is not None else 0
    return 0
