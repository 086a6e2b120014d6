"""A forecast from a sample: right on average, and honest about how far it may be off."""

import math
import random
import statistics

import pytest
from scipy import stats

from orchestra.accounting.forecast import Forecast, Piece


def piece(usd: list[float], units: float, name: str = "p") -> Piece:
    return Piece(name, "step", units, usd, [10 * value for value in usd])


def test_a_sample_of_everything_is_the_sum() -> None:
    found = Forecast.of([piece([1.0, 2.0, 3.0], 3)])
    assert (found.usd.value, found.usd.low, found.usd.high) == (6.0, 6.0, 6.0)
    assert found.seconds.value == 60.0


def test_alike_units_are_certain_and_pieces_add_up() -> None:
    found = Forecast.of([piece([0.5, 0.5], 100), piece([2.0, 2.0, 2.0], 10)])
    assert found.usd.low == found.usd.value == found.usd.high == 70.0


def test_nothing_costs_less_than_its_sample_did() -> None:
    assert Forecast.of([piece([0.0, 100.0], 10)]).usd.low == 100.0


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, hit, times = random.Random(0), 0, 400
    for _ in range(times):
        usd = [[rng.gauss(1, 0.3) for _ in range(60)], [rng.gauss(5, 2) for _ in range(40)]]
        truth = sum(map(sum, usd))
        found = Forecast.of([piece(rng.sample(part, 5), len(part)) for part in usd])
        hit += found.usd.low <= truth <= found.usd.high
    assert hit / times == pytest.approx(0.95, abs=0.03)


def test_the_interval_is_that_of_a_sample_of_a_finite_whole() -> None:
    """One piece: Student's interval with the finite population's correction; two: Welch's degrees of freedom."""
    usd, units = [10.0, 11.0, 13.0, 10.0], 40
    found = Forecast.of([piece(usd, units)]).usd
    error = units * statistics.stdev(usd) / 2 * math.sqrt(1 - 4 / units)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 3, units * 11.0, error))
    many = [random.Random(n).sample(range(90, 110), 10) for n in range(2)]
    both = Forecast.of([piece([float(value) for value in part], 1e9) for part in many]).usd
    # Of a whole without end, a sum is off as a sum of two means.
    welch = stats.ttest_ind(many[0], [-value for value in many[1]], equal_var=False).confidence_interval(0.95)
    assert (both.low / 1e9, both.high / 1e9) == pytest.approx((welch.low, welch.high))


def test_more_was_run_than_the_stage_has_and_a_stage_has_none() -> None:
    """Of what the sample cost, only the share that the stage has stands below the sum."""
    beyond, rest = piece([1.0, 3.0], 1), piece([0.0, 100.0], 10)
    assert Forecast.of([beyond, rest]).usd.low == 2.0 + 100.0
    assert Forecast.of([piece([1.0, 3.0], 0), rest]).usd == Forecast.of([rest]).usd


def test_it_says_dollars_time_and_where_they_are_from() -> None:
    said = Forecast.of([piece([1.0, 3.0], 50, "training")]).lines()
    assert said[0].startswith("100 USD (4 to ") and "min" in said[0] and "95 %" in said[0]
    assert said[1] == "  training: 50 x step at 2 USD and 20 s, from 2"
