"""What a turn of the policy costs, and that it is asked for only under the cap, and booked once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.errors import BudgetError
from orchestra.rollout.charges import least, paid_turns, policy_charge, worst_turn_usd
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing
from orchestra.types import Charge, Component, Price, Usage
from tests.support.worlds import example

PRICE = Price(
    input_per_million=Decimal(1000), cached_input_per_million=Decimal(100), output_per_million=Decimal(10_000)
)
WORST = Decimal("0.13")
"""Of 30 tokens read and 10 written."""


def begun() -> Conversation:
    return Conversation(example("e"), [5] * 30)


def written(**update: Any) -> Generation:
    return replace(Generation([7] * 4, [], "stop", cached_tokens=20), **update)


class Writes(KeepsNothing):
    name, by_episode = "writes", True

    def __init__(self, *turns: Generation) -> None:
        self.turns, self.asked = turns, 0

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        self.asked += 1
        return list(self.turns)


def test_a_turn_costs_its_tokens_as_the_endpoint_counts_them_or_as_they_are_here() -> None:
    here, counted = Usage(input_tokens=30, cached_input_tokens=20, output_tokens=4), Usage(input_tokens=9)
    charge = policy_charge(begun(), written(), PRICE)
    assert (charge.usage, charge.cost_usd, charge.latency_s) == (here, Decimal("0.052"), 0.04)
    charge = policy_charge(begun(), written(usage=counted, seconds=2.5), PRICE)
    assert (charge.usage, charge.cost_usd, charge.latency_s) == (counted, Decimal("0.009"), 2.5)
    assert policy_charge(begun(), written(seconds=0.0), PRICE).latency_s == 0.0


def test_the_worst_of_a_turn_reads_nothing_from_a_cache_and_is_the_endpoint_s_where_it_counts() -> None:
    assert worst_turn_usd(begun(), 10, PRICE) == worst_turn_usd(begun(), 10, PRICE, Writes()) == WORST
    policy = Writes()
    policy.worst_usage = lambda conversation, most: Usage(input_tokens=conversation.length + most)  # type: ignore[attr-defined]
    assert worst_turn_usd(begun(), 10, PRICE, policy) == cost_of(PRICE, Usage(input_tokens=40))


def test_the_least_of_the_caps_that_there_are_holds() -> None:
    one, two = Decimal(1), Decimal(2)
    assert (least(None, two, one), least(two, None), least(None), least()) == (one, two, None, None)


def pay(policy: Writes, budget: Budget | None) -> list[tuple[Generation, Charge]]:
    return asyncio.run(paid_turns(policy, [begun() for _ in policy.turns], [10] * len(policy.turns), PRICE, budget))


def test_what_a_cassette_gave_is_charged_and_not_booked(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "l.jsonl", None)
    turns = written(), written(replayed=True)
    paid = pay(Writes(*turns), budget)
    assert [(made, charge.cost_usd) for made, charge in paid] == [(one, Decimal("0.052")) for one in turns]
    assert budget.spent_usd == Decimal("0.052") and budget.by_component()[Component.POLICY].calls == 1
    assert pay(Writes(*turns), None) == paid


@pytest.mark.parametrize(("cap", "asked"), [(2 * WORST, 1), (2 * WORST - Decimal("0.01"), 0)])
def test_turns_are_asked_for_where_all_of_them_fit_at_their_worst(tmp_path: Path, cap: Decimal, asked: int) -> None:
    policy = Writes(written(), written())
    try:
        pay(policy, Budget(tmp_path / "l.jsonl", cap))
    except BudgetError:
        assert not asked
    assert policy.asked == asked


def test_turns_wait_while_only_what_is_held_stands_before_the_cap(tmp_path: Path) -> None:
    policy, budget = Writes(written()), Budget(tmp_path / "l.jsonl", WORST)

    async def go() -> None:
        with budget.hold(WORST / 2):
            turn = asyncio.ensure_future(paid_turns(policy, [begun()], [10], PRICE, budget))
            for _ in range(9):
                await asyncio.sleep(0)
            assert not policy.asked
        async with asyncio.timeout(60):
            await turn

    asyncio.run(go())
    assert policy.asked == 1 and budget.spent_usd == Decimal("0.052")
