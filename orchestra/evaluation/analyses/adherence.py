"""Preference adherence: the score of Eq. 5-6 with what users state, and with the same users silent.

The silent attempt is the control: it has the same weights P in its score and no word of them in its prompt. What it
scores less is what the policy made of the words.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.evaluation.analyses.changes import Attempts
from orchestra.evaluation.preference import preference_score
from orchestra.evaluation.report import SIMULATED, blank_figure, label
from orchestra.statistics.intervals import Interval, mean_interval, paired_difference
from orchestra.types import Episode, Example, Record

SAID, SILENT = "said", "silent"
ALL = "all"
HEADER = ("policy", "preference", "examples", "score", "without words", "gain", "95 % interval", "accuracy")


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
    before = {episode.example_id: episode for episode in found[SAID][reference]}
    made = []
    for policy, episodes in found[SAID].items():
        said = _scores(episodes, before, examples)
        silent = _scores(found[SILENT][policy], before, examples)
        both = {name: score for name, score in said.items() if name in silent}
        solved = {episode.example_id: float(bool(episode.solved)) for episode in episodes}
        for group in (ALL, *sorted(set(kinds.values()))):
            ours = {name: score for name, score in both.items() if group in (ALL, kinds[name])}
            made.append(
                AdherenceRow(
                    policy=policy,
                    preference=group,
                    examples=len(ours),
                    said=mean_interval(list(ours.values()), resamples, seed),
                    silent=mean_interval([silent[name] for name in ours], resamples, seed),
                    gain=paired_difference(ours, silent, resamples, seed),
                    accuracy=mean_interval([solved[name] for name in ours], resamples, seed),
                )
            )
    return made


def table(analysis: AdherenceAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, a row for each policy and kind of preference."""
    return [HEADER, *(_row(one) for one in analysis.rows)]


def plot(analysis: AdherenceAnalysis, file: Path) -> None:
    """What the words gain, by kind of preference, a bar for each policy with its interval."""
    shown = [one for one in analysis.rows if one.gain.value is not None]
    kinds = list(dict.fromkeys(one.preference for one in shown))
    policies = list(dict.fromkeys(one.policy for one in shown))
    figure, axes = blank_figure(8, 1.4 + 0.5 * max(1, len(kinds)))
    height = 0.8 / max(1, len(policies))
    for index, policy in enumerate(policies):
        own = [one for one in shown if one.policy == policy]
        places = [kinds.index(one.preference) + (index - (len(policies) - 1) / 2) * height for one in own]
        values = [one.gain.value or 0.0 for one in own]
        sides = [
            [max(0.0, value - (one.gain.low or 0.0)) for one, value in zip(own, values, strict=True)],
            [max(0.0, (one.gain.high or 0.0) - value) for one, value in zip(own, values, strict=True)],
        ]
        axes.barh(places, values, height=height, xerr=sides, label=label(policy), capsize=2)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlabel("score of Eq. 5-6: with the words minus without them")
    axes.set_title(f"Preference adherence, {analysis.data}" + (f" ({SIMULATED})" if analysis.simulated else ""))
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(file, bbox_inches="tight")


def metrics(analysis: AdherenceAnalysis) -> dict[str, float]:
    """Numbers for MLflow, by policy and kind of preference."""
    found = {}
    for one in analysis.rows:
        name = f"{one.policy}.{one.preference}".replace("@", "_").replace(":", "_")
        for what in ("said", "silent", "gain"):
            value = getattr(one, what).value
            if value is not None:
                found[f"{name}.{what}"] = float(value)
    return found


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
    def told(value: float | None, digits: int = 3, sign: str = "") -> str:
        return "—" if value is None else f"{value:{sign}.{digits}f}"

    accuracy = one.accuracy.value
    return (
        label(one.policy),
        one.preference.replace("_", " "),
        str(one.examples),
        told(one.said.value),
        told(one.silent.value),
        told(one.gain.value, sign="+"),
        f"{told(one.gain.low)} to {told(one.gain.high)}",
        "—" if accuracy is None else f"{100 * accuracy:.1f} %",
    )
