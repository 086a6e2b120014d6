"""Paired intervals cover what they say, with few differences, skewed costs and nested trials too."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, ttest_1samp

from orchestra.statistics.corrections import holm
from orchestra.statistics.intervals import Interval, mean_interval
from orchestra.statistics.paired import cost_ratio, difference, mean_difference, p_value

Values = NDArray[np.float64]
RUNS = 1500


def keyed(values: Values) -> dict[str, float]:
    return {str(n): float(value) for n, value in enumerate(values)}


def covered(interval: Interval, truth: float) -> bool:
    assert interval.low is not None
    return interval.low <= truth and (interval.high is None or truth <= interval.high)


def share(draw: Callable[[np.random.Generator], tuple[Interval, float]], runs: int = RUNS) -> float:
    generator = np.random.default_rng(0)
    return sum(covered(*draw(generator)) for _ in range(runs)) / runs


@pytest.mark.parametrize("trials", [1, 4])
@pytest.mark.parametrize("examples", [60, 300])
def test_a_difference_is_covered_with_trials_nested_in_examples(trials: int, examples: int) -> None:
    def draw(generator: np.random.Generator) -> tuple[Interval, float]:
        # Each example is as hard for both; the second policy solves it a little more often.
        chance = generator.beta(1.2, 0.6, examples)
        ours = generator.binomial(trials, chance * 0.9 + 0.1) / trials
        theirs = generator.binomial(trials, chance) / trials
        return difference(keyed(ours), keyed(theirs)), 0.1 * (1 - 1.2 / 1.8)

    assert 0.93 <= share(draw) <= 0.97


def test_a_bootstrap_mean_of_trials_is_covered_when_examples_are_drawn() -> None:
    def draw(generator: np.random.Generator) -> tuple[Interval, float]:
        solved = generator.binomial(4, generator.beta(1.2, 0.6, 200)) / 4
        return mean_interval(solved.tolist(), 300, int(generator.integers(1 << 30))), 1.2 / 1.8

    assert 0.93 <= share(draw, 700) <= 0.97


@pytest.mark.parametrize("saving", [1.0, 0.6])
def test_a_ratio_of_skewed_costs_is_covered(saving: float) -> None:
    def draw(generator: np.random.Generator) -> tuple[Interval, float]:
        common = generator.lognormal(0, 1, 200)
        ours, theirs = (common * generator.lognormal(0, 0.5, 200) for _ in range(2))
        return cost_ratio(keyed(saving * ours), keyed(theirs)), saving

    assert 0.93 <= share(draw, 1000) <= 0.97


def test_few_differences_are_judged_as_an_exact_test_judges_them() -> None:
    nothing = {str(n): 0.0 for n in range(200)}
    for won in range(12):
        ours = nothing | {str(n): 1.0 for n in range(won)}
        found = difference(ours, nothing)
        exact = binomtest(won, won, 0.5).pvalue if won else 1.0
        assert found.low is not None and (found.low > 0) == (exact < 0.05)
        assert (p_value(ours, nothing) < 0.05) == (found.low > 0)


@pytest.mark.parametrize("count", [1, 2, 30, 500])
def test_the_interval_and_the_p_value_are_those_of_student_s_test(count: int) -> None:
    generator = np.random.default_rng(count)
    ours, theirs = generator.random(count), generator.random(count)
    gaps = ours - theirs
    size = float((gaps**2).mean() ** 0.5)
    exact = ttest_1samp([*gaps, size, -size], 0.0)
    found = mean_difference(keyed(ours), keyed(theirs))
    assert (found.low, found.high) == pytest.approx(tuple(exact.confidence_interval(0.95)))
    assert p_value(keyed(ours), keyed(theirs)) == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("equal", [0, 15])
def test_the_ends_of_a_ratio_are_where_student_s_test_begins_to_exclude(equal: int) -> None:
    generator = np.random.default_rng(equal)
    ours, theirs = generator.lognormal(0, 0.5, 20), generator.lognormal(0.2, 0.5, 20)
    ours[:equal] = theirs[:equal]
    found = cost_ratio(keyed(ours), keyed(theirs))
    assert found.low is not None and found.high is not None and 0 < found.low < found.high
    for ratio in (found.low, found.high):
        assert p_of_ratio(ours, theirs, ratio, equal) == pytest.approx(0.05)


def p_of_ratio(ours: Values, theirs: Values, ratio: float, equal: int = 0) -> float:
    """The p-value of mean(ours - ratio · theirs) = 0; the first `equal` examples do not differ."""
    gaps = ours - ratio * theirs
    size = float((gaps[equal:] ** 2).mean() ** 0.5)
    return float(ttest_1samp([*gaps, size, -size], 0.0).pvalue)


def test_no_difference_among_few_examples_excludes_no_small_one() -> None:
    few, many = ({str(n): 1.0 for n in range(count)} for count in (30, 3000))
    assert (difference(few, few).low or 0) < -0.05 and (difference(many, many).low or 0) > -0.005


def test_a_cheaper_reply_to_four_questions_of_many_proves_nothing() -> None:
    theirs = {str(n): 0.02 for n in range(200)}
    four, eight = (cost_ratio(theirs | {str(n): 0.01 for n in range(count)}, theirs) for count in (4, 8))
    assert (four.high or 0) > 1 and (eight.high or 0) < 1


def test_equal_costs_have_a_ratio_of_one_and_free_ones_none() -> None:
    costs = {"a": 0.5, "b": 0.25}
    assert cost_ratio(costs, costs) == Interval(value=1.0, low=1.0, high=1.0)
    assert cost_ratio(costs, {"a": 0.0, "b": 0.0}) == cost_ratio(costs, {}) == difference(costs, {}) == Interval()
    assert p_value(costs, {}) == 1.0


def test_costs_that_may_be_nothing_leave_the_ratio_open() -> None:
    ours, theirs = {str(n): 1.0 for n in range(5)}, {str(n): float(n == 0) for n in range(5)}
    found = cost_ratio(ours, theirs)
    assert found.value == 5.0 and found.high is None and found.low is not None
    generator = np.random.default_rng(6)
    rarely = generator.lognormal(0, 0.3, 9) * (generator.random(9) < 0.4)
    often = generator.lognormal(0, 0.3, 9)
    found = cost_ratio(keyed(often), keyed(rarely))
    assert found.low is not None and found.high is None
    # Below the end, not above it, ratios are excluded.
    assert p_of_ratio(often, rarely, 0.9 * found.low) < p_of_ratio(often, rarely, found.low) == pytest.approx(0.05)


def test_holm_is_no_stricter_than_bonferroni_and_rejects_chance_as_rarely_as_stated() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({}) == {} and holm({"a": 0.8, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    generator = np.random.default_rng(1)
    false = sum(
        min(holm({str(n): float(p) for n, p in enumerate(generator.random(10))}).values()) < 0.05 for _ in range(4000)
    )
    assert 0.04 < false / 4000 < 0.06
