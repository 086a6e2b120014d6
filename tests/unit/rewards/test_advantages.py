"""The advantages of Eq. 3, and of the other order: normalise every part, then sum."""

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestra.config.reward import PUBLISHED, RewardParams
from orchestra.errors import ConfigError
from orchestra.rewards.advantages import Group, Normalise, advantages, step_advantages
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.types import Preference
from tests.support.worlds import episode
from tests.unit.rewards.test_group import EVERYTHING, dollars, groups, preferences, seconds

WIDE = 1e9
few = settings(max_examples=50)
orders = pytest.mark.parametrize("normalise", ["sum_then_normalise", "normalise_then_sum"])


def advantage(rows: list[dict[str, Any]], preference: Preference, normalise: Normalise, **options: Any) -> list[float]:
    rewards = group_rewards([episode(**row) for row in rows], preference, **options)
    return advantages(rewards, weights(preference), min_std=0, clip=WIDE, normalise=normalise)


@orders
@few
@given(rows=groups, preference=preferences)
def test_a_solved_rollout_is_never_ranked_below_a_failed_one(
    normalise: Normalise, rows: list[dict[str, Any]], preference: Preference
) -> None:
    found = advantage(rows, preference, normalise)
    failed = [a for a, row in zip(found, rows, strict=True) if not row["solved"]]
    solved = [a for a, row in zip(found, rows, strict=True) if row["solved"]]
    assert not (failed and solved) or min(solved) >= max(failed) - 1e-9
    # What failed earned the same: nothing.
    assert not failed or max(failed) - min(failed) <= 1e-9


@orders
@few
@given(rows=groups, preference=preferences, data=st.data())
def test_raising_the_cost_or_latency_of_a_solved_rollout_never_raises_its_advantage(
    normalise: Normalise, rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    """Of the sum, where that part alone counts: with others, the spread that all are measured in moves as well."""
    index = data.draw(st.integers(0, len(rows) - 1))
    rows[index]["solved"] = True
    field, part = data.draw(st.sampled_from([("cost_usd", "compute"), ("latency_s", "latency")]))
    if normalise == "sum_then_normalise":
        alone = {"outcome": 0.0, "compute": 0.0, "latency": 0.0, part: getattr(preference, part)}
        preference = preference.model_copy(update={**alone, "tools": {}})
    costlier = dict(rows[index])
    costlier[field] = rows[index][field] + data.draw(dollars if field == "cost_usd" else seconds)
    before = advantage(rows, preference, normalise)[index]
    after = advantage([*rows[:index], costlier, *rows[index + 1 :]], preference, normalise)[index]
    assert after <= before + 1e-6


@orders
@few
@given(rows=groups, preference=preferences, data=st.data())
def test_permuting_a_group_permutes_its_advantages(
    normalise: Normalise, rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    straight = advantage(rows, preference, normalise)
    assert advantage([rows[i] for i in order], preference, normalise) == pytest.approx(
        [straight[i] for i in order], abs=1e-6
    )


@orders
@few
@given(rows=groups, preference=preferences, data=st.data())
def test_infrastructure_failures_change_nothing(
    normalise: Normalise, rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(rows)))
    dead = {"solved": None, "cost_usd": 1000, "latency_s": 1e6}
    found = advantage([*rows[:index], dead, *rows[index:]], preference, normalise)
    assert found.pop(index) == 0
    assert found == advantage(rows, preference, normalise)


@given(groups, preferences)
def test_normalised_parts_are_centred_and_weigh_what_p_says(rows: list[dict[str, Any]], preference: Preference) -> None:
    found = advantage(rows, preference, "normalise_then_sum")
    assert sum(found) == pytest.approx(0, abs=1e-6)
    # One part of a group of n lies within (n - 1) / sqrt(n) standard deviations.
    size = len(rows)
    assert all(abs(a) <= sum(weights(preference).values()) * (size - 1) / size**0.5 + 1e-6 for a in found)


def test_how_much_a_part_counts_is_the_weight_s_to_say_not_the_spread_of_the_others() -> None:
    """Where all are solved, the sum blows the small weights up to full size; apart, cost keeps its weight of 0.1."""
    wish = Preference(kind="neutral", words="", outcome=1, compute=0.1, latency=0)
    rows: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}]
    apart, summed = (advantage(rows, wish, order) for order in ("normalise_then_sum", "sum_then_normalise"))
    assert apart == pytest.approx([0.0707, -0.0707], abs=1e-4)
    assert summed == pytest.approx([0.7071, -0.7071], abs=2e-3)


def test_a_worked_example_of_both_orders() -> None:
    wish = Preference(kind="cheap", words="", outcome=1, compute=0.5, latency=0)
    rows: list[dict[str, Any]] = [{"cost_usd": 0}, {"cost_usd": 1}, {"solved": False, "cost_usd": 1}]
    # Eq. 2 gives 1.5, 1 and 0; the parts are (1, 1, 0) and (0.5, 0, 0).
    assert advantage(rows, wish, "sum_then_normalise") == pytest.approx([0.8729, 0.2182, -1.0911], abs=1e-3)
    # Standardised: outcome (0.577, 0.577, -1.155), compute (1.155, -0.577, -0.577).
    assert advantage(rows, wish, "normalise_then_sum") == pytest.approx([1.1547, 0.2887, -1.4434], abs=1e-3)


