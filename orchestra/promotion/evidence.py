"""The evidence about one checkpoint: what was measured of it, on what, and the result of every example."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import ConfigDict, Field

from orchestra.evaluation.outcomes import Outcome, Unit, outcome, outcomes, unit, utility
from orchestra.evaluation.report import Comparison
from orchestra.types import Episode, Example, Record


class Result(Record):
    """One example's result, a mean over its trials that have a verdict."""

    solved: float
    """Share of the trials that solved it."""
    cost_usd: float
    latency_s: float
    earned: float | None = None
    """What its user got, before dollars and seconds are taken off; None as utility."""
    utility: float | None = None
    """None: always-strongest, its unit, was not measured."""


Results = dict[str, Result]
"""By example id."""


class Evidence(Record):
    """What was measured of one checkpoint, and on what."""

    # A measure that is not finite must reach the gate, which refuses it with a reason.
    model_config = ConfigDict(allow_inf_nan=True)

    checkpoint_hash: str
    data_hash: str
    """The benchmark's version: hash of everything but the policy that decides a score: held-out examples, answer book,
    corpus, prices, code."""
    price_date: str = ""
    """ISO date of the price book."""
    metrics: dict[str, float | None]
    """accuracy, valid, cost_usd, cost_ratio, latency_p95_s, preference, failed_share, safety_failed, and others."""
    results: Results = Field(default_factory=dict)

    @property
    def brief(self) -> "Evidence":
        """Without the single results: short enough for a tag."""
        return self.model_copy(update={"results": {}})


@dataclass(frozen=True)
class UtilityScale:
    """How utility is reckoned: by the preference of each example's user, dollars and seconds in that unit."""

    examples: Mapping[str, Example]
    """By id."""
    unit: Unit

    def earned(self, episode: Episode) -> float:
        """The utility of an episode to the user of its example, had it taken no dollars and no seconds."""
        example = self.examples[episode.example_id]
        free = outcome(episode, example).model_copy(update={"cost_usd": 0.0, "latency_s": 0.0})
        return utility(free, example.preference, self.unit)

    def reckoned(self, found: Mapping[str, Result]) -> Results:
        """The results with their utility in this unit; none where it is not known what they earned.

        Utility is linear in dollars and seconds, so that a mean over trials is enough.
        """
        return {key: one.model_copy(update={"utility": self._utility(key, one)}) for key, one in found.items()}

    def again(self, found: Evidence) -> Evidence:
        """The same evidence in this unit: always-strongest's dollars and seconds may differ from day to day."""
        renewed = self.reckoned(found.results)
        known = utilities(renewed).values()
        metrics = {**found.metrics, "utility": fmean(known) if known else None}
        return found.model_copy(update={"results": renewed, "metrics": metrics})

    def _utility(self, key: str, one: Result) -> float | None:
        if one.earned is None or key not in self.examples:
            return None
        spent = Outcome(example_id=key, solved=False, cost_usd=one.cost_usd, latency_s=one.latency_s, calls={})
        return one.earned + utility(spent, self.examples[key].preference, self.unit)


def worth(examples: Mapping[str, Example], strongest: Sequence[Episode]) -> UtilityScale | None:
    """How to reckon utility, in units of always-strongest's episodes; None where it was not measured."""
    measure = unit(outcomes(strongest, examples))
    return None if measure is None else UtilityScale(examples, measure)


def evidence(
    comparison: Comparison,
    policy: str,
    episodes: Sequence[Episode],
    safety_failed: int | None = None,
    worth: UtilityScale | None = None,
) -> Evidence:
    """What the gate reads of one policy; what was not measured is None.

    `episodes` are the policy's own. `safety_failed` counts the cases of the safety set that did not hold.
    """
    summary = comparison.policies.get(policy)
    data_hash, checkpoint = comparison.data_hash, comparison.checkpoints.get(policy, "")
    made = Evidence(checkpoint_hash=checkpoint, data_hash=data_hash, price_date=comparison.price_date, metrics={})
    if summary is None:
        return made
    attempts = summary.examples + summary.failed
    found = results(episodes, worth)
    metrics = {
        "accuracy": summary.accuracy.value,
        "valid": summary.valid,
        "cost_usd": summary.cost_usd.value,
        "cost_ratio": summary.cost_ratio.value,
        "accuracy_gain": summary.accuracy_gain.value,
        "failed_share": summary.failed / attempts if attempts else None,
        "latency_s": summary.latency_s.value,
        "latency_p95_s": percentile([one.latency_s for one in found.values()], 0.95),
        "preference": summary.preference.value,
        "utility": summary.utility.value,
        "safety_failed": None if safety_failed is None else float(safety_failed),
    }
    return made.model_copy(update={"metrics": metrics, "results": found})


def results(episodes: Sequence[Episode], worth: UtilityScale | None = None) -> Results:
    """The results of one policy's episodes; infrastructure failures are left out."""
    trials: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.counted:
            trials.setdefault(episode.example_id, []).append(episode)
    made = {
        key: Result(
            solved=fmean(float(one.solved) for one in found),
            cost_usd=fmean(float(one.cost_usd) for one in found),
            latency_s=fmean(one.latency_s for one in found),
            earned=None if worth is None else fmean(map(worth.earned, found)),
        )
        for key, found in trials.items()
    }
    return made if worth is None else worth.reckoned(made)


def solved(found: Mapping[str, Result]) -> dict[str, float]:
    return {key: one.solved for key, one in found.items()}


def cost(found: Mapping[str, Result]) -> dict[str, float]:
    return {key: one.cost_usd for key, one in found.items()}


def utilities(found: Mapping[str, Result]) -> dict[str, float]:
    """Of the examples where it is known."""
    return {key: one.utility for key, one in found.items() if one.utility is not None}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of them does not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
