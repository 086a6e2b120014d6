"""The frontier holds what no coin between two others beats."""

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.statistics.frontier import hull, mixture

POINTS = {"cheap": (1.0, 0.5), "below": (2.0, 0.55), "middle": (3.0, 0.8), "worse": (4.0, 0.7), "strong": (5.0, 0.9)}


def test_the_hull_leaves_out_what_lies_below_a_line() -> None:
    names = list(POINTS)
    assert [names[index] for index in hull(list(POINTS.values()))] == ["cheap", "middle", "strong"]
    assert hull([(1.0, 0.5), (1.0, 0.6), (1.0, 0.6), (2.0, 0.6)]) == [1]


@pytest.mark.parametrize(
    ("cost", "shares"),
    [
        (0.5, {"cheap": 1.0}),
        (1.0, {"cheap": 1.0}),
        (2.0, {"cheap": 0.5, "middle": 0.5}),
        (3.0, {"middle": 1.0}),
        (4.5, {"middle": 0.25, "strong": 0.75}),
        (9.0, {"strong": 1.0}),
    ],
)
def test_a_mixture_costs_what_it_may(cost: float, shares: dict[str, float]) -> None:
    assert mixture(POINTS, cost) == pytest.approx(shares)


@pytest.mark.parametrize("seed", range(40))
def test_the_hull_is_what_no_coin_between_two_others_reaches(seed: int) -> None:
    draw = random.Random(seed)
    points = [(draw.uniform(2, 9), draw.uniform(0, 1)) for _ in range(7)]

    def beaten(x: float, y: float) -> bool:
        better = any(a <= x and b > y for a, b in points)
        pairs = [(left, right) for left in points for right in points if left[0] < x < right[0]]
        return better or any(b + (d - b) * (x - a) / (c - a) > y for (a, b), (c, d) in pairs)

    assert hull(points) == sorted((n for n, one in enumerate(points) if not beaten(*one)), key=points.__getitem__)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0, 10))
def test_no_policy_within_the_cost_and_no_coin_between_two_is_better(
    points: list[tuple[float, float]], cost: float
) -> None:
    named = {str(n): point for n, point in enumerate(points)}
    accuracy = sum(share * named[name][1] for name, share in mixture(named, cost).items())
    assert all(accuracy >= y - 1e-9 for x, y in points if x <= cost)
    for (low, below), (high, above) in permutations(points, 2):
        if low <= cost < high:
            assert accuracy >= below + (above - below) * (cost - low) / (high - low) - 1e-9
    assert mixture({}, cost) == {}
