"""No number of parallel calls, in any number of gateways, crosses a key's dollars."""

import asyncio
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.errors import BudgetError
from orchestra.rollout.charges import paid_turns
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing
from orchestra.serving.gateway import Gateway
from orchestra.serving.shared import spending
from orchestra.serving.shared.database import Database
from orchestra.serving.shared.keys import PERIODS, Keys, Period
from orchestra.serving.shared.spending import FORGET_S, HOLD_S, KeyBudget, renew_holds
from orchestra.tools.base import ToolResult
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.types import Charge, Component, Price
from tests.support.serving_world import backend
from tests.support.worlds import ROOT, example
from tests.unit.serving.test_gateway import call as ask

CENT = Decimal("0.01")


def charge(usd: Decimal) -> Charge:
    return Charge(component=Component.EXPERT, name="e", cost_usd=usd)


@pytest.fixture
def budgets(tmp_path: Path) -> list[KeyBudget]:
    """One key's budget of ten cents, as two gateways see it."""
    stores = [Database(tmp_path / "store.sqlite") for _ in range(2)]
    key, _ = Keys(stores[0]).create("team", budget_usd=10 * CENT)
    return [KeyBudget(store, key.id) for store in stores]


def left(budget: KeyBudget) -> Decimal:
    """Dollars of the only key's budget that are not spent."""
    assert budget.cap_usd is not None
    return budget.cap_usd - Keys(budget._database).list()[0].spent_usd


def test_parallel_calls_of_two_gateways_stay_within(budgets: list[KeyBudget]) -> None:
    refused = 0

    async def call(number: int) -> None:
        nonlocal refused
        budget = budgets[number % 2]
        try:
            with budget.hold(3 * CENT):
                await asyncio.sleep(0.001 * (number % 3))
                budget.book(charge(2 * CENT))
        except BudgetError:
            refused += 1

    async def go() -> None:
        await asyncio.gather(*(call(number) for number in range(30)))

    asyncio.run(go())
    spent = 10 * CENT - left(budgets[0])
    assert refused and spent <= 10 * CENT and spent == 2 * CENT * (30 - refused)
    assert left(budgets[0]) == left(budgets[1])


def test_a_turn_that_its_caller_leaves_counts_at_its_worst_and_once(budgets: list[KeyBudget]) -> None:
    class Waits(KeepsNothing):
        name, by_episode = "waits", True

        async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
            await asyncio.sleep(60)
            return []

    async def go() -> None:
        price = Price(output_per_million=Decimal(1000))
        turn = paid_turns(Waits(), [Conversation(example("e"), [5] * 30)], [40], price, budgets[0])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turn, 0.05)

    asyncio.run(go())
    assert left(budgets[1]) == 6 * CENT


@pytest.mark.parametrize("keyed", [False, True])
def test_a_reply_at_the_time_limit_tells_what_the_key_was_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """Of the turn whose tool was still at work, too."""

    async def slow(*_: object) -> ToolResult:
        await asyncio.sleep(60)
        return ToolResult(text="late")

    monkeypatch.setattr("orchestra.tools.session.result_of", slow)
    gateway = Gateway(tmp_path, backend=backend(tmp_path))
    headers = {"Authorization": f"Bearer {gateway.keys.create('team', budget_usd=Decimal(1))[1]}"} if keyed else {}
    body = {"messages": [{"role": "user", "content": "what is 1+1?"}], "max_seconds": 0.3}
    told = ask(gateway, tmp_path, "POST", "/v1/chat/completions", json=body, headers=headers).json()
    assert told["orchestra"]["stop"] == "time_limit" and told["usage"]["completion_tokens"] > 0
    assert told["orchestra"]["cost_usd"] > 0
    counted = re.findall(r"^orchestra_cost_usd_total.* (.+)$", gateway.telemetry.render().decode(), re.MULTILINE)
    assert sum(map(float, counted)) == pytest.approx(told["orchestra"]["cost_usd"])
    if keyed:
        assert float(gateway.keys.list()[0].spent_usd) == pytest.approx(told["orchestra"]["cost_usd"])


def test_waiting_for_others_ends_when_they_do(budgets: list[KeyBudget]) -> None:
    async def go() -> list[str]:
        said = []

        async def first() -> None:
            with budgets[0].hold(9 * CENT):
                await asyncio.sleep(0.1)
                budgets[0].book(charge(CENT))
                said.append("first")

        async def second() -> None:
            await asyncio.sleep(0.02)
            await budgets[1].room(5 * CENT)
            said.append("second")

        await asyncio.gather(first(), second())
        return said

    assert asyncio.run(go()) == ["first", "second"]


def test_what_a_killed_gateway_held_comes_back(budgets: list[KeyBudget], monkeypatch: pytest.MonkeyPatch) -> None:
    held = budgets[0].hold(9 * CENT)
    held.__enter__()  # and never ends
    with pytest.raises(BudgetError), budgets[1].hold(5 * CENT):
        pass
    now = time.time() + HOLD_S + 1
    monkeypatch.setattr(time, "time", lambda: now)
    with budgets[1].hold(5 * CENT):
        pass


