"""Clocks and memory that count alike. It loads nothing else: some benchmarks measure their own process's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """Seconds of one measured call."""

    wall_s: float
    cpu_s: float
    """Of this process, all threads: on a machine that is busy otherwise, the figure to trust."""


def timed(work: Callable[[], T]) -> tuple[T, Spent]:
    """Run `work` and say what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, Spent(time.perf_counter() - wall, time.process_time() - cpu)


def resident(field: str = "VmRSS", pid: int | None = None) -> int:
    """Bytes that the kernel has under `field` (VmRSS: now, VmHWM: the peak) for a process; by default for this one."""
    lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def process_cpu_s(pid: int) -> float:
    """Processor seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """Seconds for which a process's first thread could have run and had no core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
