"""How an episode ends (the numbered rules: test_loop.py)."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.ledger import phase
from orchestra.config.schema import Rollout
from orchestra.errors import ConfigError, DataError
from orchestra.rollout.loop import RolloutOptions, rollout, run_episodes
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, StopReason
from tests.support.scripts import LIMITS, RIGHT, SUM, Typist, call, play, says
from tests.support.worlds import PRICE, catalogue, codec, example


def test_01_an_answer_ends_the_episode_and_is_judged(tools: Toolkit) -> None:
    run = play(tools, says(SUM, RIGHT))
    assert (run.stop, run.answer, run.solved) == (StopReason.ANSWERED, "888", True)
    assert [t.observation for t in run.turns] == ["888", None]
    assert run.turns[1].observation_ids == ()
    wrong = play(tools, says("887"))
    assert (wrong.stop, wrong.solved, wrong.counted) == (StopReason.ANSWERED, False, True)


def test_02_the_turn_limit_ends_the_episode_unsolved(tools: Toolkit) -> None:
    run = play(tools, says(SUM))
    assert (run.stop, len(run.turns), run.answer) == (StopReason.TURN_LIMIT, 4, None)
    assert run.verdict is not None
    assert (run.verdict.solved, run.verdict.why) == (False, "turn_limit")


def test_03_a_turn_that_does_not_end_is_the_token_limit(tools: Toolkit) -> None:
    run = play(tools, Typist("8" * 50), limits=Rollout(max_turns=4, max_turn_tokens=10, max_tokens=4000))
    assert (run.stop, run.answer, run.solved) == (StopReason.TOKEN_LIMIT, None, False)
    assert [len(t.ids) for t in run.turns] == [10]
    assert run.turns[0].parse_error == "the turn did not end"


@pytest.mark.parametrize("spare", range(0, 200, 7))
def test_04_no_episode_outgrows_its_token_limit(tools: Toolkit, spare: int) -> None:
    limit = len(codec().prompt(example())) + spare
    run = play(tools, Typist(SUM), limits=Rollout(max_turns=50, max_turn_tokens=400, max_tokens=limit))
    assert run.stop is StopReason.TOKEN_LIMIT
    assert len(run.prompt_ids) + len(run.completion_ids) <= limit
    assert run.verdict is not None


def test_05_a_prompt_beyond_the_token_limit_has_no_turn(tools: Toolkit) -> None:
    long = example("long", instruction="how " * 500)
    limits = Rollout(max_turns=4, max_turn_tokens=400, max_tokens=450)
    first, second = rollout([long, example()], says(RIGHT), codec(), tools, RolloutOptions(limits, PRICE))
    assert (first.stop, first.turns, first.solved) == (StopReason.TOKEN_LIMIT, (), False)
    assert second.solved


def test_06_two_unreadable_turns_in_a_row_are_malformed(tools: Toolkit) -> None:
    run = play(tools, says("<tool_call>\n{", ""))
    assert (run.stop, len(run.turns), run.solved) == (StopReason.MALFORMED, 2, False)
    assert run.turns[0].observation == "error: <tool_call> is not closed"
    assert run.turns[0].observation_ids
    assert run.turns[1].observation_ids == ()
    assert all(t.call is None and t.parse_error for t in run.turns)


def test_07_one_unreadable_turn_can_be_repaired(tools: Toolkit) -> None:
    run = play(tools, says("", SUM, "", RIGHT))
    assert (run.stop, run.solved, len(run.turns)) == (StopReason.ANSWERED, True, 4)
    assert [bool(t.parse_error) for t in run.turns] == [True, False, True, False]


def test_11_a_call_that_could_cross_the_budget_is_not_made(tools: Toolkit) -> None:
    item = example(instruction="who wrote Opal?", answer="Tesk")
    spec = catalogue().spec("gpt-5")

    async def spend(budget: str) -> Episode:
        policy = says(call("gpt-5"), "Tesk")
        options = RolloutOptions(LIMITS, PRICE, budget_usd=Decimal(budget))
        made = await run_episodes([item], policy, codec(), tools, options)
        return made[0]

    poor = asyncio.run(spend("0.01"))
    assert (poor.stop, len(poor.turns), poor.solved, poor.counted) == (StopReason.BUDGET, 1, False, True)
    assert poor.cost_usd < Decimal("0.01") < spec.call_usd
    assert poor.tool_counts == {}
    shown = asyncio.run(spend(str(spec.call_usd + Decimal("0.001"))))
    assert (shown.stop, shown.tool_counts) == (StopReason.BUDGET, {}), "its reply may be longer than expected"
    assert asyncio.run(spend("1")).stop is StopReason.ANSWERED
    nothing = asyncio.run(spend("0"))
    assert (nothing.stop, nothing.turns, nothing.cost_usd) == (StopReason.BUDGET, (), Decimal(0))


@given(thousandths=st.integers(0, 120))
@settings(deadline=None, max_examples=30)
def test_no_episode_costs_more_than_its_budget(tools: Toolkit, thousandths: int) -> None:
    budget = Decimal(thousandths) / 1000
    item = example(instruction="who wrote Opal?", answer="Tesk")

    async def spend() -> Episode:
        policy = says(call("gpt-5"), call("gpt-5"), call("gpt-5"), "Tesk")
        options = RolloutOptions(LIMITS, PRICE, budget_usd=budget)
        return (await run_episodes([item], policy, codec(), tools, options))[0]

    assert asyncio.run(spend()).cost_usd <= budget


def test_14_an_outcome_that_cannot_be_known_is_no_zero(tools: Toolkit) -> None:
    run = play(tools, says("anything"), example(kind="judge"))
    assert (run.stop, run.verdict, run.counted) == (StopReason.ANSWERED, None, False)


def test_17_the_world_is_closed_when_something_breaks(tools: Toolkit) -> None:
    with pytest.raises(DataError, match="without a domain"):
        play(tools, says("x"), example(kind="database"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": -1}, {"samples": -1}, {"samples": [1, -1]}, {"budget_usd": Decimal("NaN")},
        {"budget_usd": Decimal(-1)}, {"budget_usd": Decimal("Infinity")},
    ],
)  # fmt: skip
def test_numbers_that_no_run_can_keep_to_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="RolloutOptions"):
        RolloutOptions(LIMITS, PRICE, **wrong)


@pytest.mark.parametrize("few", [{"samples": [1]}, {"prompts": [[1]]}])
def test_samples_and_prompts_are_as_many_as_the_examples(tools: Toolkit, few: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not as many as the examples"):
        rollout([example(), example("e2")], says(RIGHT), codec(), tools, RolloutOptions(LIMITS, PRICE, **few))


def test_a_caller_in_a_running_loop_waits_for_episodes_as_in_a_notebook(tools: Toolkit) -> None:
    async def cell() -> Episode:
        with phase("notebook"):
            return rollout([example()], says(RIGHT), codec(), tools, RolloutOptions(LIMITS, PRICE))[0]

    assert asyncio.run(cell()) == play(tools, says(RIGHT))
