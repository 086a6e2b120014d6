"""An endpoint that is overloaded for a while: calls wait for it within their deadlines, and few are lost."""

import asyncio
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.budget import Budget
from orchestra.tools.chat.breaker import Breaker, longest_wait, longest_wait_s
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import CircuitError, DeadlineError, EndpointError
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.types import Component, Message, Price
from tests.support.endpoint import Script, answer, serving

T = TypeVar("T")
CALLS = 32
LIMITS = ProviderLimits(concurrency=4, failures=2, attempts=2, open_s=0.05)
OVERLOADED = 8
"""Requests that are refused first: until the breaker opens, or to two probes at most."""


def chat(url: str, limits: ProviderLimits, provider: RateLimiter | None = None, deadline_s: float = 60) -> Chat:
    provider = provider or RateLimiter(limits)
    return Chat("one", model="m-1", url=url, backoff_s=0.01, provider=provider, deadline_s=deadline_s)


def body(text: str = "who?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def said(request: dict[str, Any]) -> str:
    return str(request["messages"][-1]["content"])


async def outcome(asked: Coroutine[Any, Any, ChatReply]) -> type:
    """The kind of what comes: a reply, or a failure."""
    try:
        return type(await asked)
    except EndpointError as error:
        return type(error)


def with_chats(use: Callable[..., Coroutine[Any, Any, T]], *chats: Chat) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(use(*chats), 30)
        finally:
            for one in chats:
                await one.aclose()

    return asyncio.run(whole())


async def passes(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def overloaded(first: int) -> Script:
    """HTTP 529 to so many requests, without Retry-After; then answers."""
    count, lock = iter(range(10**6)), threading.Lock()

    def reply(request: dict[str, Any]) -> Any:
        with lock:
            number = next(count)
        error = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
        return (529, error, 0) if number < first else (200, answer(), 0)

    return reply


@pytest.mark.parametrize("waits", [True, False])
def test_a_short_overload_loses_few_of_many_calls_and_all_of_them_where_none_waits(waits: bool) -> None:
    async def whole(one: Chat) -> Counter[type]:
        with nullcontext() if waits else longest_wait(0):
            return Counter(await asyncio.gather(*(outcome(one.ask(body())) for _ in range(CALLS))))

    limits = LIMITS if waits else LIMITS.model_copy(update={"open_s": 30.0})
    with serving(overloaded(OVERLOADED if waits else CALLS)) as double:
        kinds = with_chats(whole, chat(double.url, limits))
    if waits:
        lost = OVERLOADED // LIMITS.attempts
        assert kinds[CircuitError] == 0 and 2 <= kinds[EndpointError] <= lost and kinds[ChatReply] >= CALLS - lost
        assert len(double.asked) == OVERLOADED + kinds[ChatReply] and double.most_at_once <= LIMITS.concurrency
    else:
        assert kinds[ChatReply] == 0 and kinds[CircuitError] >= CALLS - 5, "the control: nearly all were never asked"


def test_a_call_between_two_attempts_waits_too_and_has_no_more_attempts_than_before() -> None:
    """It opens while the first attempts of the second and the third call are under way."""
    opened = threading.Event()

    def reply(request: dict[str, Any]) -> Any:
        if said(request) != "first" and len(double.asked) <= 4:
            opened.wait(10)
            return 529, {}, 0
        return (200, answer(), 0) if said(request) == "second" else (529, {}, 0)

    async def whole(one: Chat) -> list[ChatReply | BaseException]:
        others = [asyncio.ensure_future(one.ask(body(text))) for text in ("second", "third")]
        await passes(lambda: len(double.asked) == 2)
        assert await outcome(one.ask(body("first"))) is EndpointError
        opened.set()
        await passes(lambda: len(one._breaker._waiting) == 2)
        assert len(double.asked) == 4, "nothing is asked while it is open"
        while not all(other.done() for other in others):
            if not one._breaker._probing:
                one._breaker._until = 0.0  # Its time is over, also where the third was the probe and failed.
                one._breaker._tell()
            await asyncio.sleep(0.005)
        return await asyncio.gather(*others, return_exceptions=True)

    with serving(reply) as double:
        limits = LIMITS.model_copy(update={"failures": 1, "open_s": 3600.0})
        second, third = with_chats(whole, chat(double.url, limits, deadline_s=7200))
        assert Counter(map(said, double.asked)) == {"first": 2, "second": 2, "third": 2}
    assert isinstance(second, ChatReply) and second.seconds < 60
    assert isinstance(third, EndpointError) and "after 2 attempts" in str(third)


def test_a_judge_that_waits_holds_no_place_no_dollars_and_can_be_cancelled(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> Any:
        return (529, {}, 0) if request["model"] == "m-1" else (200, answer(), 0)

    limits = ProviderLimits(concurrency=1, failures=1, attempts=1, open_s=30)
    provider, budget = RateLimiter(limits), Budget(tmp_path / "ledger.jsonl", Decimal(1))

    async def whole(one: Chat, other: Chat) -> None:
        assert await outcome(one.ask(body())) is EndpointError
        paid = PaidChat(one, Price(output_per_million=Decimal(10_000)), budget, Component.JUDGE)
        asked = [paid.ask([Message(role="user", content="?")], max_tokens=90) for _ in range(3)]
        waiting = [asyncio.ensure_future(one) for one in asked]
        await passes(lambda: len(one._breaker._waiting) == 3)
        assert (await other.ask(body())).text == "Kelmar", "the provider's only place is free"
        with budget.hold(Decimal(1)):
            """Nothing is held for the three."""
        for task in waiting:
            task.cancel()
        assert {type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)} == {asyncio.CancelledError}
        assert not one._breaker._waiting and budget.spent_usd == 0

    with serving(reply) as double:
        other = Chat("two", model="m-2", url=double.url, provider=provider)
        with_chats(whole, chat(double.url, limits, provider), other)
        assert [request["model"] for request in double.asked] == ["m-1", "m-2"]


def test_another_call_is_the_probe_where_the_first_is_cancelled() -> None:
    gone = threading.Event()

    def reply(request: dict[str, Any]) -> Any:
        if said(request) == "probe":
            gone.wait(10)
        return (529, {}, 0) if said(request) == "first" else (200, answer(), 0)

    async def whole(one: Chat) -> list[type]:
        assert await outcome(one.ask(body("first"))) is EndpointError
        probe = asyncio.ensure_future(one.ask(body("probe")))
        await passes(lambda: len(double.asked) == 2)
        others = [asyncio.ensure_future(outcome(one.ask(body()))) for _ in range(3)]
        await passes(lambda: len(one._breaker._waiting) == 3)
        assert len(double.asked) == 2, "nothing is asked beside a probe"
        probe.cancel()
        return await asyncio.gather(*others)

    with serving(reply) as double:
        try:
            kinds = with_chats(whole, chat(double.url, ProviderLimits(failures=1, attempts=1, open_s=0.05)))
        finally:
            gone.set()
    assert kinds == [ChatReply] * 3


def test_no_call_waits_beyond_its_deadline_or_begins_to_where_that_is_too_short() -> None:
    """One of two is the probe, which hangs; the other's wait is over before."""
    ended = threading.Event()

    def reply(request: dict[str, Any]) -> Any:
        if said(request) != "first":
            ended.wait(10)
        return 529, {}, 0

    async def whole(one: Chat) -> set[type]:
        assert await outcome(one.ask(body("first"))) is EndpointError
        return set(await asyncio.gather(*(outcome(one.ask(body())) for _ in range(2))))

    limits = ProviderLimits(failures=1, attempts=1, open_s=0.1)
    with serving(reply) as double:
        try:
            kinds = with_chats(whole, chat(double.url, limits, deadline_s=2.0))
        finally:
            ended.set()
        assert kinds == {DeadlineError, CircuitError} and len(double.asked) == 2
    with serving(reply) as double:
        limits = limits.model_copy(update={"open_s": 3600.0})
        began = time.monotonic()
        assert with_chats(whole, chat(double.url, limits)) == {CircuitError}
        assert time.monotonic() - began < 30 and len(double.asked) == 1


def test_what_stays_down_is_waited_for_through_three_probes_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
    """Later, one call asks each `open_s`, and the others fail at once, whatever their deadline."""

    async def whole(clock: Callable[[], float]) -> None:
        breaker, up = Breaker("one", 2, 10, clock), False

        async def call() -> bool | None:
            try:
                probe = await breaker.admitted(3600)
            except CircuitError:
                return None
            if up:
                breaker.succeeded()
            else:
                breaker.failed(probe, "HTTP 529")
            return up

        async def calls(count: int) -> Counter[bool | None]:
            return Counter(await asyncio.gather(*(call() for _ in range(count))))

        assert await calls(16) == {False: 2 + 3, None: 11} and clock() == 30, "three probes"
        assert await calls(16) == {None: 16} and clock() == 30
        await asyncio.sleep(10)
        assert await calls(4) == {False: 1, None: 3} and clock() == 40, "a probe, which fails"
        await asyncio.sleep(10)
        up = True
        assert await calls(16) == {True: 16}
        up = False
        assert await calls(16) == {False: 5, None: 11} and clock() == 80, "what worked again is waited for again"

    at_once(whole)
    opened, closed, again = (record.getMessage() for record in caplog.records)
    assert (
        opened
        == again
        == (
            "one: not asked for 10 s after 2 failures in a row, then by one call each 10 s until it answers; "
            "calls that may wait do; the last failure: HTTP 529"
        )
    )
    assert closed == "one: it answers again, after 50 s; the last failure: HTTP 529"


@pytest.mark.parametrize("worked", [False, True])
def test_nobody_is_waited_for_where_nobody_ever_listened(worked: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def whole(one: Chat) -> list[type]:
        if worked:
            await one.ask(body())
            double.shutdown()
            double.server_close()
            await one.aclose()
        calls = [asyncio.ensure_future(outcome(one.ask(body()))) for _ in range(6)]
        await passes(lambda: sum(call.done() for call in calls) + len(one._breaker._waiting) == 6)
        waiting = sum(not call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert waiting == (5 if worked else 0)
        return [call.result() for call in calls if not call.cancelled()]

    limits = ProviderLimits(concurrency=1, failures=1, attempts=1, open_s=30)
    with serving([(200, answer(), 0)]) as double:
        url = double.url if worked else "http://127.0.0.1:9/v1"
        kinds = with_chats(whole, chat(url, limits, deadline_s=3600))
    assert kinds == [EndpointError] + [CircuitError] * (0 if worked else 5)
    (told,) = (record.getMessage() for record in caplog.records if "not asked" in record.getMessage())
    assert ("calls that may wait do" if worked else "calls fail at once") in told and "ConnectError" in told


@pytest.mark.parametrize(("status", "said_"), [(401, {}), (404, {}), (429, {"error": {"code": "insufficient_quota"}})])
def test_nothing_waits_for_what_no_wait_helps(status: int, said_: Any) -> None:
    async def whole(one: Chat) -> list[type]:
        return [await outcome(one.ask(body())) for _ in range(3)]

    with serving([(status, said_, 0)]) as double:
        limits = ProviderLimits(failures=1, open_s=20)
        kinds = with_chats(whole, chat(double.url, limits))
        assert kinds == [EndpointError, CircuitError, CircuitError] and len(double.asked) == 1


def test_the_shortest_wait_holds_and_ends_with_its_block() -> None:
    with longest_wait(5):
        with longest_wait(60):
            assert longest_wait_s() == 5
        with longest_wait(0):
            assert longest_wait_s() == 0
        assert longest_wait_s() == 5
    assert longest_wait_s() > 10**9


class Leaping(selectors.DefaultSelector):
    """Time that passes only where everything waits, and then at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise AssertionError("everything waits for ever")
        if not found and timeout:
            self.now += timeout
        return found


def at_once(main: Callable[[Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """What it gives back, in a time of its own, which `main` is given the clock of."""
    time_ = Leaping()

    def clock() -> float:
        return time_.now

    loop = asyncio.SelectorEventLoop(time_)
    loop.time = clock  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(main(clock))
    finally:
        loop.close()


CALL = st.tuples(st.floats(0, 100), st.floats(0, 120), st.floats(0.1, 20), st.none() | st.floats(0, 200))
"""When a call begins, how long it may wait, how long its asking takes, and after how many seconds it is cancelled."""


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALL, min_size=1, max_size=25), down=st.tuples(st.floats(0, 60), st.floats(0, 120)))
def test_whatever_comes_one_probe_asks_none_waits_too_long_and_none_is_left(
    calls: list[tuple[float, float, float, float | None]], down: tuple[float, float]
) -> None:
    open_s, failures = 10.0, 3

    async def whole(clock: Callable[[], float]) -> None:
        breaker, probes = Breaker("one", failures, open_s, clock), 0

        async def call(begins_s: float, most_s: float, takes_s: float) -> None:
            nonlocal probes
            await asyncio.sleep(begins_s)
            began = clock()
            try:
                probe = await breaker.admitted(most_s)
            except CircuitError as refused:
                # As late as it can tell, or as soon: more than what is left would have to be waited.
                assert clock() - began <= most_s + 1e-6
                assert breaker._lasting or clock() - began + refused.wait_s >= most_s - 1e-6
                return
            assert clock() - began <= most_s + 1e-6
            probes += probe
            assert probes <= 1 and (probe or breaker._until is None)
            try:
                await asyncio.sleep(takes_s)
            except asyncio.CancelledError:
                breaker.ended(probe)
                raise
            else:
                if down[0] <= clock() < sum(down):
                    breaker.failed(probe)
                else:
                    breaker.succeeded()
            finally:
                probes -= probe

        async def cancelled(task: asyncio.Task[None], after_s: float | None) -> None:
            if after_s is not None:
                await asyncio.sleep(after_s)
                task.cancel()

        tasks = [asyncio.ensure_future(call(*one[:3])) for one in calls]
        enders = [cancelled(task, one[3]) for task, one in zip(tasks, calls, strict=True)]
        ended = await asyncio.gather(*tasks, *enders, return_exceptions=True)
        assert not [one for one in ended if one is not None and not isinstance(one, asyncio.CancelledError)], ended
        assert not breaker._waiting
        await asyncio.sleep(sum(down) + open_s)
        assert await breaker.admitted(0) in (True, False), "whatever was before, a later call is let in"

    at_once(whole)
