"""What a provider bills is booked and capped at its list price, whatever price an example has drawn."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget, SpendingCap
from orchestra.accounting.ledger import cost_of
from orchestra.errors import BudgetError, ToolError
from orchestra.serving.shared.database import Database
from orchestra.serving.shared.keys import Keys
from orchestra.serving.shared.spending import KeyBudget
from orchestra.tools.base import ToolContext, ToolResult, result_of, spent_until
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.failures import DeadlineError
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import OVERHEAD_TOKENS
from orchestra.types import Charge, Component, Price, ToolCall, Usage
from tests.support.endpoint import Double, answer, serving
from tests.support.experts import expert, real
from tests.support.worlds import catalogue, example, toolkit

LARGE_USAGE = Usage(input_tokens=400, output_tokens=500)
LARGE = answer("Kelmar") | {"usage": {"prompt_tokens": 400, "completion_tokens": 500}}


def tavily() -> Entry:
    """A search of the web."""
    settings = {"implementation": "web_search", "provider": "tavily", "price": "tavily/search-basic"}
    return expert(component=Component.SEARCH, parameters=catalogue().entry("search").parameters, **settings)


def call(kit: Toolkit, name: str, factor: float, arguments: dict[str, Any] | None = None) -> ToolOutcome:
    """One call in an episode whose tools cost so many times their list prices."""

    async def once() -> ToolOutcome:
        box = [kit.catalogue.spec(tool, price_factor=factor) for tool in ("real", "search", "gpt-5")]
        session = ToolSession(kit, example(toolbox=box))
        try:
            return await session.call(ToolCall(name=name, arguments=arguments or {"question": "who wrote Opal?"}))
        finally:
            session.close()
            await kit.aclose()

    return asyncio.run(once())


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_the_ledger_holds_the_bill_and_the_episode_its_own_price(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float
) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", None)
    with serving([(0, None, 0), (200, LARGE, 0)]) as double:
        limits = ProviderLimits(attempts=2)
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, None, budget, real=expert())
        outcome = call(kit, "real", factor)
    listed, drawn = kit.catalogue.prices["real"], kit.catalogue.spec("real", price_factor=factor).price
    charges = (outcome.charge, *outcome.besides)
    assert len(charges) == 2 and [one.cost_usd for one in charges] == [cost_of(drawn, one.usage) for one in charges]
    assert budget.spent_usd == sum(cost_of(listed, one.usage) for one in charges)


def test_a_cap_keeps_the_bill_under_it_where_examples_drew_a_fifth_of_the_price(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal("0.02"))
    with serving(lambda _: (200, LARGE, 0)) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, None, None, budget, real=expert())
        with pytest.raises(BudgetError, match=r"of 0\.02 USD are spent"):
            for _ in range(100):
                call(kit, "real", 0.2)
        bill = len(double.asked) * cost_of(kit.catalogue.prices["real"], LARGE_USAGE)
    assert Decimal("0.0015") < bill == budget.spent_usd <= Decimal("0.02")


def test_a_reply_that_comes_too_late_is_booked_at_its_worst(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The session's own deadline would know only of a price per call, and an expert has none."""
    budget = Budget(tmp_path / "ledger.jsonl", None)
    with serving([(200, LARGE, 1.0)]) as double:
        limits = ProviderLimits(attempts=1)
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, None, budget, real=expert(deadline_s=0.3))
        with pytest.raises(DeadlineError):
            call(kit, "real", 1.0)
    assert budget.spent_usd >= cost_of(kit.catalogue.prices["real"], Usage(output_tokens=500)) > 0


def give_up(kit: Toolkit, double: Double, arguments: dict[str, Any], budget: SpendingCap, at_once: int = 1) -> None:
    """Call `real`, and leave once its provider was asked; as Ctrl-C, a client that hangs up, and a request's own
    deadline do."""

    async def once() -> None:
        session = ToolSession(kit, example(toolbox=[kit.catalogue.spec("real", price_factor=0.2)]), budget=budget)
        asked = ToolCall(name="real", arguments=arguments)
        calls = [asyncio.ensure_future(session.call(asked)) for _ in range(at_once)]
        while not double.asked:
            await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
        assert all(
            isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*calls, return_exceptions=True)
        )
        session.close()
        await kit.aclose()

    asyncio.run(once())
    assert len(double.asked) == 1


