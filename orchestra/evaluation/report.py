"""The report of an evaluation: the comparison as data, as a table, and as plots."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import BASELINES, ORACLE
from orchestra.evaluation.preference import COST_UNIT_USD, LATENCY_UNIT_S
from orchestra.evaluation.statistics import PolicySummary
from orchestra.files.jsonl import stream_lines
from orchestra.statistics.intervals import Interval
from orchestra.types import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINED, REFERENCE = "grpo", "sft"
"""The policy that may be promoted, and the one it is measured against."""
LABELS = {TRAINED: "trained orchestrator", REFERENCE: "SFT model", ORACLE: "oracle (head-room)"}
SIMULATED = "simulated experts"
EVALUATION = "reports/evaluation"
"""The folder of an evaluation, relative to the workspace."""
SAFETY = "safety.json"
"""The file of the safety set in it."""


class Comparison(Record):
    """One evaluation: comparison.json."""

    simulated: bool
    """Whether any simulated expert took part; everything shown says so."""
    examples: int
    data_hash: str
    """Of everything but the policy that decides a score."""
    price_date: str
    """ISO date of the price book."""
    bootstrap: int
    seed: int
    checkpoints: dict[str, str]
    """Hash by policy, of those that are checkpoints."""
    policies: dict[str, PolicySummary]


def read_comparison(file: Path) -> Comparison:
    """comparison.json as written; `DataError` when it is missing or corrupt."""
    try:
        return Comparison.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("no such file", where=str(file), fix="run the evaluate stage") from None
    except (ValidationError, UnicodeDecodeError):
        raise DataError("the comparison is corrupt", where=str(file), fix="run the evaluate stage again") from None


def read_verdicts(file: Path) -> dict[str, dict[str, list[bool]]]:
    """Solved or not of every trial that has a verdict, by policy and example, from an episodes file."""
    found: dict[str, dict[str, list[bool]]] = {}
    for number, line in stream_lines(file, fix="run the evaluate stage"):
        try:
            row = json.loads(line)
            of = found.setdefault(row["policy"], {}).setdefault(row["example_id"], [])
            of += [] if row["verdict"] is None else [bool(row["verdict"]["solved"])]
        except (ValueError, TypeError, KeyError):
            raise DataError(f"line {number} is no episode", where=str(file), fix="run the evaluate stage") from None
    return found


HEADER = (
    "policy",
    "accuracy",
    "95 % interval",
    "¢ / example",
    "s / example",
    "preference",
    "utility",
    "calls",
    "valid",
)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The table's cells under `HEADER`, a row for each policy."""
    return [
        (
            label(name),
            _percent(summary.accuracy.value),
            f"{_percent(summary.accuracy.low)} to {_percent(summary.accuracy.high)}" if summary.examples else "—",
            _number(summary.cost_usd.value, 3, scale=100),
            _number(summary.latency_s.value, 1),
            _number(summary.preference.value, 3),
            _number(summary.utility.value, 3),
            _number(summary.calls, 2),
            _percent(summary.valid),
        )
        for name, summary in comparison.policies.items()
    ]


def category_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells of accuracy by category."""
    names = list(dict.fromkeys(c for summary in comparison.policies.values() for c in summary.categories))
    body = []
    for name, summary in comparison.policies.items():
        found = [summary.categories.get(category) for category in names]
        body.append((label(name), *(_percent(part.accuracy if part else None) for part in found)))
    return ("policy", *(category.value.replace("_", " ") for category in names)), body


def footnotes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the table rightly."""
    failed = {name: summary.failed for name, summary in comparison.policies.items() if summary.failed}
    notes = [
        f"{comparison.examples} held-out examples, greedy, prices of {comparison.price_date}; 95 % intervals from "
        f"{comparison.bootstrap} bootstrap resamples.",
        "Rules (always …, random, price aware, kNN router, cascade, oracle) are told the known solution of everything "
        "that needs no expert, and their own tokens cost nothing; both favour them. The trained and the SFT model pay "
        "for their own tokens.",
        "Utility: the user's own P over an episode. Solved earns p_outcome and the wished tools' weight; spending and "
        "taking what always-strongest does on average loses p_compute and p_latency, solved or not.",
        f"Preference: Eq. 5-6 of the method, mean per example, against the SFT model's episode; cost in units of "
        f"${COST_UNIT_USD:g}, latency in units of {LATENCY_UNIT_S:g} s.",
    ]
    if comparison.simulated:
        notes.insert(0, "Made with simulated experts: their answers are decided by a hash at published accuracies.")
    if ORACLE in comparison.policies:
        notes.append("The oracle asks the cheapest expert that will be right, and nobody where none will be.")
    if failed:
        lost = ", ".join(f"{label(name)} {count}" for name, count in failed.items())
        notes.append(f"Left out because infrastructure failed, and counted here: {lost}.")
    return notes


