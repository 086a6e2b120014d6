"""The best rule at the candidate's own cost: shows whether a router could replace the trained model."""

from collections.abc import Mapping
from statistics import fmean

from orchestra.evaluation.report import label
from orchestra.promotion.evidence import Results
from orchestra.statistics.frontier import mixture
from orchestra.statistics.intervals import Interval
from orchestra.statistics.paired import difference
from orchestra.types import Record


class EqualCost(Record):
    """What rules reach for the candidate's dollars, on the same examples."""

    shares: dict[str, float]
    """The rule, or the two rules with a coin between them, and how often each is taken."""
    accuracy: float
    cost_usd: float
    gain: Interval
    """The candidate's accuracy less theirs."""

    @property
    def name(self) -> str:
        """The rule, or both with their shares, for people."""
        if len(self.shares) == 1:
            return label(next(iter(self.shares)))
        return " and ".join(f"{label(name)} ({100 * share:.0f} %)" for name, share in self.shares.items())


def at_equal_cost(ours: Results, rules: Mapping[str, Results], level: float = 0.95) -> EqualCost | None:
    """The most accurate rule, or coin between two, at the mean dollars of `ours`; None without a rule to compare with.

    The coin's share is taken as known, since it follows from mean dollars, which vary little. The rules' own tokens
    are free, and the best is chosen after the fact: both favour them.
    """
    shared = [key for key in ours if all(key in found for found in rules.values())]
    if not shared or not rules:
        return None
    points = {
        name: (fmean(found[key].cost_usd for key in shared), fmean(found[key].solved for key in shared))
        for name, found in rules.items()
    }
    shares = mixture(points, fmean(ours[key].cost_usd for key in shared))
    theirs = {key: sum(share * rules[name][key].solved for name, share in shares.items()) for key in shared}
    return EqualCost(
        shares=shares,
        accuracy=fmean(theirs.values()),
        cost_usd=sum(share * points[name][0] for name, share in shares.items()),
        gain=difference({key: ours[key].solved for key in shared}, theirs, level),
    )
