"""The gateway's places: never more at once than there are, first come first served, and none is ever lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.serving.episodes.admission import Places
from orchestra.serving.wire.errors import ApiError

LONG_S = 3600.0


async def turn_over() -> None:
    """Let every task go on as far as it can."""
    for _ in range(6):
        await asyncio.sleep(0)


@settings(max_examples=120)
@given(
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["come", "end", "leave", "both"]), st.integers(0, 9)), max_size=24),
)
def test_places_are_as_a_plain_queue_says(limit: int, waiting: int, steps: list[tuple[str, int]]) -> None:
    """Requests come, end, or are left by their callers: while they wait, run, or are just handed a place (`both`)."""

    async def go() -> None:
        places, inside = Places(limit, waiting, LONG_S), list[int]()
        ends: dict[int, asyncio.Event] = {}

        async def request(name: int) -> None:
            async with places.place():
                inside.append(name)
                try:
                    await ends[name].wait()
                finally:
                    inside.remove(name)

        tasks: dict[int, asyncio.Task[None]] = {}
        running, queue = list[int](), list[int]()

        def gone(name: int) -> None:
            if name in queue:
                queue.remove(name)
            else:
                running.remove(name)
                running.extend(queue[:1])
                del queue[:1]

        for number, (step, place) in enumerate(steps):
            there = [*running, *queue]
            if step == "come":
                ends[number] = asyncio.Event()
                tasks[number] = asyncio.ensure_future(request(number))
                await turn_over()
                if len(running) < limit and not queue:
                    running.append(number)
                elif len(queue) < waiting:
                    queue.append(number)
                else:
                    with pytest.raises(ApiError) as refused:
                        await tasks[number]
                    assert refused.value.status == 503
            elif there:
                name = there[place % len(there)]
                if step == "both" and running and queue:
                    # The first that waits leaves in the moment in which a place is handed to it.
                    first, name = queue[0], running[place % len(running)]
                    ends[name].set()
                    await asyncio.sleep(0)
                    tasks[first].cancel()
                    gone(name)
                    gone(first)
                elif step == "end" and name in running:
                    ends[name].set()
                    gone(name)
                else:
                    tasks[name].cancel()
                    gone(name)
            await turn_over()
            assert sorted(inside) == sorted(running)
            assert (places.running, places.waiting) == (len(running), len(queue))
        for one in tasks.values():
            one.cancel()
        await asyncio.wait(tasks.values()) if tasks else None
        assert (places.running, places.waiting) == (0, 0)

    asyncio.run(go())


@pytest.mark.parametrize(("wait_s", "most_s"), [(0.01, None), (LONG_S, 0.01), (0.01, LONG_S)])
def test_nobody_waits_longer_than_the_gateway_and_the_caller_say(wait_s: float, most_s: float | None) -> None:
    async def go() -> None:
        places = Places(1, 1, wait_s)
        async with places.place():
            with pytest.raises(ApiError, match=r"no place came free in 0\.01 s") as refused:
                async with asyncio.timeout(60), places.place(most_s):
                    pass
            assert refused.value.status == 503 and places.waiting == 0
        assert places.running == 0

    asyncio.run(go())


def test_a_place_that_is_free_is_taken_though_another_was_just_handed_over() -> None:
    async def go() -> list[str]:
        places, order = Places(2, 1, LONG_S), list[str]()
        first, second = places.place(), places.place()
        await first.__aenter__()
        await second.__aenter__()

        async def late(name: str) -> None:
            async with places.place():
                order.append(name)

        waiter = asyncio.ensure_future(late("waited"))
        await turn_over()
        for ended in (first, second):
            await ended.__aexit__(None, None, None)
        await late("came")  # Before the waiter goes on.
        await waiter
        return order

    assert sorted(asyncio.run(go())) == ["came", "waited"]