@orders
def test_what_is_dropped_is_in_no_mean(normalise: Normalise) -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}, {"solved": False, "answer": None}]
    found = advantage(rows, EVERYTHING, normalise, malformed="drop")
    assert found == [*advantage(rows[:2], EVERYTHING, normalise), 0.0]
    assert advantage(rows, EVERYTHING, normalise)[2] < 0


scalars = st.lists(st.one_of(st.none(), st.floats(0, 5)), max_size=10)


@given(scalars, st.floats(0, 1), st.floats(0.1, 5))
def test_advantages_are_clipped_centred_and_absent_for_what_is_left_out(
    values: list[float | None], min_std: float, clip: float
) -> None:
    found = advantages([Reward(v, {}) for v in values], min_std=min_std, clip=clip)
    assert len(found) == len(values)
    assert all(abs(a) <= clip for a in found)
    assert all(a == 0 for a, v in zip(found, values, strict=True) if v is None)
    known = [v for v in values if v is not None]
    mean = sum(known) / len(known) if known else 0.0
    for a, v in zip(found, values, strict=True):
        if v is not None and a != 0:
            assert (a > 0) == (v > mean)


@given(st.lists(st.floats(0, 5), min_size=2, max_size=10), st.floats(0.01, 1))
def test_a_homogeneous_group_carries_no_advantage(values: list[float], min_std: float) -> None:
    mean = sum(values) / len(values)
    std = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    assume(abs(std - min_std) > 1e-9)
    found = advantages([Reward(v, {}) for v in values], min_std=min_std, clip=100)
    assert any(found) == (std > min_std)
    if any(found):
        assert sum(found) == pytest.approx(0, abs=1e-6)


def test_a_group_that_teaches_nothing_stays_at_0_where_the_step_is_normalised() -> None:
    """The mean of the others is not 0 here, since the failed one was lowered to the least of the solved ones."""
    weighed, shape = {"outcome": 1.0, "compute": 5.0}, RewardParams(among="solved", batch_normalise=True)
    costly = Reward(1.0, {"outcome": 1.0, "compute": 0.0})
    groups = [Group([Reward(6.0, {"outcome": 1.0, "compute": 5.0}), costly, Reward(0.0, {})], weighed)]
    groups.append(Group([costly] * 3, weighed))
    found = step_advantages(groups, min_std=0.01, clip=WIDE, normalise="normalise_then_sum", shape=shape)
    assert found[1] == [0.0, 0.0, 0.0] and sum(found[0]) == pytest.approx(0, abs=1e-9) and any(found[0])


def test_shares_weigh_the_mean_of_a_part_that_solved_ones_alone_have() -> None:
    """Shares of the solved ones do not add up to 1: ½ · 1 + ¼ · ½ over ¾ is 0.833, and their deviation is 0.354."""
    rewards = [Reward(1.0, {"compute": 1.0}), Reward(0.5, {"compute": 0.5}), Reward(0.0, {})]
    group = Group(rewards, {"compute": 1.0}, shares=(0.5, 0.25, 0.25))
    shape = RewardParams(among="solved")
    found = step_advantages([group], min_std=0, clip=WIDE, normalise="normalise_then_sum", shape=shape)
    assert found[0] == pytest.approx([0.7071, -0.7071, -0.7071], abs=1e-3)


def test_a_group_whose_every_part_is_alike_is_left_out_whatever_its_sum() -> None:
    rewards = [Reward(1.005, {"outcome": 1.0, "compute": 0.005}), Reward(1.0, {"outcome": 1.0, "compute": 0.0})]
    weighed, shape = {"outcome": 1.0, "compute": 1.0}, RewardParams(homogeneity="part")
    for min_std, left_out in ((0.01, True), (0.001, False)):
        found = advantages(rewards, weighed, min_std=min_std, clip=WIDE, shape=shape)
        assert (found == [0.0, 0.0]) == left_out


def test_one_known_reward_is_no_group() -> None:
    assert advantages([Reward(3.0, {}), Reward(None, {})], min_std=0, clip=3) == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    for value, parts in ((bad, {}), (1.0, {"outcome": bad})):
        with pytest.raises(ConfigError, match=r"a reward: (value|outcome) is -?(nan|inf)"):
            Reward(value, parts)


@pytest.mark.parametrize(
    "wrong", [{"normalise": "normalize_then_sum"}, {"clip": -1.0}, {"clip": math.nan}, {"min_std": math.nan}]
)
def test_arguments_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"min_std": 0.01, "clip": 3.0, **wrong}
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        advantages([Reward(1.0, {}), Reward(0.0, {})], **given)


@pytest.mark.parametrize("weighed", [None, {"outcome": 1.0, "tool:gpt-5": 0.3}])
def test_parts_that_count_on_their_own_need_their_weights(weighed: dict[str, float] | None) -> None:
    """They had no advantage, or a share of one, where `weights` was left out or made with other switches."""
    rewards = [Reward(1.3, {"outcome": 1.0, "use:gpt-5": 0.3}), Reward(1.0, {"outcome": 1.0, "use:gpt-5": 0.0})]
    assert advantages(rewards, weighed, min_std=0.01, clip=3.0)[0] > 0
    for shape, order in ((PUBLISHED, "normalise_then_sum"), (RewardParams(homogeneity="part"), "sum_then_normalise")):
        given: dict[str, Any] = {"shape": shape, "normalise": order}
        with pytest.raises(ConfigError, match=r"the part \S+ has no weight"):
            advantages(rewards, weighed, min_std=0.01, clip=3.0, **given)
