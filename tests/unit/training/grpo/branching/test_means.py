"""The critic with one number for each choice: means over groups that try different choices."""

import json
import random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.training.grpo.branching.means import ChoiceMeans

KEY = ("cheap", "cheap saving-")
WORTH = {"cheapest": 0.3, "best": 0.1, "strongest": -0.1, "search": 0.2}
GAINS = st.dictionaries(st.sampled_from(sorted(WORTH)), st.floats(-2, 2), min_size=1)


def group(rng: random.Random, noise: float, size: int = 3) -> dict[str, float]:
    """The gains of some choices above their own mean, which hangs on the choices that were tried."""
    rewards = {choice: WORTH[choice] + rng.gauss(0.5, noise) for choice in rng.sample(sorted(WORTH), size)}
    return {choice: reward - fmean(rewards.values()) for choice, reward in rewards.items()}


def filled(groups: int, own: float = 0.0, seed: int = 0, noise: float = 0.4) -> ChoiceMeans:
    means, rng = ChoiceMeans(groups, own), random.Random(seed)
    for _ in range(groups):
        means.add(KEY, group(rng, noise))
    return means


def differences(found: dict[str, float]) -> list[float]:
    return [found[choice] - found["cheapest"] for choice in sorted(WORTH)]


def test_the_means_are_comparable_though_no_two_groups_try_the_same_choices() -> None:
    # Without chance; what is left is the pull of the groups of no difference.
    assert differences(filled(400, noise=0).means(KEY)) == pytest.approx(differences(WORTH), abs=0.01)
    assert differences(filled(2000).means(KEY)) == pytest.approx(differences(WORTH), abs=0.06)


def test_a_mean_of_many_groups_decides_by_luck_less_often_than_the_last_group() -> None:
    def best(gains: dict[str, float]) -> str:
        return max(gains, key=gains.__getitem__)

    right = [best(filled(200, seed=seed).means(KEY)) == "cheapest" for seed in range(60)]
    last = [best(group(random.Random(seed), 0.4, size=4)) == "cheapest" for seed in range(60)]
    assert fmean(right) > 0.9 and fmean(last) < 0.6


@given(st.lists(GAINS, max_size=5), GAINS)
def test_what_a_group_learns_from_adds_up_to_0(before: list[dict[str, float]], gains: dict[str, float]) -> None:
    for own in (0.0, 0.25, 1.0):
        means = ChoiceMeans(3, own)
        for one in before:
            means.add(KEY, one)
        (found,) = means.learn([(KEY, gains)])
        assert found.keys() == gains.keys() and sum(found.values()) == pytest.approx(0, abs=1e-9)
        if own == 1.0:
            middle = fmean(gains.values())
            assert found == pytest.approx({choice: gain - middle for choice, gain in gains.items()}, abs=1e-9)


def test_the_own_share_is_how_much_of_a_group_s_chance_is_left() -> None:
    rng = random.Random(7)
    groups = [(KEY, group(rng, 0.4, size=4)) for _ in range(40)]

    def spread(own: float) -> float:
        return pstdev(gains["best"] for gains in filled(100, own).learn(groups))

    assert spread(0.0) == pytest.approx(0) and spread(0.25) == pytest.approx(spread(1.0) / 4)


def test_only_the_last_groups_count_and_keys_are_apart() -> None:
    means = ChoiceMeans(2, 0.0)
    for gain in (5.0, 0.1, 0.1):
        means.add(KEY, {"best": gain, "cheapest": -gain})
    assert 0 < means.means(KEY)["best"] < 0.1
    assert means.means(("fast", "fast hurry-")) == {}


def test_what_was_counted_is_taken_up_again_through_json() -> None:
    means, again = filled(50), ChoiceMeans(50, 0.0)
    again.add(KEY, {"best": 9.0, "cheapest": -9.0})
    again.restore(json.loads(json.dumps(means.state())))
    assert again.means(KEY) == means.means(KEY)
