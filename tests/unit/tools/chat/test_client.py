"""One endpoint: retries that heed it, a breaker, a provider's limits, pooled connections, cancellation."""

import asyncio
import gzip
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from orchestra.tools.chat.breaker import Breaker, longest_wait
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.chat.retries import retry_after_s
from orchestra.tools.failures import CircuitError, DeadlineError, EndpointError, ReplyError, RequestError
from orchestra.tools.http_body import MAX_BYTES, PACKED, TOO_DEEP, TOO_LONG
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Usage
from tests.support.endpoint import answer, serving
from tests.support.worlds import catalogue

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "who?"}]}


def chat(url: str, limits: ProviderLimits | None = None, **settings: Any) -> Chat:
    return Chat("one", model="m-1", url=url, backoff_s=0.01, provider=RateLimiter(limits), **settings)


async def ask(asked: Chat, times: int = 1) -> list[ChatReply | BaseException]:
    """All at once; failures come back as they are."""
    return await asyncio.gather(*(asked.ask(BODY) for _ in range(times)), return_exceptions=True)


def run(asked: Chat, times: int = 1) -> list[ChatReply | BaseException]:
    async def whole() -> list[ChatReply | BaseException]:
        try:
            return await ask(asked, times)
        finally:
            await asked.aclose()

    return asyncio.run(whole())


def test_retry_after_is_waited_for_and_not_beyond_the_deadline() -> None:
    with serving([(429, {}, 0), (200, answer(), 0)]) as double:
        double.headers = {"retry-after": "0.3"}
        (reply,) = run(chat(double.url))
        assert isinstance(reply, ChatReply) and reply.seconds >= 0.3 and len(double.asked) == 2
    with serving([(429, {}, 0)]) as double:
        double.headers = {"retry-after": "60"}
        (error,) = run(chat(double.url, deadline_s=30))
        assert isinstance(error, EndpointError) and error.seconds < 20 and len(double.asked) == 1
        assert "HTTP 429, it asks to wait 60 s, after 1 attempt" in str(error)


def test_a_refusal_says_why_and_one_that_no_wait_helps_is_not_asked_again() -> None:
    limits = ProviderLimits(failures=2, attempts=2)
    with serving([(429, {"error": {"message": "Rate limit reached"}}, 0)]) as double:
        (error,) = run(chat(double.url, limits))
        assert "HTTP 429: " in str(error) and "Rate limit reached" in str(error) and len(double.asked) == 2
        assert "after 2 attempts — ask less at once" in str(error)
    quota = {"error": {"message": "You exceeded your current quota. " * 9, "code": "insufficient_quota"}}
    with serving([(429, quota, 0)]) as double:
        asked = chat(double.url, limits)
        errors = [str(run(asked)[0]) for _ in range(3)]
        assert len(double.asked) == 2 and errors[0].endswith("— add credit at the provider")
        assert "not asked after 2 failures in a row, the last: HTTP 429: " in errors[2]
    with serving([(401, {"error": {"message": "Incorrect API key"}}, 0)]) as double:
        assert str(run(chat(double.url))[0]).endswith("— check its key")


@pytest.mark.parametrize(("status", "lost"), [(500, 0), (503, 0), (504, 1), (520, 0), (522, 0), (524, 1)])
def test_a_status_that_may_pass_is_tried_again_and_one_that_may_be_billed_is_noted(status: int, lost: int) -> None:
    with serving([(status, b"<html>", 0), (200, answer(), 0)]) as double:
        (reply,) = run(chat(double.url))
    assert isinstance(reply, ChatReply) and len(double.asked) == 2 and reply.lost == (None,) * lost


def test_another_model_that_answers_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving([(200, {**answer(), "model": "m-1-mini"}, 0), (200, {**answer(), "model": "m-1"}, 0)]) as double:
        asked = chat(double.url)
        assert all(isinstance(run(asked)[0], ChatReply) for _ in range(3))
    assert [line.getMessage() for line in caplog.records] == [
        "one: m-1-mini answers in place of m-1 — check the model's name"
    ]


def test_retry_after_may_be_a_date_or_nonsense() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 90 < retry_after_s(soon) <= 100 and retry_after_s("2.5") == 2.5
    assert [retry_after_s(text) for text in ("", "soon", "-3", "nan", "Wed, 01 Jan 2020 00:00:00 GMT")] == [0.0] * 5
    assert retry_after_s("Wed, 01 Jan 2020 00:00:00 +" + "9" * 20) == 0.0


