"""Labels of the drawings never hide each other, and ticks are round."""

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.promotion.figures import BOTTOM, LEFT, LINE, RIGHT, TOP, Point, bars, curve, frontier, ticks
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


def scaled(pairs: Sequence[tuple[float, float]], drawn: Sequence[tuple[float, float]], low: float, high: float) -> None:
    """Coordinates are linear in values, and the values from `low` to `high` fill the plot."""
    (first, _), (last, _) = at, to = min(pairs), max(pairs)
    for (value, other), (x, y) in zip(pairs, drawn, strict=True):
        assert LEFT <= x <= RIGHT and y == pytest.approx(
            BOTTOM - (BOTTOM - TOP) * (other - low) / (high - low), abs=0.1
        )
        ends = drawn[pairs.index(at)][0], drawn[pairs.index(to)][0]
        assert x == pytest.approx(ends[0] + (ends[1] - ends[0]) * (value - first) / (last - first), abs=0.1)


def numbers(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.-]+),([\d.-]+)", text)]


def test_drawings_are_to_scale() -> None:
    pairs = [(1.0, 0.6), (2.0, 0.7), (4.0, 0.9)]
    points = [
        Point(
            name=str(n), kind="rule", cents=cents, accuracy=Interval(value=share, low=share - 0.05, high=share + 0.01)
        )
        for n, (cents, share) in enumerate(pairs)
    ]
    svg = frontier(points, pairs)
    line = numbers(re.findall(r'<polyline class="line" points="([^"]*)"', svg)[0])
    scaled(pairs, line, 0.53, 0.93)
    assert line == [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert line[2][0] - LEFT == pytest.approx(4 * (line[0][0] - LEFT), abs=0.5), "cents begin at 0"
    steps = [(10.0, 0.3), (20.0, 0.1), (40.0, 0.5)]
    scaled(steps, numbers(re.findall(r'points="([^"]*)"', curve({"reward": steps}))[0]), 0.1, 0.5)
    shown = bars({"a": [0.5, 0.25], "b": [0.0, 0.1]}, ["before", "after"])
    drawn = re.findall(r'<rect x="190" y="(\d+)" width="([\d.]+)" height="10"', shown)
    assert [float(width) for _, width in drawn] == pytest.approx([440, 220, 0, 88])
    assert all(int(below) - int(above) >= 12 for (above, _), (below, _) in pairwise(drawn))


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 7, [0, 2, 4, 6]), (0.6, 0.95, [0.6, 0.7, 0.8, 0.9]), (3, 3, None)]
)
def test_ticks_are_round(low: float, high: float, expected: list[float] | None) -> None:
    found = ticks(low, high)
    assert found and (expected is None or found == pytest.approx(expected))