def test_an_expert_s_call_that_is_given_up_is_booked_once_at_its_worst(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a run's ledger, and in what a key of the gateway has spent."""
    keys = Keys(store := Database(tmp_path / "store.sqlite"))
    run, of_key = Budget(tmp_path / "ledger.jsonl", Decimal(1)), keys.create("team", budget_usd=Decimal(1))[0]
    budgets: list[SpendingCap] = [run, KeyBudget(store, of_key.id)]
    for budget in budgets:
        with serving([(200, LARGE, 5.0)]) as double:
            kit = real(monkeypatch, toolkit(tmp_path), double, real=expert())
            give_up(kit, double, {"question": "who wrote Opal?"}, budget)
            sent = len(json.dumps(double.asked[0])) - len('"model": "real", ')
    worst = Usage(input_tokens=sent + OVERHEAD_TOKENS, output_tokens=500)
    assert run.spent_usd == keys.list()[0].spent_usd == cost_of(kit.catalogue.prices["real"], worst) > 0


def test_a_code_writer_s_reply_is_booked_once_before_its_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was booked at the end of the call: not after a kill, and again where the program is all that is asked."""
    entry, tape = expert(role="code writer", hands_to="python"), tmp_path / "tape.jsonl"
    first, second = (Budget(tmp_path / f"{name}.jsonl", None) for name in ("first", "second"))
    program = answer("```python\nimport time\ntime.sleep(0.5)\nprint(6 * 7)\n```")

    async def killed(kit: Toolkit) -> None:
        session = ToolSession(kit, example(toolbox=[kit.catalogue.spec("real")]))
        call = asyncio.ensure_future(session.call(ToolCall(name="real", arguments={"question": "6 * 7?"})))
        while Component.EXPERT not in first.by_component():
            await asyncio.sleep(0.02)
        assert not call.done()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        session.close()
        await kit.aclose()

    with serving([(200, program, 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, None, Cassette(tape), first, real=entry)
        asyncio.run(killed(kit))
        kit = real(monkeypatch, toolkit(tmp_path), double, None, Cassette(tape), second, real=entry)
        outcome = call(kit, "real", 1.0, {"question": "6 * 7?"})
        assert outcome.text == "42" and len(double.asked) == 1
    assert first.by_component()[Component.EXPERT].calls == 1
    assert [*second.by_component()] == [Component.SANDBOX] and outcome.charge.cost_usd > 0


def test_a_search_that_is_given_up_is_booked_once_it_was_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What waited for the provider's limits costs nothing."""
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    with serving([(200, {"results": []}, 5.0)]) as double:
        limits = ProviderLimits(concurrency=1)
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, real=tavily())
        give_up(kit, double, {"query": "Norvik"}, budget, at_once=2)
    assert budget.spent_usd == kit.catalogue.prices["real"].per_call > 0


def test_a_tool_of_the_user_s_own_that_is_given_up_is_booked_at_its_price(tmp_path: Path) -> None:
    class Waits:
        component = Component.SEARCH

        async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            await asyncio.sleep(60)
            return ToolResult(text="late")

    async def once() -> tuple[Charge, ...]:
        context = ToolContext("", Price(per_call=Decimal("0.01")), 1.0, name="mine")
        task = asyncio.ensure_future(result_of(Waits(), {}, context))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as given_up:
            await task
        return spent_until(given_up.value)

    assert asyncio.run(once()) == (Charge(component=Component.SEARCH, name="mine", cost_usd=Decimal("0.01")),)


def test_a_search_that_fails_is_booked_at_its_list_price_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    with serving([(200, {"other": 1}, 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, None, None, budget, real=tavily())
        with pytest.raises(ToolError, match="another shape") as error:
            call(kit, "real", 0.2, {"query": "Norvik"})
    (drawn,) = error.value.charges
    assert budget.spent_usd == kit.catalogue.prices["real"].per_call == 5 * drawn.cost_usd > 0


def test_simulated_experts_and_our_own_tools_are_booked_at_the_example_s_price(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    kit = real(monkeypatch, toolkit(tmp_path), None, None, None, budget, real=expert())
    found = [call(kit, "gpt-5", 0.2), call(kit, "search", 0.2, {"query": "Norvik"})]
    assert budget.spent_usd == sum(one.charge.cost_usd for one in found) > 0
