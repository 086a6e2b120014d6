"""A limit that the kernel keeps on the memory of a program's processes together: a cgroup, where it can be had."""

import contextlib
import os
import re
import secrets
import time
from functools import cache
from pathlib import Path

from orchestra.system.environment import old_memory_group, unified_group

HALVES_BYTES = 32 << 20
"""Room for the two processes of the sandbox outside, which are in the group too."""
GONE_S = 1.0
"""The longest that ended processes may keep a group."""


OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""A kernel that does not count swap has no such file."""


class MemoryGroup:
    """A group whose processes may hold `most` bytes together.

    When they need more, the kernel ends all of them (cgroup v2) or the largest (v1, where the caller ends the others).
    """

    def __init__(self, parent: Path, most: int, version: int = 2) -> None:
        """Raises `OSError` where the kernel makes no such group."""
        self.version = version
        self._folder = parent / f"orchestra-sandbox-{secrets.token_hex(8)}"
        self._folder.mkdir()
        most += HALVES_BYTES
        if version == 2:
            limits = {"memory.max": most, "memory.swap.max": 0, "memory.oom.group": 1}
        else:
            # The sum with swap can be limited after the other only, and not below it.
            limits = {"memory.limit_in_bytes": most, "memory.memsw.limit_in_bytes": most, "memory.swappiness": 0}
        try:
            for name, value in limits.items():
                file = self._folder / name
                if name not in OPTIONAL or file.exists():
                    file.write_text(f"{value}\n", encoding="ascii")
        except OSError:
            self.remove()
            raise

    @property
    def entry(self) -> str:
        """The file that a process writes 0 to, to be in the group with all that it starts."""
        return str(self._folder / "cgroup.procs")

    @property
    def passed(self) -> bool:
        """Whether a process of it was ended since they needed more."""
        events = self._folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)", events.read_text(encoding="ascii"), re.M)
            return found is not None and found[1] != "0"
        return False

    def remove(self) -> None:
        """Take the group away, once its processes are gone."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._folder.rmdir()
                except OSError:
                    time.sleep(0.01)
                    continue
            return


def memory_group(most: int) -> MemoryGroup | None:
    """A new group; None where this process may make none: then `memory.py` watches."""
    for version, parent in ((2, group_parent()), (1, old_group_parent())):
        if parent is not None:
            with contextlib.suppress(OSError):
                return MemoryGroup(parent, most, version)
    return None


@cache
def group_parent(proc: Path = Path("/proc/self")) -> Path | None:
    """The group below which this process may limit memory: one that it is in, or the one above; None for neither.

    The kernel gives controllers only to groups below one that has no process of its own, so that the one above serves
    where this process is alone in a leaf, as systemd's Delegate=yes with DelegateSubgroup= makes it.
    """
    found = unified_group(proc)
    if found is None:
        return None
    root, here = found
    for folder in (here, here.parent):
        if folder.is_relative_to(root) and _limits_memory(folder):
            return folder
    return None


@cache
def old_group_parent(proc: Path = Path("/proc/self")) -> Path | None:
    """The group of cgroup v1 below which this process may limit memory: its own; None where it may make none.

    There a group with processes may have groups below it.
    """
    folder = old_memory_group(proc)
    if folder is None:
        return None
    files = [folder / name for name in ("memory.limit_in_bytes", "memory.oom_control", "cgroup.procs")]
    return folder if all(os.access(path, os.W_OK) for path in (folder, *files)) else None


def _limits_memory(folder: Path) -> bool:
    """Whether groups below a folder can have the memory controller, and this process may make one."""
    try:
        if "memory" not in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
            return False
        if "memory" not in (folder / "cgroup.subtree_control").read_text(encoding="ascii").split():
            (folder / "cgroup.subtree_control").write_text("+memory\n", encoding="ascii")
        return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    except OSError:
        return False