def test_what_a_gateway_holds_stays_while_it_says_so(budgets: list[KeyBudget], monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time()
    with budgets[0].hold(9 * CENT):
        for minutes in range(1, 30):
            monkeypatch.setattr(time, "time", lambda minutes=minutes: began + 30.0 * minutes)
            renew_holds(budgets[0]._database)
            renew_holds(budgets[1]._database)
            with pytest.raises(BudgetError, match=r"0\.09 are held for calls under way"), budgets[1].hold(5 * CENT):
                pass
    with budgets[1].hold(5 * CENT):
        pass


def test_waiting_for_others_ends_after_some_seconds(budgets: list[KeyBudget], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "ROOM_S", 0.2)

    async def go() -> None:
        with budgets[0].hold(9 * CENT):
            async with asyncio.timeout(5):
                await budgets[1].room(5 * CENT)
            with pytest.raises(BudgetError, match="try again") as held, budgets[1].hold(5 * CENT):
                pass
            assert held.value.retryable
            # Where the money is gone, waiting helps nobody.
            with pytest.raises(BudgetError, match="a larger budget") as gone, budgets[1].hold(11 * CENT):
                pass
            assert not gone.value.retryable

    asyncio.run(go())


def test_nobody_waits_for_a_call_that_fits_or_that_no_end_makes_fit(budgets: list[KeyBudget]) -> None:
    async def go() -> None:
        with budgets[0].hold(4 * CENT):
            for worst_usd in (6 * CENT, 11 * CENT):
                async with asyncio.timeout(spending.ROOM_S / 2):
                    await budgets[1].room(worst_usd)

    asyncio.run(go())


def test_a_request_that_paid_waits_longer(budgets: list[KeyBudget], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "ROOM_S", 0.05)

    async def go() -> None:
        budgets[1].book(charge(CENT))
        with budgets[0].hold(8 * CENT):
            waiting = asyncio.ensure_future(budgets[1].room(5 * CENT))
            await asyncio.sleep(0.4)
            assert not waiting.done()
        async with asyncio.timeout(5):
            await waiting
        monkeypatch.setattr(spending, "PAID_ROOM_S", 0.1)
        with budgets[0].hold(8 * CENT):
            async with asyncio.timeout(5):
                await budgets[1].room(5 * CENT)

    asyncio.run(go())


def test_a_request_that_paid_waits_until_any_call_under_way_has_ended() -> None:
    files = [read_catalogue(ROOT / "data/catalogue" / name) for name in ("tools.yaml", "real.yaml", "current.yaml")]
    assert max(entry.deadline_s for file in files for entry in file.tools.values()) < spending.PAID_ROOM_S
    told = " ".join((ROOT / "docs/reference/serving.md").read_text(encoding="utf-8").split())
    assert f"request waits {spending.ROOM_S:g} s at most" in told
    assert f"for a turn waits {spending.PAID_ROOM_S / 60:g} minutes at most" in told


def test_without_a_budget_it_counts_only(tmp_path: Path) -> None:
    store = Database(tmp_path / "store.sqlite")
    keys = Keys(store)
    key, _ = keys.create("free")
    budget = KeyBudget(store, key.id)
    with budget.hold(Decimal(1000)):
        budget.book(charge(CENT))
    assert budget.cap_usd is None and keys.list()[0].spent_usd == CENT


DAY_S = 86_400


@pytest.mark.parametrize("period", PERIODS)
def test_nobody_is_told_to_wait_for_a_period_that_never_comes(period: Period, tmp_path: Path) -> None:
    store = Database(tmp_path / "store.sqlite")
    key, _ = Keys(store).create("team", budget_usd=CENT, period=period)
    with pytest.raises(BudgetError, match="a larger budget") as gone, KeyBudget(store, key.id).hold(2 * CENT):
        pass
    assert ("next period" in str(gone.value)) == (period != "total") and "held" not in str(gone.value)


@pytest.mark.parametrize(
    ("period", "later", "afresh"),
    [
        ("day", 600, False),
        ("day", DAY_S, True),
        ("month", DAY_S, False),
        ("month", 31 * DAY_S, True),
        ("total", 400 * DAY_S, False),
    ],
)
def test_a_budget_is_of_its_period(
    period: Period, later: int, afresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000.0  # 2023-11-14, 22:13 UTC
    monkeypatch.setattr(time, "time", lambda: now)
    store = Database(tmp_path / "store.sqlite")
    keys = Keys(store)
    key, _ = keys.create("team", budget_usd=10 * CENT, period=period)
    KeyBudget(store, key.id).book(charge(9 * CENT))
    now += later
    spent = Decimal(0) if afresh else 9 * CENT
    assert keys.list()[0].spent_usd == spent
    with KeyBudget(store, key.id).hold(10 * CENT - spent):
        pass
    with pytest.raises(BudgetError), KeyBudget(store, key.id).hold(10 * CENT - spent + CENT / 100):
        pass
    KeyBudget(store, key.id).book(charge(CENT))
    assert keys.list()[0].spent_usd == spent + CENT


def test_what_killed_gateways_held_back_leaves_the_store(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite")
    key, _ = Keys(database).create("team", budget_usd=10 * CENT)
    with database.change() as store:
        rows = [(key.id, "0.09", time.time() - 1), *[(key.id, "0.09", time.time() - FORGET_S - 1)] * 5]
        store.executemany("INSERT INTO holds (key, usd, until) VALUES (?, ?, ?)", rows)
    with KeyBudget(database, key.id).hold(CENT):
        pass
    with database.look() as store:
        assert store.execute("SELECT count(*) FROM holds").fetchone() == (1,)