def test_a_breaker_opens_lets_one_through_and_closes() -> None:
    now = [0.0]
    breaker = Breaker("x", failures=3, open_s=10, clock=lambda: now[0])
    for _ in range(2):
        breaker.failed(breaker.admit())
    breaker.succeeded()  # In a row: a success starts the count again.
    late = breaker.admit()
    for _ in range(3):
        breaker.failed(breaker.admit())
    now[0] = 4
    with pytest.raises(
        CircuitError, match=r"not asked after 3 failures in a row; it is asked again in 6\.0 s"
    ) as error:
        breaker.admit()
    assert error.value.wait_s == 6
    now[0] = 11
    breaker.failed(late)  # It was let through before: no second opening.
    assert breaker.admit()
    with pytest.raises(CircuitError, match="once the probe under way succeeds"):
        breaker.admit()
    breaker.failed(True)
    now[0] = 20
    with pytest.raises(CircuitError):
        breaker.admit()
    now[0] = 22
    breaker.ended(breaker.admit())  # A probe that was cancelled told nothing: the next one may.
    assert breaker.admit()
    breaker.succeeded()
    assert not breaker.admit() and not breaker.admit()


def test_an_endpoint_that_is_down_is_left_alone_and_found_again() -> None:
    limits = ProviderLimits(failures=2, open_s=3600, attempts=1)
    with serving([(500, {}, 0), (500, {}, 0), (200, answer(), 0)]) as double:

        async def whole() -> list[list[ChatReply | BaseException]]:
            asked = chat(double.url, limits)
            found = [await ask(asked), await ask(asked)]
            with longest_wait(0):
                found.append(await ask(asked))
            asked._breaker._until = 0.0
            found += [await ask(asked), await ask(asked)]
            await asked.aclose()
            return found

        kinds = [type(one) for (one,) in asyncio.run(whole())]
        assert kinds == [EndpointError, EndpointError, CircuitError, ChatReply, ChatReply] and len(double.asked) == 4


def test_who_is_left_alone_takes_nothing_from_the_provider_s_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = []

    async def pace(self: RateLimiter) -> None:
        paced.append(self)

    monkeypatch.setattr(RateLimiter, "pace", pace)
    with serving([(500, {}, 0)]) as double:
        asked = chat(double.url, ProviderLimits(failures=1, attempts=1, concurrency=1))

        async def whole() -> list[ChatReply | BaseException]:
            try:
                await ask(asked)
                with longest_wait(0):
                    return await ask(asked, 3)
            finally:
                await asked.aclose()

        assert [type(one) for one in asyncio.run(whole())] == [CircuitError] * 3 and len(paced) == 1


def test_replies_of_no_use_and_wrong_requests_open_no_breaker() -> None:
    limits = ProviderLimits(failures=1, attempts=1)
    with serving([(200, answer(None), 0), (400, {}, 0), (200, answer(), 0)]) as double:
        asked = chat(double.url, limits)
        kinds = [type(run(asked)[0]).__name__ for _ in range(3)]
        assert kinds == ["ReplyError", RequestError.__name__, "ChatReply"]


def test_a_provider_s_places_hold_for_all_its_models_and_waiting_is_not_their_time() -> None:
    with serving([(200, answer(), 0.1)]) as double:

        async def whole() -> list[ChatReply | BaseException]:
            provider = RateLimiter(ProviderLimits(concurrency=2))
            two = [Chat(n, model=n, url=double.url, provider=provider, deadline_s=20) for n in ("m-1", "m-2")]
            found = await asyncio.gather(ask(two[0], 4), ask(two[1], 4))
            for one in two:
                await one.aclose()
            return [reply for part in found for reply in part]

        began = time.monotonic()
        replies = asyncio.run(whole())
        wall_s = time.monotonic() - began
    assert double.most_at_once == 2 and wall_s >= 0.4
    assert all(isinstance(reply, ChatReply) and reply.seconds < wall_s for reply in replies)
    assert double.connections <= 4, "each model's connections are pooled"


def test_no_more_requests_a_minute_than_allowed() -> None:
    async def paced() -> list[bool]:
        provider = RateLimiter(ProviderLimits(requests_per_minute=2))

        async def one() -> bool:
            try:
                await asyncio.wait_for(provider.pace(), 0.1)
            except TimeoutError:
                return False
            return True

        return [await one() for _ in range(3)]

    assert asyncio.run(paced()) == asyncio.run(paced()) == [True, True, False]


