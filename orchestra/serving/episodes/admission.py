"""The gateway's places: so many requests at once, so many that wait, and a plain refusal for all others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from orchestra.serving.wire.errors import unavailable


class Places:
    """First come, first served."""

    def __init__(self, running: int, waiting: int, wait_s: float) -> None:
        """`wait_s`: seconds that a request may wait for a place."""
        self.limit, self.most_waiting, self.wait_s = running, waiting, wait_s
        self.running = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def place(self, most_s: float | None = None) -> AsyncIterator[None]:
        """A place for the block; raises `ApiError` 503 where too many wait, or this one waits for too long.

        `most_s`: seconds that the caller would wait.
        """
        if self.running >= self.limit or self._queue:
            await self._wait(self.wait_s if most_s is None else min(most_s, self.wait_s))
        else:
            self.running += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, wait_s: float) -> None:
        if len(self._queue) >= self.most_waiting:
            raise unavailable(f"{len(self._queue)} requests wait already: try again later", "busy", 5)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # The place came in the same moment: to the next.
                self._leave()
            else:
                with contextlib.suppress(ValueError):
                    self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise unavailable(f"no place came free in {wait_s:g} s: try again later", "busy", 5) from None
            raise

    def _leave(self) -> None:
        """Hand the place to the first that waits."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
