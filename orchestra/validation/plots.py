"""Distributions of a data set as SVG: both splits in each plot, the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BINS = 30
COLOURS = ("#0969da", "#d29922", "#1a7f37", "#8250df")
"""Of the splits, in their order."""
# Text stays text; ids come from the contents and not from chance.
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "data", "font.size": 9}
NO_CLOCK = {"Date": None, "Creator": None}


PLOTTED = (
    *("split", "category", "domain", "topic", "hard", "preference", "tools", "golden_calls", "instruction_chars"),
    *("expert_usd_min", "expert_usd_max", "latency_s_max"),
)
"""The columns of `flatten.COLUMNS` that are looked at."""


@dataclass(frozen=True)
class Plot:
    name: str
    svg: str


def plots(examples: pd.DataFrame, splits: Sequence[str]) -> list[Plot]:
    """One for each distribution that has any value; `examples` has the columns `PLOTTED`."""
    parts = {split: examples[examples["split"] == split] for split in splits}

    def column(name: str) -> dict[str, pd.Series]:
        return {split: part[name].dropna() for split, part in parts.items()}

    hard = {split: part[part["topic"].notna()].groupby("topic")["hard"].mean() for split, part in parts.items()}
    found = [
        _bars("Categories, share of the split", _shares(column("category"))),
        _bars("Domains, share of the domain examples", _shares(column("domain"))),
        _bars("Topics, share of the topic questions", _shares(column("topic"))),
        _bars("Hard, share of a topic's questions", hard),
        _bars("Preferences, share of the split", _shares(column("preference"))),
        _histogram("Tools offered to an example", column("tools"), whole=True),
        _histogram("Calls of the known solution", column("golden_calls"), whole=True),
        _histogram("Length of the instruction, characters", column("instruction_chars")),
        _histogram("A call of the cheapest expert, dollars", column("expert_usd_min"), log=True),
        _histogram("A call of the most expensive expert, dollars", column("expert_usd_max"), log=True),
        _histogram("A call of the slowest tool, seconds", column("latency_s_max"), log=True),
    ]
    return [plot for plot in found if plot is not None]


def _shares(values: Mapping[str, pd.Series]) -> dict[str, pd.Series]:
    return {split: column.value_counts(normalize=True) for split, column in values.items()}


def _bars(name: str, shares: Mapping[str, pd.Series]) -> Plot | None:
    """A group of bars for each name, in their order; `shares` of 1 by name."""
    names = sorted({str(label) for share in shares.values() for label in share.index})
    if not names:
        return None
    height = 0.8 / len(shares)

    def draw(axes: Axes) -> None:
        for place, (split, share) in enumerate(shares.items()):
            widths = [100 * float(share.get(label, 0.0)) for label in names]
            where = [index + (place - (len(shares) - 1) / 2) * height for index in range(len(names))]
            axes.barh(where, widths, height, label=split, color=COLOURS[place % len(COLOURS)])
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel("%")

    return _plot(name, draw, 1.2 + 0.28 * len(names))


def _histogram(name: str, values: Mapping[str, pd.Series], *, whole: bool = False, log: bool = False) -> Plot | None:
    """Shares of each split's values by bin; `whole` numbers have one each, `log` drops what is not positive."""
    import numpy as np

    numbers = {split: column.to_numpy(dtype=float) for split, column in values.items()}
    if log:
        numbers = {split: found[found > 0] for split, found in numbers.items()}
    every = np.concatenate(list(numbers.values()))
    if not len(every):
        return None
    low, high = float(every.min()), float(every.max())
    if whole:
        edges = np.arange(low - 0.5, high + 1.5)
    elif low == high:
        edges = np.array([low - 0.5, high + 0.5]) if not log else np.array([low / 2, low * 2])
    else:
        edges = np.geomspace(low, high, BINS + 1) if log else np.linspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high  # Rounding must not leave the ends out.

    def draw(axes: Axes) -> None:
        for place, (split, found) in enumerate(numbers.items()):
            counts, _ = np.histogram(found, edges)
            heights = 100 * counts / max(len(found), 1)
            axes.stairs(heights, edges, label=split, color=COLOURS[place % len(COLOURS)], fill=True, alpha=0.45)
        if log:
            axes.set_xscale("log")
        axes.set_ylabel("%")

    return _plot(name, draw, 2.6)


def _plot(name: str, draw: Callable[[Axes], None], height: float) -> Plot:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(name)
        axes.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=NO_CLOCK)
    return Plot(name, file.getvalue())
