"""The command line that starts an isolated interpreter: what it may see, use and call, handed to `jail.py`."""

import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestra.errors import ToolError
from orchestra.tools.sandbox.calls import granted
from orchestra.tools.sandbox.interpreter import this_interpreter
from orchestra.tools.sandbox.jail import PROGRAM_ID, WAIT

HOST_NAME = "sandbox"
DEVICES = ["/dev/null", "/dev/urandom"]


class Isolation(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    """The kernel's own, without bubblewrap: user, mount, process, network, IPC, host name and cgroup namespaces."""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 5.0
    """Wall time."""
    cpu_seconds: int = 4
    memory_bytes: int = 256 << 20
    """Address space of each process."""
    total_memory_bytes: int = 512 << 20
    """What all its processes hold together: a cgroup's limit where there is one, otherwise watched (`memory.py`)."""
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 8 << 20
    scratch_bytes: int = 16 << 20
    scratch_files: int = 256
    output_bytes: int = 4_000
    """Kept of what it prints; one that prints more is ended."""


def command(isolation: Isolation, limits: Limits, status: int, group: str = "") -> list[str]:
    """The command line; `status` is the descriptor on which the jail says how far it is, `group` the file by which it
    enters a cgroup. Raises `ToolError`."""
    interpreter = this_interpreter()
    spec = {
        "status": status,
        "group": group,
        "bubblewrap": [],
        "host_name": HOST_NAME,
        "mount_point": "/mnt" if any(path.startswith("/tmp") for path in interpreter.readable) else "/tmp",
        "readable": interpreter.readable,
        "hidden": interpreter.hidden,
        "devices": DEVICES,
        "scratch_bytes": limits.scratch_bytes,
        "scratch_files": limits.scratch_files,
        "limits": {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_CORE": 1,  # 0 would still hand a core to a program that the machine may have for them
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_RTPRIO": 0,
            "RLIMIT_SIGPENDING": 256,
        },
        "calls": granted(private=False),
        "private_calls": granted(private=True),
        "program": [interpreter.binary, "-I", "-S", "-B", "-X", "utf8", "-c", WAIT],
        "environment": {
            "PATH": os.path.dirname(interpreter.binary),
            "HOME": "/scratch",
            "TMPDIR": "/scratch",
            "LANG": "C.UTF-8",
            **interpreter.environment,
        },
    }
    if isolation is Isolation.BUBBLEWRAP:
        spec["bubblewrap"] = [*_bubblewrap(), "--", *_jail("confine", spec)]
    return _jail("enter", spec)


def _jail(step: str, spec: dict[str, Any]) -> list[str]:
    return [this_interpreter().binary, "-I", "-S", "-B", "-c", f"{_source()}\n\nguarded(lambda: {step}({spec!r}))\n"]


@cache
def _source() -> str:
    return files("orchestra.tools.sandbox").joinpath("jail.py").read_text(encoding="utf-8")


def _bubblewrap() -> list[str]:
    """Bubblewrap and its options. It runs as root of the user namespace that the jail made, or makes another."""
    binary = shutil.which("bwrap")
    if binary is None:
        raise ToolError("bubblewrap is not installed")
    interpreter = this_interpreter()
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        options += ["--unshare-user", "--uid", str(PROGRAM_ID), "--gid", str(PROGRAM_ID), "--cap-add", "CAP_SYS_ADMIN"]
    options += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", HOST_NAME]
    for name, value in interpreter.environment.items():
        options += ["--setenv", name, value]
    # Folders that it makes unasked, only root may enter.
    for folder in sorted(
        {str(parent) for path in (*interpreter.readable, *DEVICES) for parent in Path(path).parents[:-1]}
    ):
        options += ["--dir", folder]
    for path in interpreter.readable:
        options += ["--ro-bind", path, path]
    for path in interpreter.hidden:
        options += ["--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        options += ["--dev-bind", path, path]
    return [binary, *options, "--dir", "/scratch", "--remount-ro", "/", "--chdir", "/"]
