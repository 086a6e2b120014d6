"""The gateway's places: so many requests at once, so many that wait, and a plain refusal for all others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio

from orchestra.errors import BudgetError
from orchestra.rollout.charges import worst_turn_usd
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.episodes.job import Job
from orchestra.serving.shared.spending import KeyBudget
from orchestra.serving.wire.errors import spent, unavailable
from orchestra.types import Price


class Places:
    """First come, first served."""

    def __init__(self, running: int, waiting: int, wait_s: float) -> None:
        """`wait_s`: seconds that a request may wait for a place."""
        self.most, self.wait_s = running + waiting, wait_s
        self.running = self.waiting = 0
        self._free = asyncio.Semaphore(running)

    @contextlib.asynccontextmanager
    async def place(self, most_s: float | None = None) -> AsyncIterator[None]:
        """A place for the block; raises `ApiError` 503 where too many wait, or this one waits for too long.

        `most_s`: seconds that the caller would wait.
        """
        if self.running + self.waiting >= self.most:
            raise unavailable(f"{self.waiting} requests wait already: try again later", "busy", 5)
        wait_s = self.wait_s if most_s is None else min(most_s, self.wait_s)
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise unavailable(f"no place came free in {wait_s:g} s: try again later", "busy", 5) from None
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()


async def check_first_turn(job: Job, price: Price, budget: KeyBudget | None) -> None:
    """Raises `ApiError` 429 where the key's dollars do not pay for the first turn: a stream has no status later."""
    from orchestra.rollout.loop import RolloutOptions, room

    if budget is None:
        return
    asked = Conversation(job.example, job.prompt)
    options = RolloutOptions(job.limits, price, max_written=job.request.max_written)
    most = min(job.limits.max_turn_tokens, room(asked, options))
    try:
        await budget.check(worst_turn_usd(asked, most, price))
    except BudgetError as error:
        raise spent(error) from None


async def ended(work: asyncio.Task[Any]) -> None:
    """Cancel it, and wait until it has ended: tools that run are told, and end, before a place is free."""
    work.cancel()
    # The server cancels who sends a stream at every step that it waits, until it has ended.
    with anyio.CancelScope(shield=True):
        await asyncio.wait([work])
