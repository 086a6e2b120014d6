"""Draws docs/images/frontier.svg from the tables of docs/explanation/results.md: `python -m scripts.figures`."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = "docs/explanation/results.md"
FIGURE = "docs/images/frontier.svg"

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 44, 54
CENTS = (0.15, 8.0)
"""Range of the cost axis, which is logarithmic."""
ACCURACY = (60.0, 95.0)
"""Range of the accuracy axis, percent."""
TRAINED = "trained orchestrator"
COLOURS = {TRAINED: "#c2410c", "SFT model": "#7c3aed", "shipped base": "#0369a1", "base, choices by rule": "#0369a1"}
RULE = "#475569"
RIGHT_OF, LEFT_OF = (10.0, 4.0, "start"), (-10.0, 4.0, "end")
LABELS = {
    TRAINED: (14.0, -14.0, "start"),
    "base, choices by rule": (-12.0, -12.0, "end"),
    "shipped base": (12.0, 12.0, "start"),
    "SFT model": (-4.0, 22.0, "end"),
    "kNN router": LEFT_OF,
    "always strongest": LEFT_OF,
    "price aware": (2.0, 20.0, "middle"),
}
"""Offset in pixels and anchor of a label; elsewhere it stands to the right."""


class Point(NamedTuple):
    policy: str
    cents: float
    """US cents per example."""
    accuracy: float
    """Percent."""


def points(text: str) -> Iterator[Point]:
    """Every row of the tables with the columns policy, accuracy and ¢ / example; a training seed is its own row."""
    columns: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("| ").split("|")] if line.startswith("|") else []
        if not cells:
            columns = []
        elif not columns:
            columns = cells
        elif {"policy", "accuracy", "¢ / example"} <= set(columns) and not set(line) <= set("|-: "):
            row = dict(zip(columns, cells, strict=True))
            name = re.sub(r"\*|, seed \d+| \(.*\)", "", row["policy"])
            yield Point(name, float(row["¢ / example"]), float(row["accuracy"].rstrip(" %")))


def draw(found: list[Point]) -> str:
    """The figure as SVG: cost against accuracy, one mark a row and one label a policy."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="bold">Cost and accuracy, held-out examples, '
        "simulated experts</text>",
        *_axes(),
    ]
    labelled: set[str] = set()
    for point in found:
        x, y = _place(point)
        colour = COLOURS.get(point.policy, RULE)
        if point.policy in COLOURS:
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        else:
            lines.append(f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{colour}"/>')
        if point.policy not in labelled:
            labelled.add(point.policy)
            dx, dy, anchor = LABELS.get(point.policy, RIGHT_OF)
            weight = ' font-weight="bold"' if point.policy == TRAINED else ""
            lines.append(
                f'<text x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>'
                f"{point.policy}</text>"
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _place(point: Point) -> tuple[float, float]:
    low, high = (math.log(value) for value in CENTS)
    across = (math.log(point.cents) - low) / (high - low)
    up = (point.accuracy - ACCURACY[0]) / (ACCURACY[1] - ACCURACY[0])
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def _axes() -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for cents in (0.2, 0.5, 1.0, 2.0, 5.0):
        x, _ = _place(Point("", cents, ACCURACY[0]))
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e2e8f0"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#334155">{cents:g}</text>'
    for accuracy in range(60, 96, 5):
        _, y = _place(Point("", 1.0, accuracy))
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#334155">{accuracy}</text>'
    middle = (TOP + bottom) / 2
    yield f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">US cents per example (log)</text>'
    turned = f'transform="rotate(-90 18 {middle:.0f})"'
    yield f'<text x="18" y="{middle:.0f}" text-anchor="middle" {turned}>accuracy, %</text>'


def main() -> None:
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    (ROOT / FIGURE).write_text(draw(list(points(text))), encoding="utf-8")


if __name__ == "__main__":
    main()
