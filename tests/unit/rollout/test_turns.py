"""Turns: together where one batch computes them, at once where not; each episode is counted exactly once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestra.rollout.turns import Turns


class World:
    """Episodes of given numbers of turns, each with a tool that takes so many ticks."""

    def __init__(
        self, lengths: Sequence[int], ticks: Sequence[int], *, together: bool, fails: int | None = None
    ) -> None:
        self.batches: list[list[int]] = []
        self.lengths, self.ticks, self.fails = lengths, ticks, fails
        self.done = [0] * len(lengths)
        self.turns: Turns[str] = Turns(self.batch, len(lengths), together=together)

    async def batch(self, numbers: Sequence[int], allowed: Sequence[int]) -> list[str]:
        self.batches.append(list(numbers))
        await asyncio.sleep(0)
        return [f"{number}/{most}" for number, most in zip(numbers, allowed, strict=True)]

    async def episode(self, number: int) -> None:
        failure = None
        try:
            for turn in range(self.lengths[number]):
                assert await self.turns.next(number, turn) == f"{number}/{turn}"
                for _ in range(self.ticks[number]):
                    await asyncio.sleep(0)
                self.done[number] += 1
                if number == self.fails:
                    raise RuntimeError("a tool broke")
        except BaseException as error:
            failure = error
            raise
        finally:
            self.turns.leave(failure)

    def run(self) -> list[Any]:
        async def every() -> list[Any]:
            found = await asyncio.gather(*map(self.episode, range(len(self.lengths))), return_exceptions=True)
            await self.turns.close()
            return found

        return asyncio.run(asyncio.wait_for(every(), 10))


def test_a_batch_has_every_episode_that_goes_on_in_order_however_slow_their_tools_are() -> None:
    for ticks in ([0, 0, 0], [9, 0, 4], [0, 30, 1]):
        world = World([3, 1, 2], ticks, together=True)
        assert world.run() == [None] * 3
        assert world.batches == [[0, 1, 2], [0, 2], [0]]


def test_by_itself_an_episode_waits_for_nobody() -> None:
    world = World([3, 1], [0, 1000], together=False)
    assert world.run() == [None, None]
    assert sorted(world.batches) == [[0], [0], [0], [1]]
    assert world.done == [3, 1]


@pytest.mark.parametrize("together", [True, False])
def test_after_a_failure_no_turn_begins_and_those_under_way_come_to_their_end(together: bool) -> None:
    world = World([5, 5, 5], [0, 40, 40], together=together, fails=0)
    found = world.run()
    assert {str(error) for error in found} == {"a tool broke"}
    assert world.done[0] == 1
    assert all(done in (0, 1) for done in world.done)
    assert sum(map(len, world.batches)) == 3


def test_those_that_wait_for_a_batch_when_another_fails_get_none() -> None:
    world = World([5, 5, 5], [40, 0, 0], together=True, fails=0)
    assert [str(error) for error in world.run()] == ["a tool broke"] * 3
    assert world.batches == [[0, 1, 2]] and world.done == [1, 1, 1]


def test_a_batch_that_fails_fails_its_episodes() -> None:
    world = World([2, 2], [0, 0], together=True)

    async def broken(numbers: Sequence[int], allowed: Sequence[int]) -> list[str]:
        raise OSError("no server")

    world.turns._batch = broken
    assert [str(error) for error in world.run()] == ["no server", "no server"]


def test_nothing_is_left_running_after_a_cancellation() -> None:
    async def body() -> bool:
        stuck = asyncio.Event()

        async def never(numbers: Sequence[int], allowed: Sequence[int]) -> list[str]:
            await stuck.wait()
            return []

        turns: Turns[str] = Turns(never, 1, together=True)

        async def episode() -> None:
            try:
                await turns.next(0, 1)
            finally:
                turns.leave()
                await turns.close()

        task = asyncio.ensure_future(episode())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return asyncio.all_tasks() == {asyncio.current_task()}

    assert asyncio.run(body())


@pytest.mark.parametrize("together", [True, False])
def test_a_batch_whose_own_task_is_cancelled_leaves_nobody_waiting(together: bool) -> None:
    world = World([2, 2], [0, 0], together=together)

    async def closed(numbers: Sequence[int], allowed: Sequence[int]) -> list[str]:
        asked = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(asked.cancel)
        await asked
        return []

    world.turns._batch = closed
    assert [type(error) for error in world.run()] == [asyncio.CancelledError] * 2


def test_a_batch_of_too_few_results_leaves_nobody_waiting() -> None:
    world = World([2, 2], [0, 0], together=True)

    async def short(numbers: Sequence[int], allowed: Sequence[int]) -> list[str]:
        return []

    world.turns._batch = short
    assert [type(error) for error in world.run()] == [ValueError] * 2
