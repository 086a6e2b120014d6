"""Clocks that count alike. It loads nothing else: some benchmarks measure their process's memory too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
