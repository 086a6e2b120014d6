"""Budgets that are told: who gets one, what it is, what the prompt says, and how the loop keeps to it."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.ledger import cost_of
from orchestra.config.schema import Rollout
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.tools.toolkit import Toolkit
from orchestra.training.grpo.budgets import ROOM, with_budgets
from orchestra.types import Charge, Component, Episode, Example, StopReason, Usage, User
from tests.support.scripts import LIMITS, call, says
from tests.support.worlds import NEUTRAL, PRICE, codec, example, toolkit

OWN = cost_of(PRICE, Usage(input_tokens=2 * LIMITS.max_tokens, output_tokens=2 * LIMITS.max_turn_tokens))
ASKED = example(instruction="who wrote Opal?", answer="Tesk")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


def told(count: int, share: float, seed: int = 0) -> list[Example]:
    return with_budgets([example(f"e{i}") for i in range(count)], share, seed, LIMITS, PRICE)


def test_a_share_of_the_examples_is_told_a_budget_between_the_cheapest_and_the_most_expensive_expert() -> None:
    costs = [float(spec.call_usd) for spec in example().toolbox if spec.kind == "expert"]
    budgets = [one.budget_usd for one in told(400, 0.5)]
    given_ = [float(usd) for usd in budgets if usd is not None]
    assert 160 < len(given_) < 240
    assert min(given_) >= float(OWN) + ROOM * min(costs) - 1e-4 and max(given_) <= float(OWN) + ROOM * max(costs) + 1e-4
    # Log-uniform: as many below the geometric mean as above it.
    middle = float(OWN) + ROOM * (min(costs) * max(costs)) ** 0.5
    assert 0.4 < sum(usd < middle for usd in given_) / len(given_) < 0.6
    # What is told is what is kept to: no more places than a prompt shows.
    assert all(usd is None or usd == round(usd, 4) for usd in budgets)


def test_budgets_reach_from_the_cheapest_of_several_experts_to_the_most_expensive() -> None:
    (spec,) = [one for one in example().toolbox if one.name == "gpt-5"]

    def drawn(*usd: str) -> list[Decimal | None]:
        box = [spec.model_copy(update={"name": f"x{one}", "call_usd": Decimal(one)}) for one in usd]
        return [
            one.budget_usd
            for one in with_budgets([example(f"e{i}", toolbox=box) for i in range(300)], 1.0, 0, LIMITS, PRICE)
        ]

    calls = [(float(usd - OWN) / 1.5) for usd in drawn("0.4", "0.1", "0.2") if usd is not None]
    assert len(calls) == 300 and min(calls) + 1e-4 >= 0.1 and min(calls) < 0.105 and 0.38 < max(calls) <= 0.4 + 1e-4
    # An expert that costs nothing leaves no lower end.
    assert drawn("0", "0.1") == drawn() == [None] * 300


def test_the_draw_depends_on_seed_and_example_alone_and_0_changes_nothing() -> None:
    assert told(20, 0.5) == told(40, 0.5)[:20]
    assert told(20, 0.5) != told(20, 0.5, seed=1)
    assert told(20, 0.0) == [example(f"e{i}") for i in range(20)]
    own = example().model_copy(update={"budget_usd": Decimal("0.5")})
    assert with_budgets([own], 1.0, 0, LIMITS, PRICE) == [own]


def test_an_example_without_a_budget_keeps_its_bytes_and_its_prompt() -> None:
    one = example(preference=NEUTRAL.model_copy(update={"words": "keep it cheap."}))
    assert "budget_usd" not in one.model_dump_json()
    plain = codec().prompt(one)
    rich = codec().prompt(one.model_copy(update={"budget_usd": Decimal("0.0123")}))
    assert rich != plain
    assert codec().decode(rich).replace("\nspend at most $0.0123.", "") == codec().decode(plain)
    silent = codec().decode(codec().prompt(example().model_copy(update={"budget_usd": Decimal(2)})))
    assert "spend at most $2.0000." in silent


def spend(tools: Toolkit, item: Example, limits: Rollout = LIMITS, budget: str | None = None) -> Episode:
    policy, cap = says(call("gpt-5"), "Tesk"), None if budget is None else Decimal(budget)
    options = RolloutOptions(limits, PRICE, budget_usd=cap)
    return asyncio.run(run_episodes([item], policy, codec(), tools, options))[0]


def test_the_loop_keeps_to_the_smaller_of_the_told_budget_and_the_caller_s(tools: Toolkit) -> None:
    poor, rich = (ASKED.model_copy(update={"budget_usd": Decimal(usd)}) for usd in ("0.01", "1"))
    assert spend(tools, poor).stop is spend(tools, poor, budget="1").stop is StopReason.BUDGET
    assert spend(tools, rich, budget="0.01").stop is StopReason.BUDGET
    assert spend(tools, rich).stop is spend(tools, ASKED).stop is StopReason.ANSWERED


@settings(deadline=None, max_examples=20)
@given(thousandths=st.integers(0, 120))
def test_no_solved_episode_costs_more_than_its_told_budget(tools: Toolkit, thousandths: int) -> None:
    budget = Decimal(thousandths) / 1000
    made = spend(tools, ASKED.model_copy(update={"budget_usd": budget}))
    assert not made.solved or made.cost_usd <= budget


class Expensive:
    """A user whose replies cost a dollar, which nobody knows before."""

    async def reply(self, user: User, instruction: str, question: str) -> tuple[str, Charge | None]:
        return "Brin", Charge(component=Component.USER, name="user", cost_usd=Decimal(1))


@pytest.mark.parametrize(("budget", "why"), [(None, "right"), ("2", "right"), ("0.5", "over budget")])
def test_an_episode_that_cost_more_than_was_told_is_not_solved(tools: Toolkit, budget: str | None, why: str) -> None:
    user = User(facts={"reader": "Brin"})
    usd = None if budget is None else Decimal(budget)
    item = example(answer="888").model_copy(update={"user": user, "budget_usd": usd})
    free = PRICE.model_copy(update={"input_per_million": Decimal(0), "output_per_million": Decimal(0)})
    policy = says("which reader?", "888")
    options = RolloutOptions(LIMITS, free, user=Expensive())
    made = asyncio.run(run_episodes([item], policy, codec(), tools, options))[0]
    assert made.verdict is not None
    assert (made.verdict.solved, made.verdict.why) == (why == "right", why)


@pytest.mark.parametrize("tell", [False, True])
def test_a_cap_is_told_where_the_parameters_say_so(tools: Toolkit, tell: bool) -> None:
    limits = LIMITS.model_copy(update={"budget_usd": 0.5, "tell_budget": tell})
    made = spend(tools, ASKED, limits, budget="0.25")
    assert ("spend at most $0.2500." in codec().decode(made.prompt_ids)) == tell
    assert "tell_budget" not in LIMITS.model_dump()
