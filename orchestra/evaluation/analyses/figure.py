"""What the figures of all analyses share: panels, titles, and names of points that cover no other point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestra.evaluation.report import SIMULATED, blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN = "own"
NEAR_X, NEAR_Y = 0.12, 0.035
"""A name covers a point that is nearer than that on its side, as shares of the axes."""


def panels(width: float, height: float, count: int) -> "tuple[Figure, list[Axes]]":
    """Empty plots side by side, inches in all."""
    figure, first = blank_figure(width, height)
    first.remove()
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def titled(text: str, data: str, simulated: bool) -> str:
    """The title of an analysis of a set; `own` is this workspace's held-out examples."""
    named = "held-out examples" if data == OWN else data
    return f"{text}, {named}" + (f" ({SIMULATED})" if simulated else "")


def name_points(axes: "Axes", points: Sequence[tuple[str, float, float]]) -> None:
    """Write each name (name, x, y) to the right of its point, or to the left where another point is in the way.

    Call it when the limits of the axes are final.
    """
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    placed = sorted(points, key=lambda point: (point[1], point[2]))
    for index, (name, x, y) in enumerate(placed):
        in_the_way = any(
            (other_x - x) / (right - left) < NEAR_X and abs(other_y - y) / (top - bottom) < NEAR_Y
            for _, other_x, other_y in placed[index + 1 :]
        )
        side, align = (-7, "right") if in_the_way else (7, "left")
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(side, 4), ha=align, fontsize=8)