def markdown(comparison: Comparison) -> str:
    """The table, accuracy by category, and the notes."""
    title = f"# Evaluation{f' ({SIMULATED})' if comparison.simulated else ''}"
    notes = [f"- {note}" for note in footnotes(comparison)]
    header, body = category_rows(comparison)
    parts = [title, _table(HEADER, rows(comparison)), "Accuracy by category", _table(header, body), "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


def label(policy: str) -> str:
    """A policy's name for people."""
    return LABELS.get(policy, policy.replace("_", " "))


def plot_frontier(comparison: Comparison, file: Path) -> None:
    """Accuracy over dollars with intervals, and the line of what nothing cheaper beats (the oracle left aside)."""
    figure, axes = blank_figure(7, 4.5)
    points: list[tuple[float, float]] = []
    for name, summary in comparison.policies.items():
        x, y = summary.cost_usd.value, summary.accuracy.value
        if x is None or y is None:
            continue
        if name != ORACLE:
            points.append((x * 100, y))
        marker = "o" if name not in BASELINES else "s"
        sides = [[_side(summary.accuracy, low=True)], [_side(summary.accuracy, low=False)]]
        axes.errorbar([x * 100], [y], yerr=sides, fmt=marker, capsize=3)
        axes.annotate(label(name), (x * 100, y), textcoords="offset points", xytext=(6, 6), fontsize=8)
    best = _frontier(points)
    axes.plot([x for x, _ in best], [y for _, y in best], color="grey", linewidth=0.8, zorder=0)
    axes.set_xlabel("US cents per example")
    axes.set_ylabel("accuracy")
    axes.set_title(_title("Cost and accuracy", comparison))
    axes.grid(alpha=0.3)
    axes.margins(x=0.15, y=0.15)
    figure.savefig(file)


def plot_tools(comparison: Comparison, file: Path) -> None:
    """Share of calls by tool, a bar for each policy."""
    from matplotlib import colormaps

    figure, axes = blank_figure(8, 4.5)
    names = list(comparison.policies)
    tools = sorted({tool for summary in comparison.policies.values() for tool in summary.tool_shares})
    left = [0.0] * len(names)
    colours = colormaps["tab20"]
    for index, tool in enumerate(tools):
        widths = [comparison.policies[name].tool_shares.get(tool, 0.0) for name in names]
        axes.barh([label(name) for name in names], widths, left=left, label=tool, color=colours(index % 20))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("share of tool calls")
    axes.set_title(_title("Tools used", comparison))
    if tools:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(file, bbox_inches="tight")


def write_report(comparison: Comparison, folder: Path) -> None:
    """comparison.json, table.md and the plots into `folder`."""
    (folder / "comparison.json").write_text(comparison.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(comparison), encoding="utf-8")
    plot_frontier(comparison, folder / "frontier.png")
    plot_tools(comparison, folder / "tools.png")


def _frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no cheaper one matches in accuracy, cheapest first."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best


def blank_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """An empty plot, inches; without pyplot: no global state, no display, and safe in a flow's threads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _title(text: str, comparison: Comparison) -> str:
    return f"{text} ({SIMULATED})" if comparison.simulated else text


def _side(interval: Interval, *, low: bool) -> float:
    bound = interval.low if low else interval.high
    return abs(bound - interval.value) if bound is not None and interval.value is not None else 0.0


def _table(header: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" if i == 0 else "---:" for i in range(len(header))), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.1f} %"


def _number(number: float | None, digits: int, scale: float = 1.0) -> str:
    return "—" if number is None else f"{number * scale:.{digits}f}"
