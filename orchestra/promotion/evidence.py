"""The evidence about one checkpoint: what was measured of it, on what, and the result of every example."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import ConfigDict, Field

from orchestra.evaluation.outcomes import Unit, outcome, outcomes, unit, utility
from orchestra.evaluation.report import Comparison
from orchestra.types import Episode, Example, Record


class Result(Record):
    """One example's result, a mean over its trials that have a verdict."""

    solved: float
    """Share of the trials that solved it."""
    cost_usd: float
    latency_s: float
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
    unit: Unit | None = None
    """What utility counts dollars and seconds in; None: not known."""

    @property
    def brief(self) -> "Evidence":
        """Without the single results: short enough for a tag."""
        return self.model_copy(update={"results": {}})


@dataclass(frozen=True)
class UtilityMeasure:
    """How utility is reckoned: by the preference of each example's user, dollars and seconds in that unit."""

    examples: Mapping[str, Example]
    """By id."""
    unit: Unit

    def __call__(self, episode: Episode) -> float:
        """The utility of an episode to the user of its example."""
        example = self.examples[episode.example_id]
        return utility(outcome(episode, example), example.preference, self.unit)

    def again(self, found: Evidence) -> Evidence:
        """The same evidence in this unit: always-strongest's seconds and dollars may differ from day to day.

        Utilities in a unit that is not known are left out.
        """
        if found.unit == self.unit:
            return found
        renewed = {key: self._renewed(key, one, found.unit) for key, one in found.results.items()}
        known = utilities(renewed).values()
        metrics = {**found.metrics, "utility": fmean(known) if known else None}
        return found.model_copy(update={"results": renewed, "metrics": metrics, "unit": self.unit if known else None})

    def _renewed(self, key: str, one: Result, old: Unit | None) -> Result:
        """Utility is linear in dollars and seconds, so that a mean over trials is enough."""
        if one.utility is None or old is None or key not in self.examples:
            return one.model_copy(update={"utility": None})
        wish, new = self.examples[key].preference, self.unit
        dollars = one.cost_usd * (1 / old.cost_usd - 1 / new.cost_usd)
        seconds = one.latency_s * (1 / old.latency_s - 1 / new.latency_s)
        return one.model_copy(update={"utility": one.utility + wish.compute * dollars + wish.latency * seconds})


def worth(examples: Mapping[str, Example], strongest: Sequence[Episode]) -> UtilityMeasure | None:
    """How to reckon utility, in units of always-strongest's episodes; None where it was not measured."""
    measure = unit(outcomes(strongest, examples))
    return None if measure is None else UtilityMeasure(examples, measure)


def evidence(
    comparison: Comparison,
    policy: str,
    episodes: Sequence[Episode],
    safety_failed: int | None = None,
    worth: UtilityMeasure | None = None,
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
    measure = None if worth is None else worth.unit
    return made.model_copy(update={"metrics": metrics, "results": found, "unit": measure})


def results(episodes: Sequence[Episode], worth: UtilityMeasure | None = None) -> Results:
    """The results of one policy's episodes; infrastructure failures are left out."""
    trials: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.counted:
            trials.setdefault(episode.example_id, []).append(episode)
    return {
        key: Result(
            solved=fmean(float(one.solved) for one in found),
            cost_usd=fmean(float(one.cost_usd) for one in found),
            latency_s=fmean(one.latency_s for one in found),
            utility=None if worth is None else fmean(map(worth, found)),
        )
        for key, found in trials.items()
    }


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
