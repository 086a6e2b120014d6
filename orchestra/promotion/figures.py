"""Drawings of the decision page as SVG, in the page's own colours: they read by day, by night and in print."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from orchestra.statistics.intervals import Interval
from orchestra.types import Record

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 52, 520, 14, 336
"""The plot's own corners; labels stand to the right of it."""
Scale = Callable[[float], float]
"""From a value to a coordinate."""
LINE = 17
"""Least distance of two labels."""


class Point(Record):
    """A policy in the plane of cost and accuracy."""

    name: str
    kind: str
    """CSS class: trained, champion, model, rule or oracle."""
    cents: float
    accuracy: Interval


def frontier(points: Sequence[Point], line: Sequence[tuple[float, float]]) -> str:
    """Accuracy over cents with intervals; labels stand in a column, in the points' order, so that none hides another.

    `line` joins the points (cents, accuracy) of the frontier.
    """
    shown = [point for point in points if point.accuracy.value is not None]
    if not shown:
        return ""
    lows = [_or(point.accuracy.low, point.accuracy.value) for point in shown]
    highs = [_or(point.accuracy.high, point.accuracy.value) for point in shown]
    bottom, top = max(0.0, min(lows) - 0.02), min(1.0, max(highs) + 0.02)
    most = max(point.cents for point in shown) * 1.08 or 1.0

    def x(cents: float) -> float:
        return LEFT + (RIGHT - LEFT) * cents / most

    def y(share: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (share - bottom) / (top - bottom or 1.0)

    parts = _axes(x, y, ticks(0, most), ticks(bottom, top), "US cents per example", percent=True)
    parts.append(f'<polyline class="line" points="{" ".join(f"{x(c):.1f},{y(a):.1f}" for c, a in line)}"/>')
    places = _spread([y(_or(point.accuracy.value, 0)) for point in shown])
    for point, low, high, place in zip(shown, lows, highs, places, strict=True):
        px, py = x(point.cents), y(_or(point.accuracy.value, 0))
        parts.append(f'<g class="{point.kind}"><path d="M{px:.1f} {y(low):.1f}V{y(high):.1f}"/>')
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>')
        parts.append(f'<path class="lead" d="M{px + 6:.1f} {py:.1f}L{RIGHT + 8} {place:.1f}"/>')
        parts.append(f'<text x="{RIGHT + 12}" y="{place + 4:.1f}">{escape(point.name)}</text></g>')
    return _svg(parts, "Accuracy and cost of each policy, with 95 % intervals")


def bars(rows: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """Shares side by side: for each row, a bar for each of `names`."""
    if not rows:
        return ""
    most = max(max(values) for values in rows.values()) or 1.0
    step = 12 * len(names) + 8
    parts, top = [], 24
    for index, name in enumerate(names):
        parts.append(f'<g class="bar{index}"><rect x="{190 + 170 * index}" y="4" width="12" height="12"/>')
        parts.append(f'<text x="{207 + 170 * index}" y="14">{escape(name)}</text></g>')
    for name, values in rows.items():
        parts.append(f'<text class="end" x="180" y="{top + step / 2 + 2:.0f}">{escape(name)}</text>')
        for index, value in enumerate(values):
            width, y = 440 * value / most, top + 12 * index
            parts.append(f'<g class="bar{index}"><rect x="190" y="{y}" width="{width:.1f}" height="10"/></g>')
            parts.append(f'<text class="small" x="{196 + width:.1f}" y="{y + 9}">{100 * value:.1f} %</text>')
        top += step
    return _svg(parts, "Shares of tool calls", height=top + 4)


def curve(series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over the steps of a training, each named at its end."""
    drawn = {name: points for name, points in series.items() if len(points) > 1}
    if not drawn:
        return ""
    xs = [a for points in drawn.values() for a, _ in points]
    ys = [b for points in drawn.values() for _, b in points]
    low, high = min(ys), max(ys)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (value - min(xs)) / ((max(xs) - min(xs)) or 1.0)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    parts = _axes(x, y, ticks(min(xs), max(xs)), ticks(low, high), "step of training")
    places = _spread([y(points[-1][1]) for points in drawn.values()])
    for index, ((name, points), place) in enumerate(zip(drawn.items(), places, strict=True)):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(f'<g class="bar{index % 3}"><polyline class="thick" points="{path}"/>')
        parts.append(f'<text x="{RIGHT + 12}" y="{place + 4:.1f}">{escape(name)}</text></g>')
    return _svg(parts, ", ".join(drawn))


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers from `low` to `high`."""
    span = (high - low) or 1.0
    rough = span / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, first + 12) if step * n <= high + span * 1e-9]


def _axes(
    x: Scale, y: Scale, along: Sequence[float], up: Sequence[float], below: str, *, percent: bool = False
) -> list[str]:
    parts = []
    for value in up:
        label = f"{100 * value:.0f} %" if percent else f"{value:g}"
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{RIGHT}"/>')
        parts.append(f'<text class="end small" x="{LEFT - 6}" y="{y(value) + 4:.1f}">{label}</text>')
    for value in along:
        parts.append(f'<text class="mid small" x="{x(value):.1f}" y="{BOTTOM + 18}">{value:g}</text>')
    parts.append(f'<text class="mid" x="{(LEFT + RIGHT) / 2:.0f}" y="{BOTTOM + 38}">{escape(below)}</text>')
    return parts


def _spread(places: Sequence[float]) -> list[float]:
    """The heights moved apart to `LINE`, in their order, none below the plot."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, index in zip([None, *order], order, strict=False):
        moved[index] = max(moved[index], TOP if before is None else moved[before] + LINE)
    over = max((moved[index] for index in order[-1:]), default=0) - BOTTOM
    for after, index in zip([None, *reversed(order)], reversed(order), strict=False):
        ceiling = moved[index] - max(over, 0) if after is None else moved[after] - LINE
        moved[index] = min(moved[index], ceiling)
    return moved


def _svg(parts: Sequence[str], label: str, height: int = HEIGHT) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">{inside}</svg>'


def _or(value: float | None, other: float | None) -> float:
    return value if value is not None else other or 0.0
