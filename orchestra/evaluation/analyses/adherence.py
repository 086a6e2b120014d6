"""Preference adherence: Eq. 5-6 and utility with what users state, and with the same users silent.

The silent attempt is the control: it has the same weights P in its score and no word of them in its prompt. What it
scores less is what the policy made of the words. Eq. 5-6 divides the reference's dollars by the policy's own, without a
bound: a few examples that cost next to nothing decide its mean. Utility subtracts dollars and has no such examples.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.evaluation.analyses.changes import Attempts
from orchestra.evaluation.analyses.figure import panels, titled
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.outcomes import Unit, outcomes, unit, utility
from orchestra.evaluation.preference import preference_score
from orchestra.evaluation.report import label
from orchestra.statistics.intervals import Interval, mean_interval, paired_difference
from orchestra.types import Episode, Example, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAID, SILENT = "said", "silent"
ALL = "all"
HEADER = (
    "policy",
    "preference",
    "examples",
    "Eq. 5-6",
    "without words",
    "gain",
    "utility",
    "without words",
    "gain",
    "accuracy",
)


class AdherenceRow(Record):
    """One policy over all examples that state a preference, or those of one kind."""

    policy: str
    preference: str
    """The kind, or `all`."""
    examples: int
    """With a verdict in both attempts and in the reference's."""
    said: Interval
    """Mean score of Eq. 5-6 per example."""
    silent: Interval
    """The same without the words."""
    gain: Interval
    """The difference, on the same examples."""
    utility: Interval = Interval()
    """Mean utility per example (`outcomes.utility`); empty where always-strongest spent nothing."""
    silent_utility: Interval = Interval()
    utility_gain: Interval = Interval()
    accuracy: Interval
    """With the words."""


class AdherenceAnalysis(Record):
    """Every policy on one set: preferences-SET.json."""

    data: str
    """The set: `own`, or a benchmark's name."""
    simulated: bool
    reference: str
    """The policy whose episodes with the words are M0."""
    rows: tuple[AdherenceRow, ...]


def stating(examples: Sequence[Example]) -> list[Example]:
    """The examples whose users state a preference."""
    return [example for example in examples if example.preference.words]


def silenced(example: Example) -> Example:
    """The same user and weights, without a word of them."""
    return example.model_copy(update={"preference": example.preference.model_copy(update={"words": ""})})


def rows(
    found: Mapping[str, Attempts], examples: Sequence[Example], reference: str, resamples: int, seed: int
) -> list[AdherenceRow]:
    """Policy by policy: all examples, then each kind of preference. `found` has the episodes of both conditions."""
    kinds = {example.id: example.preference.kind for example in examples}
    by_id = {example.id: example for example in examples}
    measure = unit(outcomes(found[SAID].get(STRONGEST, ()), by_id))
    before = {episode.example_id: episode for episode in found[SAID][reference]}
    made = []
    for policy, episodes in found[SAID].items():
        said = _scores(episodes, before, examples)
        silent = _scores(found[SILENT][policy], before, examples)
        both = {name: score for name, score in said.items() if name in silent}
        useful, silently = _utilities(episodes, by_id, measure), _utilities(found[SILENT][policy], by_id, measure)
        solved = {episode.example_id: float(bool(episode.solved)) for episode in episodes}
        for group in (ALL, *sorted(set(kinds.values()))):
            ours = {name: score for name, score in both.items() if group in (ALL, kinds[name])}
            worth = {name: useful[name] for name in ours if name in useful}
            made.append(
                AdherenceRow(
                    policy=policy,
                    preference=group,
                    examples=len(ours),
                    said=mean_interval(list(ours.values()), resamples, seed),
                    silent=mean_interval([silent[name] for name in ours], resamples, seed),
                    gain=paired_difference(ours, silent, resamples, seed),
                    utility=mean_interval(list(worth.values()), resamples, seed),
                    silent_utility=mean_interval([silently[name] for name in worth], resamples, seed),
                    utility_gain=paired_difference(worth, silently, resamples, seed),
                    accuracy=mean_interval([solved[name] for name in ours], resamples, seed),
                )
            )
    return made


