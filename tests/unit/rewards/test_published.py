"""The published reward is Eq. 1-3 of arXiv 2511.21689 and nothing else, by a second writing of the formulas."""

from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given

from orchestra.config.reward import EQUATIONS, PUBLISHED, Branch, Constraint, RewardParams
from orchestra.config.schema import Grpo, load_params
from orchestra.rewards.advantages import EPSILON, advantages
from orchestra.rewards.group import group_rewards, weights
from orchestra.types import Episode, Preference
from tests.support.worlds import ROOT, episode
from tests.unit.rewards.test_group import groups, preferences

FIXED: dict[str, Any] = {
    "unit": "group", "unit_usd": None, "unit_s": None, "among": "all", "spent": "solved", "homogeneity": "group",
    "scale": "group", "batch_normalise": False, "liked": "count", "weights": {}, "constraint": None,
    "branch": None, "budget_share": 0.0, "normalise": "sum_then_normalise",
}  # fmt: skip
EVERYTHING_ELSE: dict[str, Any] = {
    "unit": "fixed", "unit_usd": 0.1, "unit_s": 30.0, "among": "solved", "spent": "all",
    "homogeneity": "part", "scale": "none", "batch_normalise": True, "liked": "use", "weights": {"compute": 1.0},
    "constraint": Constraint(usd={"any": 0.01}), "branch": Branch(at="expert"), "budget_share": 0.5,
    "normalise": "normalise_then_sum",
}  # fmt: skip


def eq_1_and_2(episodes: list[Episode], preference: Preference) -> list[float]:
    """M(τ), M̂[k] and R(τ) as the paper writes them, one feature after the other."""
    tools = sorted(preference.tools)
    vector = [preference.outcome, preference.compute, preference.latency, *(preference.tools[name] for name in tools)]
    rows = []
    for one in episodes:
        called = [turn.call.name for turn in one.turns if turn.call is not None]
        dollars = sum(float(charge.cost_usd) for turn in one.turns for charge in turn.charges)
        seconds = sum(charge.latency_s for turn in one.turns for charge in turn.charges)
        rows.append([float(one.solved), -dollars, -seconds, *(float(called.count(name)) for name in tools)])
    found = []
    for one, row in zip(episodes, rows, strict=True):
        hat = []
        for k, value in enumerate(row):
            column = [other[k] for other in rows]
            low, high = min(column), max(column)
            hat.append((value - low) / (high - low) if high != low else 0.0)
        found.append(sum(m * p for m, p in zip(hat, vector, strict=True)) if one.solved else 0.0)
    return found


def eq_3(rewards: list[float], clip: float) -> list[float]:
    if len(rewards) < 2 or stdev(rewards) < 0.1:
        return [0.0] * len(rewards)
    return [max(-clip, min(clip, (r - fmean(rewards)) / (stdev(rewards) + EPSILON))) for r in rewards]


@given(groups, preferences)
def test_rewards_and_advantages_are_those_of_the_equations(rows: list[dict[str, Any]], preference: Preference) -> None:
    made = [episode(**row) for row in rows]
    rewards = group_rewards(made, preference, shape=PUBLISHED)
    values = [reward.value for reward in rewards]
    assert values == pytest.approx(eq_1_and_2(made, preference), abs=1e-9)
    # Which side of the filter a group falls on may hang on the last digit; that is not what is compared.
    if abs((stdev(v or 0.0 for v in values) if len(values) > 1 else 0.0) - 0.1) < 1e-9:
        return
    found = advantages(rewards, weights(preference), min_std=0.1, clip=3.0, shape=PUBLISHED)
    assert found == pytest.approx(eq_3(eq_1_and_2(made, preference), 3.0), abs=1e-6)


def test_no_switch_means_the_published_reward() -> None:
    assert RewardParams() == PUBLISHED and PUBLISHED.resolved() == PUBLISHED
    assert all(getattr(PUBLISHED, name) == value for name, value in FIXED.items() if name != "normalise")


def test_one_setting_brings_the_published_reward_back_whatever_the_others_say() -> None:
    shipped = load_params(ROOT / "params.yaml").grpo
    assert shipped.resolved() == shipped
    assert set(EVERYTHING_ELSE) == set(FIXED) == set(EQUATIONS)
    changed = Grpo.model_validate({**shipped.model_dump(), **EVERYTHING_ELSE})
    assert changed.resolved() == changed != shipped
    again = changed.model_copy(update={"published": True}).resolved()
    assert again == shipped.model_copy(update={"published": True}).resolved()
    assert {name: getattr(again, name) for name in EQUATIONS} == FIXED


def test_what_the_equations_do_not_fix_stays_as_it_is() -> None:
    changed = load_params(ROOT / "params.yaml").grpo.model_copy(
        update={"published": True, "reward": "efficiency", "num_iterations": 2}
    )
    assert (changed.resolved().reward, changed.resolved().num_iterations) == ("efficiency", 2)


def test_switches_at_their_defaults_leave_no_trace_in_a_record() -> None:
    assert PUBLISHED.model_dump() == {}
    published = load_params(ROOT / "params.yaml").grpo.model_copy(update={"published": True}).resolved()
    assert not set(EQUATIONS) - {"normalise"} & set(published.model_dump())
