"""A test that may be looked at after every sample: whether one arm of a trial is worse than another, by a margin."""

import math
from dataclasses import dataclass, field, replace

FEWEST = 30
"""Samples of each arm before anything is concluded: the bounds hold for means that are nearly normal."""
LEAST_USD = 1e-6
"""What an answer counts at least: nothing has a logarithm too, then."""


@dataclass
class Moments:
    """Count, mean and spread of numbers that come one by one (Welford's sums)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    @property
    def error(self) -> float:
        """Variance of the mean."""
        return self.squares / (self.count - 1) / self.count if self.count > 1 else 0.0


@dataclass
class ArmSamples:
    """What the requests of one arm gave, as far as a verdict needs it."""

    requests: int = 0
    failures: int = 0
    failed_last: int = 0
    """Failures one after another, up to the last request."""
    log_seconds: Moments = field(default_factory=Moments)
    """Of those that did not fail."""
    usd: Moments = field(default_factory=Moments)
    """Dollars of the judged ones."""
    most_usd: float = 0.0
    """Of a judged one."""
    solved: Moments = field(default_factory=Moments)
    """1 for a judged one that was solved."""
    _both: float = 0.0
    """Sum of products of the distances of dollars and verdicts from their means."""

    def add(self, failed: bool, seconds: float, usd: float, solved: bool | None) -> None:
        """One request; `solved` None: not judged."""
        self.requests += 1
        self.failures += failed
        self.failed_last = self.failed_last + 1 if failed else 0
        if not failed:
            self.log_seconds.add(math.log(max(seconds, 1e-4)))
        if solved is not None:
            step = usd - self.usd.mean
            self.usd.add(usd)
            self.most_usd = max(self.most_usd, usd)
            self.solved.add(float(solved))
            self._both += step * (float(solved) - self.solved.mean)

    @property
    def judged(self) -> int:
        return self.usd.count

    def log_cost(self, once_more_usd: float | None = None) -> tuple[float, float]:
        """Logarithm of the dollars for each solved request, and its variance by the delta method.

        With `once_more_usd` as if one more had cost so much: a few samples need not have met what is expensive.
        """
        count, usd, share, error = self.judged, self.usd, self.solved.mean, self.solved.error
        if count < 2:
            return 0.0, 0.0
        if once_more_usd is not None:
            usd = replace(usd)
            usd.add(once_more_usd)
            # One solved and one unsolved more, so that a share of 0 or 1 has a variance; as in `failure_excess`.
            likely = (share * count + 1) / (count + 2)
            error = max(error, likely * (1 - likely) / count)
        cost = max(usd.mean, LEAST_USD)
        # Half a solved one more, so that none at all is no division by zero.
        share = (share * count + 0.5) / (count + 1)
        shared = self._both / (count - 1) / count
        variance = usd.error / cost**2 + error / share**2 - 2 * shared / (cost * share)
        return math.log(cost / share), max(variance, 0.0)


@dataclass(frozen=True)
class Excess:
    """How much larger a measure is for one arm than for the other, with the variance of that estimate."""

    value: float
    variance: float
    samples: int
    """Of the smaller arm."""
    careful: float | None = None
    """What the bound is of, with the variance, where the plain estimate is not to be trusted."""

    def lower(self, level: float, planned: int) -> float:
        """A bound that stays below the true excess at every look, except with a chance of `level`.

        Robbins' normal mixture in its asymptotic form (arXiv 2103.06476; one side), narrowest at `planned` samples.
        Minus infinity where there are too few samples.
        """
        if self.samples < FEWEST or self.variance <= 0:
            return -math.inf
        information = 1 / self.variance
        both = -2 * math.log(2 * level)
        tuned = information * planned / self.samples / (both + math.log(both + 1))
        spread = (information + tuned) * (both + math.log((information + tuned) / tuned))
        estimate = self.value if self.careful is None else self.careful
        return estimate - math.sqrt(spread) / information


def failure_excess(arm: ArmSamples, other: ArmSamples) -> Excess:
    """Difference of the shares of requests that failed."""

    def of(one: ArmSamples) -> tuple[float, float]:
        # One failure and one success more, so that a share of 0 has a variance.
        share, count = (one.failures + 1) / (one.requests + 2), max(1, one.requests)
        return one.failures / count, share * (1 - share) / count

    return _excess(of(arm), of(other), min(arm.requests, other.requests))


def latency_excess(arm: ArmSamples, other: ArmSamples) -> Excess:
    """Difference of the mean logarithms of the seconds: log 2 where a request takes twice as long."""
    ours, theirs = arm.log_seconds, other.log_seconds
    return _excess((ours.mean, ours.error), (theirs.mean, theirs.error), min(ours.count, theirs.count))


def cost_excess(arm: ArmSamples, other: ArmSamples) -> Excess:
    """Difference of the logarithms of dollars for each solved request.

    Dollars are far from normal where few requests cost most of them. So the bound is as if each arm had once more met
    the most expensive request of both.
    """
    most = max(arm.most_usd, other.most_usd)
    careful = _excess(arm.log_cost(most), other.log_cost(most), min(arm.judged, other.judged))
    return replace(careful, value=arm.log_cost()[0] - other.log_cost()[0], careful=careful.value)


def _excess(ours: tuple[float, float], theirs: tuple[float, float], samples: int) -> Excess:
    return Excess(ours[0] - theirs[0], ours[1] + theirs[1], samples)
