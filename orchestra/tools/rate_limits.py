"""Limits of one provider: calls at once and requests a minute, shared by all of its models."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import Field

from orchestra.types import Record

T = TypeVar("T")


class ProviderLimits(Record):
    """How a provider's models are asked; the catalogue's `providers`, by the first part of a price key."""

    concurrency: int = Field(default=16, gt=0)
    """Calls at once, in one process."""
    requests_per_minute: int | None = Field(default=None, gt=0)
    attempts: int = Field(default=3, gt=0)
    """Of one call, the first included."""
    failures: int = Field(default=5, gt=0)
    """Failed calls of a model in a row after which it is left alone…"""
    open_s: float = Field(default=30.0, gt=0)
    """…for so many seconds."""


class PerLoop(Generic[T]):
    """A thing that belongs to the event loop that runs: made again when another one does."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = loop, self._make()
        return self._made[1]

    def pop(self) -> T | None:
        """Forget it."""
        made, self._made = self._made, None
        return None if made is None else made[1]


class RateLimiter:
    """Keeps the calls to one provider within its limits."""

    def __init__(self, limits: ProviderLimits | None = None) -> None:
        self.limits = limits or ProviderLimits()
        self._places = PerLoop(lambda: asyncio.Semaphore(self.limits.concurrency))
        self._rate: PerLoop[Any] = PerLoop(self._limiter)

    def place(self) -> asyncio.Semaphore:
        """One of the calls at once: `async with provider.place():`."""
        return self._places.get()

    async def pace(self) -> None:
        """Wait until one more request is allowed."""
        if self.limits.requests_per_minute is not None:
            await self._rate.get().acquire()

    def _limiter(self) -> Any:
        from aiolimiter import AsyncLimiter

        assert self.limits.requests_per_minute is not None
        return AsyncLimiter(self.limits.requests_per_minute, 60)
