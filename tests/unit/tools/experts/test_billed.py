"""What a provider bills is booked and capped at its list price, whatever price an example has drawn."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.errors import BudgetError, ToolError
from orchestra.tools.failures import DeadlineError
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, ToolCall, Usage
from tests.support.endpoint import answer, serving
from tests.support.experts import expert, real
from tests.support.worlds import catalogue, example, toolkit

LARGE_USAGE = Usage(input_tokens=400, output_tokens=500)
LARGE = answer("Kelmar") | {"usage": {"prompt_tokens": 400, "completion_tokens": 500}}


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


def test_a_call_that_is_given_up_is_booked_at_its_worst_once_it_was_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Ctrl-C, a client that hangs up, and a request's own deadline do."""
    budget = Budget(tmp_path / "ledger.jsonl", None)
    with serving([(200, LARGE, 0), (200, LARGE, 5.0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, ProviderLimits(attempts=1), None, budget, real=expert())

        async def given_up() -> None:
            session = ToolSession(kit, example(toolbox=[kit.catalogue.spec("real")]))
            asked = ToolCall(name="real", arguments={"question": "who wrote Opal?"})
            await session.call(asked)
            before = budget.spent_usd
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await session.call(asked)
            assert len(double.asked) == 2
            assert budget.spent_usd - before >= cost_of(kit.catalogue.prices["real"], Usage(output_tokens=500)) > 0
            session.close()
            await kit.aclose()

        asyncio.run(given_up())


def test_a_search_that_fails_is_booked_at_its_list_price_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    tavily = {"implementation": "web_search", "provider": "tavily", "price": "tavily/search-basic"}
    entry = expert(component=Component.SEARCH, parameters=catalogue().entry("search").parameters, **tavily)
    with serving([(200, {"other": 1}, 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, None, None, budget, real=entry)
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
