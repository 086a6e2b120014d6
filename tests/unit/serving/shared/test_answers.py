"""A request that is sent again is neither done nor paid for twice."""

import asyncio
import contextlib
import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestra.config.deploy import GatewayLimits
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.shared import leases, spending
from orchestra.serving.shared.answers import KEEP_S, RUNNING_S, Answers
from orchestra.serving.shared.calls import KEEP_S as CALLS_KEEP_S
from orchestra.serving.shared.calls import Calls
from orchestra.serving.shared.database import OLD_AT_ONCE, Database
from orchestra.serving.shared.spending import KeyBudget
from orchestra.serving.wire.errors import ApiError
from orchestra.types import Charge, Component, ToolCall, Usage
from tests.support.serving_world import backend
from tests.unit.serving.test_gateway import call, client

PATH = "/v1/chat/completions"


def test_answers_by_owner_and_name(tmp_path: Path) -> None:
    answers = Answers(Database(tmp_path / "store.sqlite"))
    assert answers.begin("a", "n", b"x") is None
    with pytest.raises(ApiError, match="still runs"):
        answers.begin("a", "n", b"x")
    answers.finish("a", "n", b"done")
    assert answers.begin("a", "n", b"x") == b"done"
    with pytest.raises(ApiError, match="another request") as caught:
        answers.begin("a", "n", b"y")
    assert caught.value.status == 409
    # Another's request of the same name is another request; one that came to nothing may be tried again.
    assert answers.begin("b", "n", b"x") is None
    answers.forget("b", "n")
    assert answers.begin("b", "n", b"x") is None