def test_a_provider_s_requests_a_minute_hold_over_event_loops_and_toolkits(tmp_path: Path) -> None:
    limits = ProviderLimits(requests_per_minute=600)
    world = replace(catalogue(), providers={"paced": limits})
    kits = [Toolkit(world, {}, tmp_path) for _ in range(2)]

    async def ask_often(provider: RateLimiter, times: int) -> None:
        for _ in range(times):
            await provider.pace()

    began = time.monotonic()
    for kit in kits:
        asyncio.run(ask_often(kit.resources.provider("paced"), 300))
    at_once_s = time.monotonic() - began
    asyncio.run(ask_often(kits[0].resources.provider("paced"), 3))
    # 603 requests: a minute's 600 at once, then one each 0.1 s.
    assert at_once_s < 5 and 0.25 < time.monotonic() - began < 10


def test_a_provider_s_places_hold_over_threads() -> None:
    provider = RateLimiter(ProviderLimits(concurrency=2))
    now, most, lock = 0, 0, threading.Lock()

    async def hold() -> None:
        nonlocal now, most
        async with provider.place():
            with lock:
                now += 1
                most = max(most, now)
            try:
                await asyncio.sleep(0.01)
            finally:
                with lock:
                    now -= 1

    async def several(number: int) -> None:
        held = [asyncio.ensure_future(hold()) for _ in range(8)]
        await asyncio.sleep(0.005)
        held[number].cancel()  # While it waits or has its place.
        held[number + 4].cancel()
        await asyncio.gather(*held, return_exceptions=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: asyncio.run(several(number)), range(4)))
    asyncio.run(asyncio.wait_for(several(0), 5))
    assert most == 2 and not provider._waiting and provider._free == 2


def test_what_is_cancelled_may_be_billed_and_leaves_the_endpoint_usable() -> None:
    lost: list[Usage | None] = []
    with serving([(200, answer(), 2.0), (200, answer(), 0)]) as double:

        async def whole() -> ChatReply:
            asked = chat(double.url, ProviderLimits(concurrency=1))
            task = asyncio.create_task(asked.ask(BODY, on_lost=lost.append))
            while not double.asked:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            reply = await asked.ask(BODY)
            await asked.aclose()
            return reply

        assert asyncio.run(whole()).text == "Kelmar" and lost == [None]


def test_the_deadline_is_for_all_attempts_together_and_typed() -> None:
    with serving([(503, {}, 0.15), (503, {}, 0.15), (200, answer(), 5.0)]) as double:
        (error,) = run(chat(double.url, deadline_s=1.0))
        assert isinstance(error, DeadlineError) and 1.0 <= error.seconds < 4.0 and error.lost == (None,)


def test_nothing_of_the_environment_is_sent_to_other_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads OPENAI_* by itself; an endpoint without a key gets none."""
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "sk-not-yours")
    with serving([(200, answer(), 0)]) as double:
        (reply,) = run(chat(double.url))
        assert isinstance(reply, ChatReply) and double.keys == [None]
        assert "sk-not-yours" not in str(double.heads)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    ("body", "encoding", "said"),
    [
        (json.dumps(answer("x" * MAX_BYTES)).encode(), "identity", TOO_LONG),
        (b"[" * 200_000, "identity", TOO_DEEP),
        (gzip.compress(json.dumps(answer()).encode()), "gzip", PACKED),
    ],
)
def test_a_reply_without_end_or_packed_is_not_read(body: bytes, encoding: str, said: str, status: int) -> None:
    with serving([(status, body, 0)]) as double:
        double.headers = {"content-encoding": encoding}
        (error,) = run(chat(double.url))
        assert isinstance(error, ReplyError) and said in str(error) and "\n" not in str(error)
        assert error.lost == (None,) and len(double.asked) == 1
        assert double.heads[0]["accept-encoding"] == "identity"


def test_a_long_reply_within_the_bound_is_read_whole() -> None:
    text = "x" * (MAX_BYTES - 1000)
    with serving([(200, answer(text), 0)]) as double:
        (reply,) = run(chat(double.url))
        assert isinstance(reply, ChatReply) and reply.text == text