def table(analysis: AdherenceAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, a row for each policy and kind of preference."""
    return [HEADER, *(_row(one) for one in analysis.rows)]


def plot(analysis: AdherenceAnalysis, file: Path) -> None:
    """What the words gain, by kind of preference, a bar for each policy: in utility, and in the score of Eq. 5-6."""
    kinds = list(dict.fromkeys(one.preference for one in analysis.rows))
    figure, axes = panels(11, 1.4 + 0.5 * max(1, len(kinds)), 2)
    _bars(axes[0], analysis.rows, kinds, lambda one: one.utility_gain)
    _bars(axes[1], analysis.rows, kinds, lambda one: one.gain)
    axes[0].set_xlabel("utility: with the words minus without them")
    axes[1].set_xlabel("score of Eq. 5-6: with the words minus without them")
    axes[0].set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes[1].set_yticks(range(len(kinds)), [""] * len(kinds))
    figure.suptitle(titled("Preference adherence", analysis.data, analysis.simulated))
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(file, bbox_inches="tight")


def metrics(analysis: AdherenceAnalysis) -> dict[str, float]:
    """Numbers for MLflow, by policy and kind of preference."""
    found = {}
    for one in analysis.rows:
        name = f"{one.policy}.{one.preference}".replace("@", "_").replace(":", "_")
        for what in ("said", "silent", "gain", "utility", "silent_utility", "utility_gain"):
            value = getattr(one, what).value
            if value is not None:
                found[f"{name}.{what}"] = float(value)
    return found


def _bars(
    axes: "Axes", rows: Sequence[AdherenceRow], kinds: Sequence[str], gain: Callable[[AdherenceRow], Interval]
) -> None:
    """One panel: a bar with its interval for each policy and kind that has a gain."""
    policies = list(dict.fromkeys(one.policy for one in rows))
    height = 0.8 / max(1, len(policies))
    for index, policy in enumerate(policies):
        own = [(one, told) for one in rows if one.policy == policy and (told := gain(one)).value is not None]
        places = [kinds.index(one.preference) + (index - (len(policies) - 1) / 2) * height for one, _ in own]
        values = [told.value or 0.0 for _, told in own]
        sides = [
            [max(0.0, value - (told.low or 0.0)) for (_, told), value in zip(own, values, strict=True)],
            [max(0.0, (told.high or 0.0) - value) for (_, told), value in zip(own, values, strict=True)],
        ]
        axes.barh(places, values, height=height, xerr=sides, label=label(policy), capsize=2)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_ylim(len(kinds) - 0.5, -0.5)


def _utilities(episodes: Sequence[Episode], examples: Mapping[str, Example], measure: Unit | None) -> dict[str, float]:
    """Utilities by example; an attempt without a verdict has none."""
    if measure is None:
        return {}
    return {
        one.example_id: utility(one, examples[one.example_id].preference, measure)
        for one in outcomes(episodes, examples)
        if one.solved is not None
    }


def _scores(
    episodes: Sequence[Episode], before: Mapping[str, Episode], examples: Sequence[Example]
) -> dict[str, float]:
    """Scores by example; an attempt without a verdict has none."""
    preferences = {example.id: example.preference for example in examples}
    scores = {
        one.example_id: preference_score(one, before[one.example_id], preferences[one.example_id]) for one in episodes
    }
    return {name: score for name, score in scores.items() if score is not None}


def _row(one: AdherenceRow) -> tuple[str, ...]:
    def told(value: float | None, sign: str = "") -> str:
        return "—" if value is None else f"{value:{sign}.3f}"

    def gained(gain: Interval) -> str:
        return (
            "—" if gain.value is None else f"{told(gain.value, '+')} ({told(gain.low, '+')} to {told(gain.high, '+')})"
        )

    accuracy = one.accuracy.value
    return (
        label(one.policy),
        one.preference.replace("_", " "),
        str(one.examples),
        told(one.said.value),
        told(one.silent.value),
        gained(one.gain),
        told(one.utility.value),
        told(one.silent_utility.value),
        gained(one.utility_gain),
        "—" if accuracy is None else f"{100 * accuracy:.1f} %",
    )
