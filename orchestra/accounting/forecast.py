"""Forecast of the cost and time of an expensive stage from a sample: means and their error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A sum that is not known yet, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Piece:
    """A part of a stage that is made of like units, some of which were run."""

    name: str
    unit: str
    """What one of them is, such as `a step`."""
    units: float
    """How many the stage has."""
    usd: Sequence[float]
    """Of each unit that was run, at least two."""
    seconds: Sequence[float]


@dataclass(frozen=True)
class Forecast:
    """Of a whole stage."""

    usd: Estimate
    seconds: Estimate
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> "Forecast":
        return cls(
            usd=_sum([(piece.usd, piece.units) for piece in pieces]),
            seconds=_sum([(piece.seconds, piece.units) for piece in pieces]),
            pieces=tuple(pieces),
        )

    def lines(self) -> list[str]:
        """What a person reads."""
        usd, seconds = self.usd, self.seconds
        found = [
            f"{usd.value:.4g} USD ({usd.low:.4g} to {usd.high:.4g}), "
            f"{_time(seconds.value)} ({_time(seconds.low)} to {_time(seconds.high)}); 95 % intervals"
        ]
        for piece in self.pieces:
            usd_each, seconds_each = _mean(piece.usd), _mean(piece.seconds)
            found.append(
                f"  {piece.name}: {piece.units:g} x {piece.unit} at {usd_each:.4g} USD and {seconds_each:.2g} s, "
                f"from {len(piece.usd)}"
            )
        return found


def _sum(parts: Sequence[tuple[Sequence[float], float]]) -> Estimate:
    """Independent parts: their variances add up, their degrees of freedom as Welch and Satterthwaite have it.

    Units are drawn without replacement, so a sample of everything is off by nothing; nothing costs less than what the
    sample cost already.
    """
    from scipy import stats

    value, variance, freedom, spent = 0.0, 0.0, 0.0, 0.0
    for sample, units in parts:
        count, mean = len(sample), _mean(sample)
        spread = sum((x - mean) ** 2 for x in sample) / (count - 1)
        own = units**2 * spread / count * max(0.0, 1 - count / units) if units else 0.0
        value, variance = value + units * mean, variance + own
        freedom += own**2 / (count - 1)
        spent += min(1.0, units / count) * sum(sample)
    if not variance:
        return Estimate(value, value, value)
    margin = float(stats.t.ppf((1 + LEVEL) / 2, variance**2 / freedom)) * math.sqrt(variance)
    return Estimate(value, max(spent, value - margin), value + margin)


def _mean(sample: Sequence[float]) -> float:
    return sum(sample) / len(sample)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
