"""Labels of the drawings never hide each other, and ticks are round."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.promotion.figures import BOTTOM, LINE, TOP, Point, bars, curve, frontier, ticks
from orchestra.statistics.intervals import Interval

shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(shares)
def test_labels_of_policies_keep_their_distance_and_stay_on_the_drawing(accuracies: list[float]) -> None:
    points = [
        Point(name=f"<{n}>", kind="rule", cents=float(n), accuracy=Interval(value=a, low=a, high=a))
        for n, a in enumerate(accuracies)
    ]
    svg = frontier(points, [(0.0, accuracies[0])])
    heights = sorted(float(y) for y in re.findall(r'<text x="532" y="([\d.-]+)"', svg))
    assert len(heights) == len(points) and all(b - a >= LINE - 0.2 for a, b in pairwise(heights))
    assert heights[0] >= TOP - 1 and heights[-1] <= BOTTOM + 5
    assert "&lt;0&gt;" in svg and "nan" not in svg


def test_nothing_to_draw_is_nothing() -> None:
    assert frontier([], []) == bars({}, []) == curve({"one point": [(0.0, 1.0)]}) == ""


def test_bars_and_curves_name_what_they_show() -> None:
    drawn = bars({"gpt-5": [0.5, 0.25], "search": [0.0, 0.1]}, ["before", "after"])
    assert drawn.count("<rect") == 6 and "50.0 %" in drawn and ">after<" in drawn
    lines = curve({"reward": [(0, 0.1), (1, 0.3)], "level": [(0, 0.2), (1, 0.2)]})
    assert lines.count("<polyline") == 2 and ">reward<" in lines


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 7, [0, 2, 4, 6]), (0.6, 0.95, [0.6, 0.7, 0.8, 0.9]), (3, 3, None)]
)
def test_ticks_are_round(low: float, high: float, expected: list[float] | None) -> None:
    found = ticks(low, high)
    assert found and (expected is None or found == pytest.approx(expected))
