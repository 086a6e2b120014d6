"""The cost-accuracy frontier of one policy over turn limits, over what users weigh, and over budgets.

The same examples are attempted under every setting, so that the points are paired. A preference of the set stands for
its kind: every example is given the words and weights of one of that kind.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.evaluation.analyses.figure import OWN, name_points, titled
from orchestra.evaluation.report import blank_figure, label
from orchestra.statistics.frontier import hull
from orchestra.statistics.intervals import Interval, mean_interval
from orchestra.types import Episode, Example, Preference, Record

HEADER = (
    "setting", "accuracy", "95 % interval", "¢ / example", "s / example", "turns", "weights (o, c, l)", "of the budget",
)  # fmt: skip
TURNS, PREFERENCE, BUDGET = "turn limit", "preference", "budget"


class FrontierSetting(Record):
    """What is attempted: at most so many turns, everybody with a preference of that kind, or a budget."""

    series: str
    """`turn limit`, `preference` or `budget`."""
    name: str
    max_turns: int
    preference: str = ""
    """The kind given to every example; empty: each keeps its own."""
    budget_usd: float | None = None
    """Dollars that an episode may spend; None: `rollout.budget_usd` of params.yaml."""


class FrontierPoint(Record):
    """One setting, measured."""

    setting: FrontierSetting
    examples: int
    """With a verdict."""
    accuracy: Interval
    cost_usd: Interval
    """Dollars per example."""
    latency_s: Interval
    turns: float
    """Per example."""
    weights: tuple[float, float, float]
    """Mean weights of outcome, compute and latency (P of Eq. 2) over the examples."""


class FrontierAnalysis(Record):
    """A policy under every setting: frontier.json."""

    policy: str
    simulated: bool
    points: tuple[FrontierPoint, ...]


def settings(
    turns: Sequence[int], max_turns: int, kinds: Sequence[str], budgets: Sequence[float] = ()
) -> list[FrontierSetting]:
    """The turn limits with everybody's own preference, then the kinds of preference and the budgets at the usual limit.

    `budgets`: dollars an episode.
    """
    limits = [FrontierSetting(series=TURNS, name=f"{n} turn{'s' * (n > 1)}", max_turns=n) for n in sorted(set(turns))]
    wishes = [FrontierSetting(series=PREFERENCE, name=k, max_turns=max_turns, preference=k) for k in kinds]
    caps = [
        FrontierSetting(series=BUDGET, name=f"{b:g} USD", max_turns=max_turns, budget_usd=b)
        for b in sorted(set(budgets))
    ]
    return limits + wishes + caps


def by_kind(examples: Sequence[Example]) -> dict[str, list[Preference]]:
    """The set's preferences that suit any example, by kind: those that name no tool and weigh no further part."""
    found: dict[str, list[Preference]] = {}
    for example in examples:
        if not example.preference.tools and not example.preference.weights:
            found.setdefault(example.preference.kind, []).append(example.preference)
    return dict(sorted(found.items()))


def given(examples: Sequence[Example], preferences: Sequence[Preference], seed: int) -> list[Example]:
    """Every example with one of the preferences, drawn by its id."""
    drawn = [random.Random(f"{seed}:frontier:{example.id}").choice(preferences) for example in examples]
    pairs = zip(examples, drawn, strict=True)
    return [example.model_copy(update={"preference": preference}) for example, preference in pairs]


def point(
    setting: FrontierSetting, episodes: Sequence[Episode], examples: Sequence[Example], bootstrap: int, seed: int
) -> FrontierPoint:
    """What the episodes of a setting show; those that infrastructure failures ended are left out."""
    counted = [episode for episode in episodes if episode.counted]
    wishes = [example.preference for example in examples]
    count = max(1, len(wishes))
    weights = [sum(getattr(wish, part) for wish in wishes) / count for part in ("outcome", "compute", "latency")]
    return FrontierPoint(
        setting=setting,
        examples=len(counted),
        accuracy=mean_interval([float(bool(one.solved)) for one in counted], bootstrap, seed),
        cost_usd=mean_interval([float(one.cost_usd) for one in counted], bootstrap, seed),
        latency_s=mean_interval([one.latency_s for one in counted], bootstrap, seed),
        turns=sum(len(one.turns) for one in counted) / max(1, len(counted)),
        weights=(weights[0], weights[1], weights[2]),
    )


def table(analysis: FrontierAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, a row for each setting."""
    return [HEADER, *(_row(one) for one in analysis.points)]


def plot(analysis: FrontierAnalysis, file: Path) -> None:
    """Accuracy over dollars: lines for turn limits and budgets, points for preferences, and the frontier of all."""
    figure, axes = blank_figure(8, 5)
    shown = [one for one in analysis.points if one.accuracy.value is not None]
    for series, style in ((TURNS, "o-"), (PREFERENCE, "s"), (BUDGET, "^-")):
        found = [one for one in shown if one.setting.series == series]
        if not found:
            continue
        places = [_place(one) for one in found]
        axes.plot([x for x, _ in places], [y for _, y in places], style, label=series)
        for one, (x, _) in zip(found, places, strict=True):
            low, high = one.accuracy.low or 0.0, one.accuracy.high or 0.0
            axes.plot([x, x], [low, high], color="grey", linewidth=0.8, zorder=0)
    line = [_place(shown[index]) for index in hull([_place(one) for one in shown])]
    axes.plot([x for x, _ in line], [y for _, y in line], "--", color="grey", linewidth=0.8, label="frontier", zorder=0)
    axes.set_xlabel("US cents per example")
    axes.set_ylabel("accuracy")
    axes.set_title(titled(label(analysis.policy), OWN, analysis.simulated))
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    axes.margins(x=0.15, y=0.15)
    axes.set_ylim(max(-0.02, axes.get_ylim()[0]), min(1.02, axes.get_ylim()[1]))
    name_points(axes, [(one.setting.name, *_place(one)) for one in shown])
    figure.savefig(file)


def metrics(analysis: FrontierAnalysis) -> Mapping[str, float]:
    """Numbers for MLflow, by setting."""
    found = {}
    for one in analysis.points:
        for what in ("accuracy", "cost_usd", "latency_s"):
            value = getattr(one, what).value
            if value is not None:
                found[f"{one.setting.name}.{what}"] = float(value)
    return found


def _place(one: FrontierPoint) -> tuple[float, float]:
    return 100 * (one.cost_usd.value or 0.0), one.accuracy.value or 0.0


def _row(one: FrontierPoint) -> tuple[str, ...]:
    accuracy = one.accuracy
    if accuracy.value is None or accuracy.low is None or accuracy.high is None:
        return (one.setting.name, *["—"] * (len(HEADER) - 1))
    return (
        one.setting.name,
        f"{100 * accuracy.value:.1f} %",
        f"{100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}",
        f"{100 * (one.cost_usd.value or 0.0):.3f}",
        f"{one.latency_s.value or 0.0:.1f}",
        f"{one.turns:.2f}",
        ", ".join(f"{weight:.2f}" for weight in one.weights),
        f"{100 * (one.cost_usd.value or 0.0) / budget:.0f} %" if (budget := one.setting.budget_usd) else "—",
    )
