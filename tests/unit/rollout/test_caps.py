"""Caps of dollars over the loop: one budget for the policy and for every tool, whoever runs it."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import total
from orchestra.config.schema import Rollout
from orchestra.errors import BudgetError, ConfigError, ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.tools.base import Tool, ToolContext, ToolResult
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.experts.simulated import SimulatedExpert
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import worst_usd
from orchestra.types import Charge, Component, Episode, StopReason, ToolKind
from tests.support.scripts import LIMITS, RIGHT, SUM, call, play, says
from tests.support.worlds import PRICE, catalogue, codec, example, toolkit

ASK = (call("gpt-5"), "Tesk")


@pytest.fixture
def tools(tmp_path: Path) -> Toolkit:
    return toolkit(tmp_path)


def run(tools: Toolkit, count: int, limits: Rollout = LIMITS) -> list[Episode]:
    items = [example(f"e{n}", instruction="who wrote Opal?", answer="Tesk") for n in range(count)]
    return rollout(items, says(*ASK), codec(), tools, RolloutOptions(limits, PRICE))


def capped(folder: Path, cap: str | None, **more: Any) -> tuple[Toolkit, Budget]:
    """Tools under a cap, whose ledger is in the folder."""
    budget = Budget(folder / "ledger.jsonl", None if cap is None else Decimal(cap), "evaluate")
    return toolkit(folder, budget=budget, **more), budget


def test_the_ledger_holds_what_the_episodes_say_by_phase_and_component(tmp_path: Path) -> None:
    tools, booked = capped(tmp_path, None)
    found = [*run(tools, 3), play(tools, says(SUM, RIGHT))]
    charges = [charge for one in found for charge in one.charges]
    assert booked.spent_usd == sum((one.cost_usd for one in found), Decimal(0)) == total(charges)
    assert booked.by_phase().keys() == {"evaluate/script"}
    assert {name: part.calls for name, part in booked.by_component().items()} == {
        Component.POLICY: 8, Component.EXPERT: 3, Component.SANDBOX: 1,
    }  # fmt: skip
    assert all(charge.phase == "" for charge in charges)  # Episodes are what they were.


class Slow:
    """An expert that others overtake."""

    component = Component.EXPERT

    def __init__(self, expert: Tool) -> None:
        self.expert = expert

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        await asyncio.sleep(0.01)
        return await self.expert.call(arguments, context)


@pytest.mark.parametrize("cap", ["0.2", "0.3", "0.5"])
def test_calls_that_run_at_once_cannot_cross_the_cap_together(tmp_path: Path, cap: str) -> None:
    """Twenty calls of $0.078 at most start together: those let through are finished and booked, others wait for
    what they leave, and the run ends when the next could cross."""
    plain, most = toolkit(tmp_path), Decimal("0.07738")
    tools, held = capped(tmp_path, cap, tools={"gpt-5": Slow(plain.tool("gpt-5"))})
    with pytest.raises(BudgetError, match=rf"of {cap} USD are spent, and the next call could cost 0.07738"):
        run(tools, 20)
    assert 0 < held.spent_usd <= Decimal(cap)
    assert total(read_jsonl(tmp_path / "ledger.jsonl", Charge)) == held.spent_usd
    assert Decimal(cap) - held.spent_usd < most
    assert held.by_component()[Component.EXPERT].calls >= int(Decimal(cap) / most)
    held.check(Decimal(cap) - held.spent_usd)  # Nothing is held any more.
    with pytest.raises(BudgetError):  # A later run goes on with the ledger.
        capped(tmp_path, cap)[1].check(Decimal("0.1"))


def test_the_policy_s_own_tokens_are_capped_too(tmp_path: Path) -> None:
    tools, held = capped(tmp_path, "0.000001")
    with pytest.raises(BudgetError):
        play(tools, says(RIGHT))
    assert held.spent_usd == 0 and not (tmp_path / "ledger.jsonl").exists()


def test_an_episode_s_cap_of_the_parameters_ends_the_episode_only(tools: Toolkit) -> None:
    poor = LIMITS.model_copy(update={"budget_usd": 0.01})
    assert [one.stop for one in run(tools, 2, poor)] == [StopReason.BUDGET] * 2
    assert run(tools, 1, LIMITS.model_copy(update={"budget_usd": 1.0}))[0].stop is StopReason.ANSWERED
    assert "budget_usd" not in LIMITS.model_dump()  # What decides no score changes no hash.


@pytest.mark.parametrize("name", catalogue().names(ToolKind.EXPERT))
def test_no_simulated_call_costs_more_than_was_held_for_it(tools: Toolkit, name: str) -> None:
    entry, spec = catalogue().entry(name), catalogue().spec(name, price_factor=1.7)
    spec = spec.model_copy(update={"price": spec.price.model_copy(update={"per_second": Decimal("0.001")})})
    expert, most = SimulatedExpert(name, entry, tools.book), worst_usd(spec, entry, 0)
    context = ToolContext("?", spec.price, spec.latency_s)
    costs = [asyncio.run(expert.call({"question": f"q{n}"}, context)).cost_usd for n in range(60)]
    assert max(costs) <= most < Decimal("1.26") / Decimal("0.75") * min(costs)


def endpoint(**update: Any) -> Catalogue:
    """The shipped catalogue with gpt-5 behind an endpoint."""
    shipped = catalogue()
    entry = shipped.entry("gpt-5").model_copy(
        update={"implementation": "openai", "base_url_env": "X", "endpoint_model": "m", "simulated": None, **update}
    )
    entries = {**shipped.entries, "gpt-5": entry}
    return Catalogue(
        shipped.topics, entries, shipped.prices, shipped.domain_tool, shipped.domain_price, shipped.policy_price
    )


def test_a_real_expert_s_worst_is_every_byte_read_and_all_it_may_write() -> None:
    spec = catalogue().spec("gpt-5")
    assert worst_usd(spec, endpoint(max_output_tokens=1000).entry("gpt-5"), 800, 3) == Decimal("0.0125") * 3
    with pytest.raises(ConfigError, match=r"give tools\.gpt-5 max_output_tokens"):
        worst_usd(spec, endpoint().entry("gpt-5"), 800)


def test_a_simulated_service_fails_always_at_the_same_questions(tools: Toolkit) -> None:
    entry = catalogue().entry("gpt-5")
    assert entry.simulated is not None and entry.simulated.failures == 0
    shaky = entry.model_copy(update={"simulated": entry.simulated.model_copy(update={"failures": 0.3})})
    expert, spec = SimulatedExpert("gpt-5", shaky, tools.book), catalogue().spec("gpt-5")

    def fails(question: str) -> bool:
        try:
            asyncio.run(expert.call({"question": question}, ToolContext("?", spec.price, spec.latency_s)))
        except ToolError as failure:
            return "simulated" in str(failure)
        return False

    found = [fails(f"q{n}") for n in range(300)]
    assert sum(found) / 300 == pytest.approx(0.3, abs=0.08) and found == [fails(f"q{n}") for n in range(300)]


def test_the_policy_cannot_call_a_barred_tool_either(tools: Toolkit) -> None:
    item, policy = example(instruction="who wrote Opal?", answer="Tesk"), says(call("gpt-5"), RIGHT)
    for budget_usd in (None, Decimal(1)):
        options = RolloutOptions(LIMITS, PRICE, barred=frozenset({"gpt-5"}), budget_usd=budget_usd)
        (made,) = rollout([item], policy, codec(), tools, options)
        assert made.turns[0].observation == "error: gpt-5 may not be called here" and made.tool_counts == {}
        assert made.stop is StopReason.ANSWERED
