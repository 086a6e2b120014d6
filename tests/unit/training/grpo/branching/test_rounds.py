"""Branched groups in rounds and in a whole training."""

import asyncio
import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from orchestra.config.reward import Branch
from orchestra.rewards.group import Reward
from orchestra.tools.toolkit import Toolkit
from orchestra.training.grpo.branching.plan import first_turns
from orchestra.training.grpo.rollouts import Rounds, _open
from orchestra.training.grpo.trainer import train_grpo
from tests.support.worlds import PRICE, codec, same
from tests.unit.training.grpo.branching.world import (
    AT_NAME,
    AT_WORD,
    GREEDY,
    LIMITS,
    SIZE,
    WORDS,
    planned,
    policy,
    question,
    taught,
)
from tests.unit.training.grpo.test_trainer import SETTINGS, Killed, Logs


def train(tools: Toolkit, work: Path, branch: Branch, stop_at: int = 0) -> tuple[PreTrainedModel, Any, Logs]:
    settings = SETTINGS.model_copy(update={"branch": branch, "scale": "none", "learning_rate": 1e-3, "eval_every": 4})
    model, logs = copy.deepcopy(taught()), Logs()

    def log(metrics: dict[str, float], step: int) -> None:
        logs[step, "train"] = {k: v for k, v in metrics.items() if k.startswith("train/") and k != "train/step_time"}
        if step == stop_at:
            raise Killed

    items = [question(f"e{i}") for i in range(4)]
    arguments = (codec(), tools, items, settings, LIMITS, PRICE, work, log, lambda _: {"x": 1.0})
    return model, train_grpo(model, *arguments), logs


def test_what_follows_a_choice_can_be_greedy(tools: Toolkit) -> None:
    settings = SETTINGS.model_copy(update={"branch": GREEDY})
    for seed in range(10):
        acting = policy()
        acting.seed = seed
        rounds = Rounds({"e1": question()}, codec(), tools, LIMITS, PRICE, settings, acting)
        (group,), (found,) = rounds._episodes([question()])
        if found is not None:
            break
    assert found is not None and acting.temperature == 1.0
    # Four episodes of three choices: nothing is drawn after a choice, so the fourth is a copy that counts nothing.
    texts = [[turn.text for turn in one.turns] for one in group]
    assert texts[0] == texts[3] and texts[0] != texts[1] and [one.sample for one in group] == [0, 1, 2, 3]
    assert found.played == 3 and found.shares("uniform") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert found.shares("policy") == pytest.approx([*(choice.chance for choice in found.choices), 0])


def test_an_episode_without_a_reward_earns_nothing_for_its_choice() -> None:
    _, found = planned(GREEDY)
    branch = GREEDY.model_copy(update={"entropy": 0.1})
    rewards = [Reward(value, {}) for value in (0.2, None, 0.7, 0.2)]
    opened = _open([0.5, 0.0, -0.5, 0.0], ([], (rewards, {}), found), branch)
    bonus = found.bonus(0.1, "uniform")
    assert opened == pytest.approx([0.5 + bonus[0], 0.0, -0.5 + bonus[2], 0.0])
    assert _open([0.5, 0.0, -0.5, 0.0], ([], (rewards, {}), None), branch) == [0.5, 0.0, -0.5, 0.0]


MEANS = GREEDY.model_copy(update={"greedy": False, "mean_of": 5})


@pytest.mark.parametrize("branch", [AT_NAME, pytest.param(MEANS, marks=pytest.mark.slow)], ids=["name", "means"])
def test_a_branched_training_learns_and_a_killed_one_continues_exactly(
    tools: Toolkit, tmp_path: Path, branch: Branch
) -> None:
    whole, result, _ = train(tools, tmp_path / "whole", branch)
    assert any(row["branched"] > 0 for row in result.history)
    assert any(row.get("choice_entropy", 0) > 0 for row in result.history)
    assert not same(whole, taught())
    with pytest.raises(Killed):
        train(tools, tmp_path / "cut", branch, stop_at=3)
    continued, again, _ = train(tools, tmp_path / "cut", branch)
    assert again.resumed_from == 2 and again.history == result.history
    assert same(whole, continued)


def test_even_starts_begin_with_each_choice_alike_however_the_policy_prefers_one(tools: Toolkit) -> None:
    """The taught model never writes `wish`; a third of the even starts do."""
    branch = AT_WORD.model_copy(update={"starts": "even", "later": 1.0})
    settings = SETTINGS.model_copy(update={"branch": branch, "group_size": SIZE})
    acting, drawn = policy(), Counter[str]()
    rounds = Rounds({"e1": question()}, codec(), tools, LIMITS, PRICE, settings, acting)
    for seed in range(120):
        acting.seed = seed
        for beginning in rounds._starts(
            [question()], first_turns([question()], acting, codec(), LIMITS), branch
        ).values():
            assert beginning.before == ()
            drawn[codec().decode(list(beginning.ids)).replace("</think>", "").split()[-1]] += 1
    assert drawn.keys() == set(WORDS) and drawn.total() > 60
    assert all(count / drawn.total() == pytest.approx(1 / 3, abs=0.15) for count in drawn.values())


def test_first_turns_are_the_same_in_a_notebook_which_has_a_loop_around_them() -> None:
    async def cell() -> dict[str, list[int]]:
        return first_turns([question()], policy(), codec(), LIMITS)

    assert asyncio.run(cell()) == first_turns([question()], policy(), codec(), LIMITS)
