"""Intervals over training seeds and examples together, and the accuracy of a rival's frontier at a given cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestra.statistics.frontier import hull
from orchestra.statistics.intervals import Interval, bootstrap_means

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Values = NDArray[float64]


@dataclass(frozen=True)
class Measure:
    """A number that is a function of means over examples, for one seed."""

    rows: Mapping[str, tuple[float, ...]]
    """The columns of each example, by its id."""
    of: Callable[["Values"], "Values"]
    """Means: (resamples, columns) → (resamples,); NaN where it cannot be told."""


LEVEL = 0.95
"""How often an interval holds the truth, where nothing else is said."""


def over_seeds(
    measures: Sequence[Measure], resamples: int, seed: int, level: float = LEVEL
) -> tuple[Interval, tuple[float | None, ...]]:
    """Mean over the seeds with its interval of that level, and each seed's own number.

    Two sources of chance add up: which seed trained (variance between seeds over their count) and which examples were
    held out (variance of the seeds' mean over bootstrap resamples of the examples, the same for every seed, since all
    seeds meet the same ones). The interval is Student's, with Welch-Satterthwaite degrees of freedom: with three seeds
    that differ much it is as wide as three numbers deserve. One seed alone: examples only.
    """
    import numpy as np

    shared = [key for key in measures[0].rows if all(key in measure.rows for measure in measures)]
    if not shared:
        return Interval(), (None,) * len(measures)
    parts = [np.asarray([measure.rows[key] for key in shared], dtype=np.float64) for measure in measures]
    means = bootstrap_means(np.concatenate(parts, axis=1), resamples, seed)
    ends = np.cumsum([part.shape[1] for part in parts])
    resampled = np.split(means, ends[:-1], axis=1)
    points = np.asarray([float(m.of(part.mean(axis=0)[None])[0]) for m, part in zip(measures, parts, strict=True)])
    drawn = np.stack([m.of(part) for m, part in zip(measures, resampled, strict=True)], axis=1).mean(axis=1)
    drawn = drawn[np.isfinite(drawn)]
    per_seed = tuple(float(point) if np.isfinite(point) else None for point in points)
    if None in per_seed or len(drawn) < 2:
        return Interval(), per_seed
    return _student(points, float(drawn.var(ddof=1)), level), per_seed


def over_runs(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean and interval of a number that each seed has once, such as its minutes."""
    import numpy as np

    return _student(np.asarray(values, dtype=np.float64), 0.0, level) if values else Interval()


def first(means: "Values") -> "Values":
    """The first column: a plain mean."""
    return means[:, 0]


def accuracy_at(points: "Values", cost: float) -> float:
    """A rival's accuracy at `cost`. points: (settings, 2) of cost and accuracy.

    Between settings it is the best that two of them reach together, one tossed a coin for: the upper concave hull, a
    straight line between measured points. Below the cheapest point: that point, which costs no less (favours the
    rival). Above the last: the best there is.
    """
    import numpy as np

    pairs = [(float(x), float(y)) for x, y in points]
    found = [pairs[index] for index in hull(pairs)]
    return float(np.interp(cost, [x for x, _ in found], [y for _, y in found]))


def _student(points: "Values", example_variance: float, level: float) -> Interval:
    """points: (seeds,)."""
    import numpy as np
    from scipy.stats import t

    mean, seeds = float(points.mean()), len(points)
    between = float(points.var(ddof=1)) / seeds if seeds > 1 else 0.0
    variance = between + example_variance
    if variance <= 0:
        return Interval(value=mean, low=mean, high=mean)
    freedom = (seeds - 1) * (variance / between) ** 2 if between > 0 else np.inf
    half = float(t.ppf((1 + level) / 2, freedom)) * variance**0.5
    return Interval(value=mean, low=mean - half, high=mean + half)
