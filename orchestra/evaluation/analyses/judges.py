"""Two judges on the same answers: does an open one give the figures and the order of models that a strong one gives?

The stored verdicts are the strong judge's, and the control. Every other judge reads the same prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from orchestra.evaluation.benchmarks.agreement import agreement
from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.evaluation.report import blank_figure
from orchestra.statistics.intervals import Interval, mean_interval, paired_difference
from orchestra.types import Judged, Record, Usd, add_up

ALL = "all"
HEADER = (
    "model",
    "answers",
    "accuracy",
    "by the other",
    "difference in points",
    "agreed",
    "kappa",
    "lenient",
    "strict",
)
Key = tuple[str, str, int]
"""The tested model, the question's id and the trial."""


class JudgeRow(Record):
    """The answers of one tested model, or of all, as two judges see them."""

    model: str
    """As its report calls it, or `all`."""
    answers: int
    """That both judged."""
    first: Interval
    """Share that the first judge calls right, resampled by question."""
    other: Interval
    difference: Interval
    """The other's minus the first's, on the same questions."""
    agreed: float
    kappa: float | None
    """Cohen's; None where chance alone would agree."""
    lenient: int
    """Answers that only the other judge calls right."""
    strict: int
    """Answers that only the first judge calls right."""


class JudgeAnalysis(Record):
    """Two judges on the answers of a benchmark: judges-BENCHMARK-MODEL.json."""

    benchmark: str
    first: str
    other: str
    rows: tuple[JudgeRow, ...]
    failed: int
    """Answers that the other judge gave no verdict on; they are left out."""
    same_order: bool | None
    """Whether both put the tested models in the same order; None for fewer than two."""
    first_usd: Usd
    """Of a verdict, on average."""
    other_usd: Usd


def judged(results: Mapping[str, Sequence[Attempt]]) -> dict[Key, Judged]:
    """The stored verdicts of judges, by tested model, question and trial; what a rule decided is left out."""
    return {
        (model, one.item, one.trial): one.judged
        for model, attempts in results.items()
        for one in attempts
        if one.judged is not None
    }


def compare(
    benchmark: str, first: Mapping[Key, Judged], other: Mapping[Key, Judged], name: str, resamples: int, seed: int
) -> JudgeAnalysis:
    """The rows of all answers and of each model. `other` may lack answers; `name` is that judge's model."""
    both = [key for key in first if key in other]
    models = list(dict.fromkeys(key[0] for key in both))
    judges = sorted({one.judge for one in first.values()})
    made = [_row(ALL, both, first, other, resamples, seed)] if both else []
    own = [_row(model, [k for k in both if k[0] == model], first, other, resamples, seed) for model in models]
    return JudgeAnalysis(
        benchmark=benchmark,
        first=", ".join(judges),
        other=name,
        rows=(*made, *own),
        failed=len(first) - len(both),
        same_order=_order(own, "first") == _order(own, "other") if len(own) > 1 else None,
        first_usd=_mean_usd(first[key] for key in both),
        other_usd=_mean_usd(other[key] for key in both),
    )


def table(analysis: JudgeAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, all answers first."""
    return [HEADER, *(_cells(one) for one in analysis.rows)]


def notes(analysis: JudgeAnalysis) -> list[str]:
    """What else a reader of the table must know."""
    order = {True: "both put the models in the same order", False: "THE ORDER OF THE MODELS DIFFERS"}
    said = [
        f"accuracy by {analysis.first} ({analysis.first_usd:.6f} USD a verdict), the other judge is {analysis.other} "
        f"({analysis.other_usd:.6f} USD a verdict); {analysis.failed} answers without a verdict of the other"
    ]
    return [*said, order[analysis.same_order]] if analysis.same_order is not None else said


def plot(analysis: JudgeAnalysis, file: Path) -> None:
    """Each model's accuracy by the one judge over that by the other; on the line both say the same."""
    figure, axes = blank_figure(6, 6)
    for one in (one for one in analysis.rows if one.model != ALL):
        x, y = one.first.value or 0.0, one.other.value or 0.0
        axes.plot([x, x], [one.other.low or 0.0, one.other.high or 0.0], color="grey", linewidth=0.8, zorder=0)
        axes.plot([one.first.low or 0.0, one.first.high or 0.0], [y, y], color="grey", linewidth=0.8, zorder=0)
        axes.plot([x], [y], "o")
        axes.annotate(one.model, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=0.8)
    axes.set_xlabel(f"accuracy by {analysis.first}")
    axes.set_ylabel(f"accuracy by {analysis.other}")
    axes.set_title(f"Two judges, {analysis.benchmark}")
    axes.grid(alpha=0.3)
    figure.savefig(file)


def metrics(analysis: JudgeAnalysis) -> dict[str, float]:
    """Numbers for MLflow, by tested model."""
    found = {"failed": float(analysis.failed)}
    for one in analysis.rows:
        told = {"first": one.first.value, "other": one.other.value, "agreed": one.agreed, "kappa": one.kappa}
        found |= {f"{one.model}.{what}": value for what, value in told.items() if value is not None}
    return found


def _row(
    model: str,
    keys: Sequence[Key],
    first: Mapping[Key, Judged],
    other: Mapping[Key, Judged],
    resamples: int,
    seed: int,
) -> JudgeRow:
    pairs = [(first[key].solved, other[key].solved) for key in keys]
    agreed = agreement("", "", pairs)
    assert agreed is not None
    ours, theirs = _by_question(keys, first), _by_question(keys, other)
    return JudgeRow(
        model=model,
        answers=len(keys),
        first=mean_interval(list(ours.values()), resamples, seed),
        other=mean_interval(list(theirs.values()), resamples, seed),
        difference=paired_difference(theirs, ours, resamples, seed),
        agreed=agreed.agreed,
        kappa=agreed.kappa,
        lenient=sum(not one and two for one, two in pairs),
        strict=sum(one and not two for one, two in pairs),
    )


def _by_question(keys: Sequence[Key], verdicts: Mapping[Key, Judged]) -> dict[str, float]:
    """Mean verdict by question: its trials and models stay together when questions are drawn again."""
    found: dict[str, list[bool]] = {}
    for key in keys:
        found.setdefault(key[1], []).append(verdicts[key].solved)
    return {item: sum(some) / len(some) for item, some in found.items()}


def _order(rows: Sequence[JudgeRow], judge: str) -> list[str]:
    """Models from the best; of equals, by name."""
    return [one.model for one in sorted(rows, key=lambda one: (-(getattr(one, judge).value or 0.0), one.model))]


def _mean_usd(verdicts: Iterable[Judged]) -> Decimal:
    spent = [one.cost_usd for one in verdicts]
    return add_up(spent) / max(1, len(spent))


def _cells(one: JudgeRow) -> tuple[str, ...]:
    difference = one.difference
    return (
        one.model,
        str(one.answers),
        f"{100 * (one.first.value or 0.0):.1f} %",
        f"{100 * (one.other.value or 0.0):.1f} %",
        f"{100 * (difference.value or 0.0):+.1f} ({100 * (difference.low or 0.0):.1f} to "
        f"{100 * (difference.high or 0.0):.1f})",
        f"{100 * one.agreed:.1f} %",
        "—" if one.kappa is None else f"{one.kappa:.2f}",
        str(one.lenient),
        str(one.strict),
    )
