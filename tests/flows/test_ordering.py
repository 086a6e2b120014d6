"""What waits for an event that never comes is evaluated within half a minute; what comes in time keeps its order."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from prefect.server.events.ordering import CausalOrdering as Base
from prefect.server.events.ordering import EventArrivedEarly, get_triggers_causal_ordering
from prefect.server.events.schemas.events import ReceivedEvent, Resource

from flows.server.ordering import PATIENCE, CausalOrdering
from orchestra.system.servers import ORDERING


def event(age: timedelta, follows: ReceivedEvent | None = None) -> ReceivedEvent:
    """An event that the server received so long ago."""
    when = datetime.now(UTC) - age
    return ReceivedEvent(
        id=uuid4(),
        event="prefect.flow-run.Pending",
        resource=Resource({"prefect.resource.id": "run"}),
        occurred=when,
        received=when,
        follows=None if follows is None else follows.id,
    )


async def arrived(ordering: Base, one: ReceivedEvent, seen: list[ReceivedEvent]) -> None:
    """As the server does with each event."""

    async def handle(event: ReceivedEvent, depth: int = 0) -> None:
        async with ordering.preceding_event_confirmed(handle, event, depth):
            seen.append(event)

    await handle(one)


def test_a_lost_leader_holds_its_followers_back_for_half_a_minute() -> None:
    async def run() -> None:
        ordering, seen = CausalOrdering("lost"), list[ReceivedEvent]()
        never = event(PATIENCE)
        for age in (PATIENCE - timedelta(seconds=5), PATIENCE + timedelta(seconds=1)):
            pending = event(age, never)
            if age < PATIENCE:
                with pytest.raises(EventArrivedEarly):
                    await arrived(ordering, pending, seen)
                assert await ordering.get_lost_followers() == []
            else:
                await arrived(ordering, pending, seen)
                assert seen == [pending]

    asyncio.run(run())


def test_the_chain_after_a_lost_event_comes_in_its_order() -> None:
    async def run() -> None:
        ordering, seen = CausalOrdering("chain"), list[ReceivedEvent]()
        pending = event(PATIENCE - timedelta(seconds=0.5), event(PATIENCE))
        running = event(timedelta(seconds=3), pending)
        failed = event(timedelta(seconds=1), running)
        for one in (pending, failed, running):
            with pytest.raises(EventArrivedEarly):
                await arrived(ordering, one, seen)
        await asyncio.sleep(0.6)
        (lost,) = await ordering.get_lost_followers()
        await arrived(ordering, lost, seen)
        assert seen == [pending, running, failed] and await ordering.get_lost_followers() == []

    asyncio.run(run())


def test_who_comes_first_waits_for_whom_it_follows() -> None:
    async def run() -> None:
        ordering, seen = CausalOrdering("order"), list[ReceivedEvent]()
        first = event(timedelta(seconds=2))
        second = event(timedelta(seconds=1), first)
        with pytest.raises(EventArrivedEarly):
            await arrived(ordering, second, seen)
        assert seen == []
        await arrived(ordering, first, seen)
        assert seen == [first, second]

    asyncio.run(run())


def test_the_server_finds_it() -> None:
    from prefect.settings import PREFECT_SERVER_EVENTS_CAUSAL_ORDERING, temporary_settings

    with temporary_settings({PREFECT_SERVER_EVENTS_CAUSAL_ORDERING: ORDERING["PREFECT_SERVER_EVENTS_CAUSAL_ORDERING"]}):
        assert type(get_triggers_causal_ordering()) is CausalOrdering
