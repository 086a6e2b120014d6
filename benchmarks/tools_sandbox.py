"""How long a call of the sandbox takes for a trivial program: `python -m benchmarks.tools_sandbox`.

Cold: an interpreter is started for the call. Warm: one waits. Back to back: the next call follows at once, so that it
may have to wait for the pool to refill.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median, quantiles

from benchmarks.command import Row, run_benchmark, show
from orchestra.errors import ToolError
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.pool import Pool
from orchestra.tools.sandbox.tool import execute

BAR_MS = 60
CODE = "print(6 * 7)"
CALLS = 40
LIMITS = Limits(seconds=30)


def rows() -> list[Row]:
    """For every isolation that this machine grants."""
    return [row for isolation in Isolation for row in asyncio.run(_measure(isolation))]


async def _measure(isolation: Isolation) -> list[Row]:
    try:
        await execute(isolation, CODE, LIMITS)
    except ToolError as error:
        return [Row(f"sandbox, {isolation}", f"not here: {error.what[:80]}")]
    pool = Pool(isolation, LIMITS, at_once=2)
    try:
        cold = await _times(lambda: execute(isolation, CODE, LIMITS), _at_once)
        await pool.run(CODE)
        warm = await _times(lambda: pool.run(CODE), lambda: _filled(pool))
        closely = await _times(lambda: pool.run(CODE), _at_once)
        await _filled(pool)
        start = time.perf_counter()
        await asyncio.gather(*(pool.run(CODE) for _ in range(2 * CALLS)))
        rate = 2 * CALLS / (time.perf_counter() - start)
    finally:
        pool.close()
    return [
        Row(f"sandbox, {isolation}: a call, cold", _told(cold)),
        Row(f"sandbox, {isolation}: a call, warm", _told(warm), f"p50 ≤ {BAR_MS} ms", median(warm) <= BAR_MS),
        Row(f"sandbox, {isolation}: a call, back to back", _told(closely)),
        Row(f"sandbox, {isolation}: two at once", f"{rate:.0f} calls/s"),
    ]


async def _times(call: Callable[[], Awaitable[object]], before: Callable[[], Awaitable[None]]) -> list[float]:
    """Milliseconds of each of `CALLS` calls."""
    found = []
    for _ in range(CALLS):
        await before()
        start = time.perf_counter()
        await call()
        found.append(1000 * (time.perf_counter() - start))
    return found


async def _at_once() -> None:
    pass


async def _filled(pool: Pool) -> None:
    """Until the pool is full, and its interpreters have had time to start."""
    while pool.waiting < pool.warm:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


def _told(times_ms: list[float]) -> str:
    cuts = quantiles(times_ms, n=20)
    return f"p50 {cuts[9]:.0f} ms, p95 {cuts[18]:.0f} ms"


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
