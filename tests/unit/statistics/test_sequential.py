"""Bounds that may be looked at after every sample: their errors, and that they find what is there."""

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from orchestra.statistics.sequential import FEWEST, ArmSamples, Excess, cost_excess, failure_excess, latency_excess

Row = tuple[bool, float, float, bool | None]


def samples(*rows: Row) -> ArmSamples:
    made = ArmSamples()
    for row in rows:
        made.add(*row)
    return made


def alarms(trials: int, rows: int, row: Callable[[], Row], alarm: Callable[[ArmSamples, ArmSamples], bool]) -> int:
    """Trials of two equal arms in which a look after every fifth row raises an alarm."""
    raised = 0
    for _ in range(trials):
        arm, other, crossed = ArmSamples(), ArmSamples(), False
        for number in range(rows):
            for one in (arm, other):
                one.add(*row())
            if number % 5 == 4:
                crossed = crossed or alarm(arm, other)
        raised += crossed
    return raised


def test_too_few_samples_say_nothing() -> None:
    few = samples(*[(True, 1.0, 0.0, None)] * (FEWEST - 1))
    assert failure_excess(few, samples(*[(False, 1.0, 0.0, None)] * 1000)).lower(0.05, 100) == -math.inf


def test_known_figures() -> None:
    arm = samples(*[(True, 9.0, 0.2, False)] * 10, *[(False, 2.0, 0.2, True)] * 30)
    other = samples(*[(False, 1.0, 0.1, True)] * 20, *[(False, 2.0, 0.1, True)] * 20)
    assert failure_excess(arm, other).value == pytest.approx(0.25)
    assert latency_excess(arm, other).value == pytest.approx(0.5 * math.log(2))
    assert cost_excess(arm, other).value == pytest.approx(math.log(0.2 / (30.5 / 41)) - math.log(0.1 / (40.5 / 41)))
    assert (arm.failed_last, samples((True, 1, 0, None), (False, 1, 0, None)).failed_last) == (0, 0)


def test_the_variance_of_a_cost_is_that_of_repeated_trials() -> None:
    rng, found, told = random.Random(1), [], []
    for _ in range(300):
        arm = ArmSamples()
        for _ in range(200):
            hard = rng.random() < 0.3
            arm.add(
                False, 1.0, rng.lognormvariate(-3, 0.5) * (3 if hard else 1), rng.random() < (0.6 if hard else 0.95)
            )
        value, variance = arm.log_cost()
        found.append(value)
        told.append(variance)
    assert statistics.mean(told) == pytest.approx(statistics.variance(found), rel=0.25)


def test_means_and_variances_are_those_of_the_rows() -> None:
    """What is kept of each sample gives the figures of all rows at once."""
    rng = random.Random(2)
    rows: list[Row] = [
        (rng.random() < 0.3, rng.lognormvariate(0, 1), rng.lognormvariate(-3, 1), rng.choice([True, True, False, None]))
        for _ in range(90)
    ]
    ours, theirs = rows[:60], rows[60:]
    arm, other = samples(*ours), samples(*theirs)
    excess = latency_excess(arm, other)
    logs = [[math.log(seconds) for failed, seconds, _, _ in some if not failed] for some in (ours, theirs)]
    assert excess.value == pytest.approx(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    assert excess.variance == pytest.approx(sum(statistics.variance(one) / len(one) for one in logs))
    shares = [(sum(failed for failed, *_ in some) + 1) / (len(some) + 2) for some in (ours, theirs)]
    excess = failure_excess(arm, other)
    assert excess.variance == pytest.approx(shares[0] * (1 - shares[0]) / 60 + shares[1] * (1 - shares[1]) / 30)
    judged = [[(usd, float(solved)) for *_, usd, solved in some if solved is not None] for some in (ours, theirs)]
    assert arm.log_cost()[1] + other.log_cost()[1] == pytest.approx(sum(map(log_ratio_variance, judged)))
    assert excess_as_if_once_more(judged) == pytest.approx(cost_excess(arm, other).careful)
    assert (arm.requests, other.requests, arm.judged, other.judged) == (60, 30, len(judged[0]), len(judged[1]))
    for measure, fewest in ((latency_excess, len(logs[1])), (failure_excess, 30), (cost_excess, len(judged[1]))):
        assert measure(arm, other).samples == measure(other, arm).samples == fewest


def excess_as_if_once_more(judged: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Of the costs, with the greatest of all once more in each arm."""
    most = max(usd for pairs in judged for usd, _ in pairs)
    costs = []
    for pairs in judged:
        usd, right = zip(*pairs, strict=True)
        costs.append(math.log(statistics.fmean([*usd, most]) * (len(pairs) + 1) / (sum(right) + 0.5)))
    return costs[0] - costs[1]


def log_ratio_variance(pairs: Sequence[tuple[float, float]]) -> float:
    """Of log(mean dollars / share solved): the variance of usd / mean - solved / share, over the count."""
    usd, solved = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    share = (solved * len(pairs) + 0.5) / (len(pairs) + 1)
    return statistics.variance([one / usd - right / share for one, right in pairs]) / len(pairs)


def test_what_has_no_variance_says_nothing() -> None:
    for few in (samples(), samples((False, 1.0, 0.1, True))):
        for measure in (failure_excess, latency_excess, cost_excess):
            assert measure(few, few).lower(0.05, 100) == -math.inf
    assert Excess(0.5, 0.0, 50).lower(0.05, 100) == -math.inf


def test_what_costs_nothing_is_cheaper_than_what_costs_something() -> None:
    free, paid = (samples(*[(False, 1.0, usd, True)] * 400) for usd in (0.0, 0.01))
    assert cost_excess(free, free).lower(0.05, 100) < 0 and cost_excess(free, paid).value < math.log(1e-3)
    assert cost_excess(paid, free).lower(0.05, 400) > math.log(2)


@pytest.mark.parametrize(("costly", "solved"), [(0.02, 0.9), (0.1, 0.9), (1.0, 0.03)])
def test_a_bound_of_equal_arms_holds_where_few_requests_cost_most_or_few_are_solved(
    costly: float, solved: float
) -> None:
    rng = random.Random(5)

    def row() -> Row:
        return False, 1.0, 0.05 if rng.random() < costly else 0.0001, rng.random() < solved

    wrong = alarms(150, 150, row, lambda arm, other: cost_excess(arm, other).lower(0.05 / 3, 150) > math.log(1.5))
    assert wrong <= 0.05 / 3 * 150 + 2


def test_a_looser_level_and_more_samples_bring_the_bound_nearer() -> None:
    assert Excess(0.5, 0.01, 50).lower(0.1, 100) > Excess(0.5, 0.01, 50).lower(0.01, 100)
    assert 0.5 > Excess(0.5, 0.001, 500).lower(0.05, 100) > Excess(0.5, 0.01, 50).lower(0.05, 100)


@pytest.mark.parametrize("measure", [failure_excess, latency_excess, cost_excess])
def test_a_bound_of_equal_arms_rarely_lies_above_zero_at_any_look(
    measure: Callable[[ArmSamples, ArmSamples], Excess],
) -> None:
    rng = random.Random(4)

    def row() -> Row:
        return rng.random() < 0.1, rng.lognormvariate(0, 1), rng.lognormvariate(-3, 1), rng.random() < 0.85

    wrong = alarms(200, 300, row, lambda arm, other: measure(arm, other).lower(0.1, 300) > 0)
    assert wrong <= 0.1 * 200 + 2 * math.sqrt(0.09 * 200)
