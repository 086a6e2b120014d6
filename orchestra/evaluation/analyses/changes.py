"""What tools or prices that training never showed change: accuracy, dollars and utility on the same examples.

Always-strongest attempts everything too. It reads no name, no word and no price, so what changes for it is the change
itself: it is the control.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.evaluation.analyses.figure import titled
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.probes.shipped import renamed, repriced
from orchestra.evaluation.report import blank_figure, label
from orchestra.evaluation.statistics import PolicySummary, summarise
from orchestra.statistics.intervals import Interval, paired_difference
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.types import Episode, Example, Record, ToolKind

KNOWN, UNSEEN = "known", "unseen"
BEYOND = (1.1, 1.5)
"""Unseen prices are so many times further from the list price than the furthest of training."""
HEADER = (
    "policy",
    "shown",
    "accuracy",
    "95 % interval",
    "change in points",
    "¢ / example",
    "of the strongest's dollars",
    "preference",
    "utility",
)
Attempts = Mapping[str, Sequence[Episode]]
"""Episodes by policy."""


class ChangeRow(Record):
    """One policy on the examples as they are, or changed."""

    condition: str
    """`known` or `unseen`."""
    summary: PolicySummary
    change: Interval = Interval()
    """Accuracy minus that with what is known, on the same examples; empty for the known itself."""


class ChangeAnalysis(Record):
    """Every policy with the known and the unseen: unseen-tools.json, unseen-prices.json."""

    what: str
    """`tools` or `prices`."""
    data: str
    """The set: `own`, or a benchmark's name."""
    simulated: bool
    examples: int
    reference: str
    """The policy whose episodes are M0 of Eq. 5."""
    rows: tuple[ChangeRow, ...]


def unseen_tools(example: Example, catalogue: Catalogue, seed: int) -> Example:
    """Every expert under an invented name and in words that training lacks; its price and its seconds stay."""
    return renamed(example, catalogue, random.Random(f"{seed}:unseen-tools:{example.id}"))


def unseen_prices(example: Example, catalogue: Catalogue, spread: float, seed: int) -> Example:
    """Every expert at a price beyond training's range, which is the list price within `spread` times, up or down."""
    rng = random.Random(f"{seed}:unseen-prices:{example.id}")

    def factor() -> float:
        return float((spread * rng.uniform(*BEYOND)) ** rng.choice((-1, 1)))

    toolbox = tuple(
        repriced(spec, catalogue, factor()) if spec.kind is ToolKind.EXPERT else spec for spec in example.toolbox
    )
    return example.model_copy(update={"toolbox": toolbox})


def rows(
    found: Mapping[str, Attempts], sets: Mapping[str, Sequence[Example]], reference: str, resamples: int, seed: int
) -> list[ChangeRow]:
    """Policy by policy, the known first. `found` has the episodes and `sets` the examples of both conditions."""
    summaries = {
        condition: summarise(
            attempts, sets[condition], reference=reference, strongest=STRONGEST, bootstrap=resamples, seed=seed
        )
        for condition, attempts in found.items()
    }
    made = []
    for policy in found[KNOWN]:
        before, after = _solved(found[KNOWN][policy]), _solved(found[UNSEEN][policy])
        made.append(ChangeRow(condition=KNOWN, summary=summaries[KNOWN][policy]))
        change = paired_difference(after, before, resamples, seed)
        made.append(ChangeRow(condition=UNSEEN, summary=summaries[UNSEEN][policy], change=change))
    return made


def table(analysis: ChangeAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, two rows for each policy."""
    return [HEADER, *(_row(one) for one in analysis.rows)]


def plot(analysis: ChangeAnalysis, file: Path) -> None:
    """Accuracy over dollars, an arrow from the known to the unseen for each policy."""
    figure, axes = blank_figure(8, 5)
    for before, after in zip(analysis.rows[::2], analysis.rows[1::2], strict=True):
        start, end = _place(before), _place(after)
        if start is None or end is None:
            continue
        (dots,) = axes.plot([start[0], end[0]], [start[1], end[1]], "o", label=label(before.summary.policy))
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": dots.get_color()})
        interval = after.summary.accuracy
        axes.plot([end[0], end[0]], [interval.low or 0.0, interval.high or 0.0], color="grey", linewidth=0.8, zorder=0)
    axes.set_xlabel("US cents per example")
    axes.set_ylabel("accuracy")
    axes.set_title(titled(f"From known to unseen {analysis.what}", analysis.data, analysis.simulated))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    axes.margins(x=0.15, y=0.15)
    figure.savefig(file)


def metrics(analysis: ChangeAnalysis) -> dict[str, float]:
    """Numbers for MLflow, by policy and condition."""
    found: dict[str, float] = {}
    for one in analysis.rows:
        summary = one.summary
        told = {
            "accuracy": summary.accuracy,
            "change": one.change,
            "cost_usd": summary.cost_usd,
            "cost_ratio": summary.cost_ratio,
            "preference": summary.preference,
            "utility": summary.utility,
        }
        name = f"{summary.policy}.{one.condition}".replace("@", "_").replace(":", "_")
        found |= {f"{name}.{what}": value for what, part in told.items() if (value := part.value) is not None}
    return found


def _solved(episodes: Sequence[Episode]) -> dict[str, float]:
    return {episode.example_id: float(bool(episode.solved)) for episode in episodes if episode.counted}


def _place(row: ChangeRow) -> tuple[float, float] | None:
    cost, accuracy = row.summary.cost_usd.value, row.summary.accuracy.value
    return None if cost is None or accuracy is None else (100 * cost, accuracy)


def _row(one: ChangeRow) -> tuple[str, ...]:
    summary, change = one.summary, one.change
    return (
        label(summary.policy),
        one.condition,
        _number(summary.accuracy.value, 1, scale=100),
        _range(summary.accuracy),
        _number(change.value, 1, scale=100, sign="+") + (f" ({_range(change)})" if change.value is not None else ""),
        _number(summary.cost_usd.value, 3, scale=100),
        _number(summary.cost_ratio.value, 2),
        _number(summary.preference.value, 3),
        _number(summary.utility.value, 3),
    )


def _range(interval: Interval) -> str:
    return f"{_number(interval.low, 1, scale=100)} to {_number(interval.high, 1, scale=100)}"


def _number(value: float | None, digits: int, scale: float = 1, sign: str = "") -> str:
    return "—" if value is None else f"{scale * value:{sign}.{digits}f}"
