"""Bounds that may be looked at after every sample: their errors, and that they find what is there."""

import math
import random
import statistics
from collections.abc import Callable

import pytest

from orchestra.statistics.sequential import FEWEST, ArmSamples, Excess, cost_excess, failure_excess, latency_excess

Row = tuple[bool, float, float, bool | None]


def samples(*rows: Row) -> ArmSamples:
    made = ArmSamples()
    for row in rows:
        made.add(*row)
    return made


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


def test_a_looser_level_and_more_samples_bring_the_bound_nearer() -> None:
    assert Excess(0.5, 0.01, 50).lower(0.1, 100) > Excess(0.5, 0.01, 50).lower(0.01, 100)
    assert 0.5 > Excess(0.5, 0.001, 500).lower(0.05, 100) > Excess(0.5, 0.01, 50).lower(0.05, 100)


@pytest.mark.parametrize("measure", [failure_excess, latency_excess, cost_excess])
def test_a_bound_of_equal_arms_rarely_lies_above_zero_at_any_look(
    measure: Callable[[ArmSamples, ArmSamples], Excess],
) -> None:
    rng, wrong = random.Random(4), 0
    for _ in range(200):
        arm, other, crossed = ArmSamples(), ArmSamples(), False
        for number in range(300):
            for one in (arm, other):
                one.add(rng.random() < 0.1, rng.lognormvariate(0, 1), rng.lognormvariate(-3, 1), rng.random() < 0.85)
            if number % 5 == 4:
                crossed = crossed or measure(arm, other).lower(0.1, 300) > 0
        wrong += crossed
    assert wrong <= 0.1 * 200 + 2 * math.sqrt(0.09 * 200)
