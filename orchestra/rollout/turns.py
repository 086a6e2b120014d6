"""When an episode may write its next turn: at once, or together with the others where one batch computes them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Batch = Callable[[Sequence[int], Sequence[int]], Awaitable[Sequence[T]]]
"""From the numbers of episodes, in rising order, and the most tokens of each turn to one result for each."""


@dataclass
class _Asked(Generic[T]):
    episode: int
    most: int
    answer: asyncio.Future[T]


async def every(tasks: Iterable[Awaitable[T]]) -> list[T]:
    """Each to its end, also when one fails: what is under way is paid for and must be booked."""
    given = list(tasks)
    if len(given) == 1:
        return [await given[0]]  # A task of its own would be one turn of the event loop more.
    futures = [asyncio.ensure_future(task) for task in given]
    await asyncio.gather(*futures, return_exceptions=True)
    return [future.result() for future in futures]


class Turns(Generic[T]):
    """Of `episodes` that run as tasks of their own, each of which asks for a turn at a time and leaves at its end.

    Where a policy computes a batch in one piece, a turn begins when every episode that has not left waits for one, so
    that a batch is as large as can be and does not hang on how fast a tool was. Otherwise it begins at once. After a
    failure no turn begins, and those under way come to their end.
    """

    def __init__(self, batch: Batch[T], episodes: int, *, together: bool) -> None:
        self._batch, self._running, self._together = batch, episodes, together
        self._asked: list[_Asked[T]] = []
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def next(self, episode: int, most: int) -> T:
        """The episode's next turn, of at most so many tokens; raises what made any episode fail."""
        if self._failure is not None:
            raise self._failure
        if not self._together:
            alone = await self._batch([episode], [most])
            return alone[0]
        asked = _Asked(episode, most, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self._begin()
        answer: T = await asked.answer
        return answer

    def leave(self, failure: BaseException | None = None) -> None:
        """An episode has ended, maybe by a failure."""
        self._running -= 1
        self._failure = self._failure or failure
        if self._failure is not None:
            for asked in self._take():
                asked.answer.set_exception(self._failure)
        self._begin()

    async def close(self) -> None:
        """End the batch under way, if there is one: nobody waits for it any more."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take(self) -> list[_Asked[T]]:
        taken, self._asked = [one for one in self._asked if not one.answer.done()], []
        return sorted(taken, key=lambda one: one.episode)

    def _begin(self) -> None:
        if self._asked and len(self._asked) == self._running:
            self._task = asyncio.ensure_future(self._run(self._take()))

    async def _run(self, asked: Sequence[_Asked[T]]) -> None:
        try:
            found = await self._batch([one.episode for one in asked], [one.most for one in asked])
            for one, result in zip(asked, found, strict=True):
                if not one.answer.done():
                    one.answer.set_result(result)
        except BaseException as error:
            # A cancelled batch too: those who wait would wait for ever.
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