@pytest.mark.parametrize("jump_s", [RUNNING_S + 1, 2 * KEEP_S, -3600.0])
def test_a_request_that_runs_here_is_not_begun_again_when_the_clock_jumps(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, now = Answers(Database(tmp_path / "store.sqlite")), time.time()
    assert answers.begin("a", "n", b"x") is None
    monkeypatch.setattr(time, "time", lambda: now + jump_s)  # As after a laptop's sleep.
    with pytest.raises(ApiError, match="still runs"):
        answers.begin("a", "n", b"x")
    answers.finish("a", "n", b"done")
    assert answers.begin("a", "n", b"x") == b"done"


def test_an_answer_is_kept_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a request that never ended, which may be begun again after `RUNNING_S`."""
    answers, now = Answers(Database(tmp_path / "store.sqlite")), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert answers.begin("a", "n", b"x") is None
    answers.finish("a", "n", b"done")
    now += KEEP_S - 1
    assert answers.begin("a", "n", b"x") == b"done"
    now += 2
    assert answers.begin("a", "n", b"x") is None


def test_a_day_s_answers_are_neither_searched_nor_deleted_at_once(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite")
    answers, said = Answers(database), list[str]()

    def made(seconds: float, name: str, body: bytes | None, count: int = 1) -> None:
        rows = [("a", f"{name}{number}", "d", body, time.time() - seconds) for number in range(count)]
        with database.change() as store:
            store.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", rows)

    def there(name: str) -> int:
        with database.look() as store:
            return int(store.execute("SELECT count(*) FROM answers WHERE name LIKE ?", (f"{name}%",)).fetchone()[0])

    made(KEEP_S + 20, "older", b"x", OLD_AT_ONCE)
    made(KEEP_S + 10, "old", b"x", 2 * OLD_AT_ONCE)
    made(KEEP_S - 60, "young", b"x", 3)
    made(RUNNING_S + 10, "killed", None, 3)
    # The oldest go first. One that is over counts no longer, although it is there.
    with database.look() as store:
        store.set_trace_callback(said.append)
    assert answers.begin("a", "old0", b"y") is None
    with database.look() as store:
        store.set_trace_callback(None)
    assert there("older") == 0 and there("old") == 2 * OLD_AT_ONCE and there("young") == 3
    # Of the requests that never ended, only the one that is asked for is judged.
    assert answers.begin("a", "killed0", b"y") is None and there("killed") == 3
    assert there("old") == OLD_AT_ONCE
    looked = [line for line in said if line.startswith(("DELETE", "SELECT"))]
    assert len(looked) == 3
    with database.look() as store:
        plans = [row[3] for line in looked for row in store.execute(f"EXPLAIN QUERY PLAN {line}")]
    assert not any(plan.startswith("SCAN") for plan in plans), plans


def test_a_call_goes_on_for_its_owner_and_after_its_messages_only(tmp_path: Path) -> None:
    calls = Calls(Database(tmp_path / "store.sqlite"))
    call_id = calls.remember("a", "d", [1, 70_000])
    assert calls.recall("a", call_id, "d") == [1, 70_000]
    for asked in (("b", call_id, "d"), ("a", call_id, "e"), ("a", "call_0", "d")):
        assert calls.recall(*asked) is None


def test_calls_of_a_day_are_not_deleted_at_once(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite")
    long_ago = time.time() - CALLS_KEEP_S - 10
    with database.change() as store:
        rows = [(f"c{number}", "a", "d", b"", long_ago) for number in range(2 * OLD_AT_ONCE)]
        store.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", rows)
    Calls(database).remember("a", "d", [1])
    with database.look() as store:
        assert store.execute("SELECT count(*) FROM calls").fetchone() == (OLD_AT_ONCE + 1,)


def test_a_request_of_a_killed_gateway_may_be_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, killed, other = (Answers(Database(tmp_path / "store.sqlite")) for _ in range(3))
    assert alive.begin("a", "n", b"x") is None and killed.begin("b", "n", b"x") is None
    began = time.time()
    for half_minutes in range(1, 5):
        monkeypatch.setattr(time, "time", lambda: began + 30.0 * half_minutes)  # noqa: B023
        alive.renew()
        with pytest.raises(ApiError, match="still runs"):
            other.begin("a", "n", b"x")
    assert other.begin("b", "n", b"x") is None
    alive.finish("a", "n", b"done")
    assert other.begin("a", "n", b"x") == b"done"


def test_a_gateway_states_what_it_works_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    gateway = Gateway(tmp_path, backend=backend(tmp_path))
    made, _ = gateway.keys.create("team", budget_usd=Decimal(1))
    gateway.answers.begin("a", "n", b"x")

    def stated() -> list[float]:
        with gateway.store.look() as store:
            return [row[0] for row in store.execute("SELECT until FROM holds UNION ALL SELECT made FROM answers")]

    async def go() -> None:
        app: Any = create_app(gateway, load=False)
        with KeyBudget(gateway.store, made.id).hold(Decimal("0.5")):
            before = stated()
            async with app.app.app.router.lifespan_context(app.app.app):
                async with asyncio.timeout(10):
                    while not all(new > old for new, old in zip(stated(), before, strict=True)):
                        await asyncio.sleep(0.01)

    asyncio.run(go())


def test_a_key_whose_dollars_are_held_keeps_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "ROOM_S", 0.3)
    gateway = Gateway(
        tmp_path, backend=backend(tmp_path, lambda _: format_answer("hi")), limits=GatewayLimits(running=4, waiting=20)
    )
    (poor, secret), (_, other) = (gateway.keys.create(name, budget_usd=Decimal("0.07")) for name in ("poor", "other"))
    body = {"messages": [{"role": "user", "content": "hi"}]}

    async def go() -> None:
        async with client(gateway) as http:

            def ask(secret: str) -> asyncio.Future[httpx.Response]:
                return asyncio.ensure_future(http.post(PATH, json=body, headers={"Authorization": f"Bearer {secret}"}))

            with KeyBudget(gateway.store, poor.id).hold(Decimal("0.06995")):
                waiting = [ask(secret) for _ in range(8)]
                await asyncio.sleep(0.1)
                async with asyncio.timeout(10):
                    assert (await ask(other)).status_code == 200
                    refused = await asyncio.gather(*waiting)
            assert {reply.status_code for reply in refused} == {429}
            error = refused[0].json()["error"]
            assert "are held for calls under way" in error["message"] and "try again" in error["message"]
            # Official clients repeat it.
            assert (error["type"], error["code"]) == ("rate_limit_error", "budget_held")
            assert int(refused[0].headers["retry-after"]) > 0

    asyncio.run(go())


def test_the_gateway_answers_once(tmp_path: Path) -> None:
    asked = 0

    def decide(_: object) -> str:
        nonlocal asked
        asked += 1
        return format_answer(f"answer {asked}")

    gateway = Gateway(tmp_path, backend=backend(tmp_path, decide))
    body = {"messages": [{"role": "user", "content": "hello?"}]}
    first, second = (
        call(gateway, tmp_path, "POST", PATH, json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert first.json() == second.json() and asked == 1 and second.headers["idempotent-replayed"] == "true"
    other = call(gateway, tmp_path, "POST", PATH, json={**body, "seed": 1}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 409
    # A request that was refused may be sent again once it is right.
    wrong = call(gateway, tmp_path, "POST", PATH, json={**body, "n": 2}, headers={"Idempotency-Key": "w"})
    right = call(gateway, tmp_path, "POST", PATH, json=body, headers={"Idempotency-Key": "w"})
    assert (wrong.status_code, right.status_code) == (400, 200)
    stream = call(gateway, tmp_path, "POST", PATH, json={**body, "stream": True}, headers={"Idempotency-Key": "s"})
    assert json.loads(stream.text)["error"]["param"] == "stream"


def test_keys_guard_the_gateway(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path))
    body = {"messages": [{"role": "user", "content": "what is 37*24?"}]}
    assert call(gateway, tmp_path, "POST", PATH, json=body).status_code == 200
    _, secret = gateway.keys.create("team", budget_usd=Decimal("0.0004"))
    assert call(gateway, tmp_path, "POST", PATH, json=body).status_code == 401
    assert call(gateway, tmp_path, "GET", "/v1/models").status_code == 401
    assert call(gateway, tmp_path, "GET", "/health").status_code == 200
    headers = {"Authorization": f"Bearer {secret}"}
    stops, spent = [], 0.0
    for _ in range(20):
        reply = call(gateway, tmp_path, "POST", PATH, json=body, headers=headers)
        if reply.status_code == 429:
            break
        stops.append(reply.json()["orchestra"]["stop"])
        spent += reply.json()["orchestra"]["cost_usd"]
    assert stops[0] == "answered" and {*stops} <= {"answered", "budget"}
    # Where not even a first turn is paid for, nothing is done, and OpenAI's clients do not try again.
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "the next call could cost" in error["message"] and "orchestra" not in reply.json()
    stream = call(gateway, tmp_path, "POST", PATH, json={**body, "stream": True}, headers=headers)
    assert stream.status_code == 429 and json.loads(stream.text) == reply.json()
    (key,) = gateway.keys.list()
    assert float(key.spent_usd) == pytest.approx(spent) and key.spent_usd <= Decimal("0.0004")


def test_a_call_that_the_key_cannot_pay_leaves_the_turn_that_it_paid(tmp_path: Path) -> None:
    plain = backend(tmp_path)
    expert = plain.card()["strongest_expert"]
    gateway = Gateway(tmp_path, backend=backend(tmp_path, lambda _: format_call(ToolCall(name=expert, arguments={}))))
    _, secret = gateway.keys.create("team", budget_usd=Decimal("0.001"))
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"messages": [{"role": "user", "content": "who wrote Opal?"}]}
    reply = call(gateway, tmp_path, "POST", PATH, json=body, headers=headers).json()
    made, (key,) = reply["orchestra"], gateway.keys.list()
    assert (made["stop"], made["turns"]) == ("budget", 1) and reply["usage"]["total_tokens"] > 0
    assert made["cost_usd"] == pytest.approx(float(key.spent_usd)) and key.spent_usd > 0
    assert [call["name"] for call in made["tool_calls"]] == [expert]


def test_a_request_waits_for_dollars_that_another_of_its_key_holds(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path, lambda _: format_answer("hello there")))
    made, secret = gateway.keys.create("team", budget_usd=Decimal("0.07"))
    budget = KeyBudget(gateway.store, made.id)
    body = {"messages": [{"role": "user", "content": "hi"}]}

    async def go() -> None:
        async with client(gateway) as http:
            with budget.hold(Decimal("0.06995")):
                asked = http.post(PATH, json=body, headers={"Authorization": f"Bearer {secret}"})
                waiting = asyncio.ensure_future(asked)
                await asyncio.sleep(0.5)
                assert not waiting.done()
            assert (await waiting).json()["orchestra"]["stop"] == "answered"

    asyncio.run(go())


def test_a_request_that_paid_for_a_turn_waits_for_other_calls_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "ROOM_S", 0.05)
    expert, held = backend(tmp_path).card()["strongest_expert"], contextlib.ExitStack()

    def decide(conversation: Conversation) -> str:
        if conversation.turns:
            return format_answer("it is done")
        # Before the expert is called, another request's call holds nearly all, for a while.
        held.enter_context(KeyBudget(gateway.store, made.id).hold(Decimal("0.99")))
        asyncio.get_running_loop().call_later(0.6, held.close)
        return format_call(ToolCall(name=expert, arguments={}))

    gateway = Gateway(tmp_path, backend=backend(tmp_path, decide))
    made, secret = gateway.keys.create("team", budget_usd=Decimal(1))

    body = {"messages": [{"role": "user", "content": "who wrote Opal?"}]}
    reply = call(gateway, tmp_path, "POST", PATH, json=body, headers={"Authorization": f"Bearer {secret}"}).json()
    assert (reply["orchestra"]["stop"], reply["orchestra"]["turns"]) == ("answered", 2)


def test_an_answer_that_is_kept_is_given_whatever_stands_before_a_new_one(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path, lambda _: format_answer("hi there")))
    made, secret = gateway.keys.create("team", budget_usd=Decimal("1"))
    body = {"messages": [{"role": "user", "content": "hello?"}]}

    def ask(name: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": name}
        return call(gateway, tmp_path, "POST", PATH, json=body, headers=headers)

    first, budget = ask("k"), KeyBudget(gateway.store, made.id)
    left = Decimal(1) - gateway.keys.list()[0].spent_usd
    budget.book(Charge(component=Component.EXPERT, name="other", usage=Usage(), cost_usd=left, latency_s=0))
    assert (ask("k").json(), ask("new").status_code) == (first.json(), 429)
    gateway.problem = "vLLM does not answer"
    assert (ask("k").json(), ask("new").status_code) == (first.json(), 503)
