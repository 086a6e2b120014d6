"""Limits of one provider, shared by all of its models: calls at once, requests a minute, the output limit's name."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Generic, Literal, TypeVar

from pydantic import Field

from orchestra.types import Record

T = TypeVar("T")

MINUTE_S = 60.0
LimitParameter = Literal["max_completion_tokens", "max_tokens"]
"""Names of the output limit in requests."""


class ProviderLimits(Record):
    """How a provider's models are asked; the catalogue's `providers`, by the first part of a price key."""

    concurrency: int = Field(default=16, gt=0)
    """Calls at once, in one process."""
    requests_per_minute: int | None = Field(default=None, gt=0)
    limit_parameter: LimitParameter = "max_completion_tokens"
    """How a request names the output limit. A provider may ignore a name that it does not know."""
    attempts: int = Field(default=3, gt=0)
    """Of one call, the first included."""
    failures: int = Field(default=5, gt=0)
    """Failed calls of a model in a row after which it is left alone…"""
    open_s: float = Field(default=30.0, gt=0)
    """…for so many seconds. Calls wait for it within their deadlines, but not where a fallback can answer."""


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
    """Keeps the calls to one provider within its limits, whatever event loops and threads make them."""

    def __init__(self, limits: ProviderLimits | None = None) -> None:
        self.limits = limits or ProviderLimits()
        self._lock = threading.Lock()
        self._free = self.limits.concurrency
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._full_until = 0.0
        """When the requests so far no longer count: each counts for its share of a minute, one after the other."""

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the calls at once: `async with provider.place():`."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def pace(self) -> None:
        """Wait until one more request is allowed: a minute's requests may come at once, then one by one."""
        if self.limits.requests_per_minute is None:
            return
        apart_s = MINUTE_S / self.limits.requests_per_minute
        while True:
            with self._lock:
                now = time.monotonic()
                full_until = max(self._full_until, now) + apart_s
                wait_s = full_until - now - MINUTE_S
                if wait_s <= 0:
                    self._full_until = full_until
                    return
            await asyncio.sleep(wait_s)

    async def _enter(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
        try:
            await mine
        except BaseException:
            with self._lock:
                given = mine not in self._waiting
                if not given:
                    self._waiting.remove(mine)
            if given:
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the place to the next that waits, in its own loop."""
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                try:
                    waiter.get_loop().call_soon_threadsafe(wake, waiter)
                except RuntimeError:  # Its loop is closed.
                    continue
                return
            self._free += 1


def wake(waiter: asyncio.Future[None]) -> None:
    """End the wait, unless it was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


def limiter_of(price: str, providers: Mapping[str, ProviderLimits]) -> RateLimiter:
    """The one of this process for the provider of a row of the price book, such as openai/o3-mini."""
    vendor = price.partition("/")[0]
    return limiter(vendor, providers.get(vendor, ProviderLimits()))


@cache
def limiter(vendor: str, limits: ProviderLimits) -> RateLimiter:
    """The one of this process for a provider under these limits, whatever toolkits ask it."""
    return RateLimiter(limits)
