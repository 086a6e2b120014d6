"""Comparisons of two policies over the same examples that hold their level with few differences too."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestra.statistics.intervals import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]


def difference(ours: Mapping[str, float], theirs: Mapping[str, float], level: float = 0.95) -> Interval:
    """Mean of ours - theirs over the examples (keys) that both have. Values are shares within [0, 1].

    Bonett and Price's adjusted interval (2012): one example more that only we solve, and one that only they solve, then
    Student's interval. A bootstrap finds no doubt where few examples differ: with none of 100, its interval is a point.
    With several trials an example's value is the mean of its trials, so that trials count for no further examples, and
    the two added ones differ as much as those that do.
    """
    gap = mean_difference(ours, theirs, level)
    if gap.low is None or gap.high is None:
        return gap
    return gap.model_copy(update={"low": max(-1.0, gap.low), "high": min(1.0, gap.high)})


def mean_difference(ours: Mapping[str, float], theirs: Mapping[str, float], level: float = 0.95) -> Interval:
    """Mean of ours - theirs as in `difference`, of values without bounds, such as utilities."""
    found = _pairs(ours, theirs)
    if len(found) == 0:
        return Interval()
    gaps = found[:, 0] - found[:, 1]
    centre, half = _student(_adjusted(gaps, gaps[gaps != 0], 1.0), level)
    return Interval(value=float(gaps.mean()), low=centre - half, high=centre + half)


def cost_ratio(ours: Mapping[str, float], theirs: Mapping[str, float], level: float = 0.95) -> Interval:
    """Mean of ours over mean of theirs, on the examples that both have. Values are dollars or seconds, zero or more.

    Fieller's interval: the ratios r for which the mean of ours - r · theirs does not differ from 0, by Student's test
    with two examples more, one on each side, as large as those that differ. `high` is None where no ratio is excluded,
    everything is None where theirs is nothing.
    """
    found = _pairs(ours, theirs)
    if len(found) == 0 or found[:, 1].mean() <= 0:
        return Interval()
    ratio = float(found[:, 0].mean() / found[:, 1].mean())
    differing = found[found[:, 0] != found[:, 1]]
    if len(differing) == 0:
        return Interval(value=1.0, low=1.0, high=1.0)
    low, high = _fieller(found, differing, level)
    return Interval(value=ratio, low=low, high=high)


def p_value(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Two-sided p-value of `difference`: the level at which its interval would touch 0. 1 without a shared example."""
    from scipy.special import stdtr

    found = _pairs(ours, theirs)
    if len(found) == 0:
        return 1.0
    gaps = found[:, 0] - found[:, 1]
    values = _adjusted(gaps, gaps[gaps != 0], 1.0)
    statistic = float(values.mean()) / float(values.std(ddof=1)) * len(values) ** 0.5
    return float(2 * stdtr(len(values) - 1, -abs(statistic)))


def _pairs(ours: Mapping[str, float], theirs: Mapping[str, float]) -> "Values":
    """(examples, 2): those that both have."""
    import numpy as np

    return np.asarray([[value, theirs[key]] for key, value in ours.items() if key in theirs], dtype=np.float64)


def _adjusted(gaps: "Values", differing: "Values", otherwise: float) -> "Values":
    """The gaps and two more, one on each side, of the size of those that differ; of `otherwise` where none does."""
    import numpy as np

    size = float((differing**2).mean() ** 0.5) if len(differing) else otherwise
    return np.append(gaps, [size, -size])


def _student(values: "Values", level: float) -> tuple[float, float]:
    """Mean and half width of Student's interval. values: (examples,)."""
    half = _quantile((1 + level) / 2, len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()), half


def _quantile(share: float, freedom: int) -> float:
    """Of Student's distribution; `scipy.stats` gives the same number and takes a second to import."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def _fieller(pairs: "Values", differing: "Values", level: float) -> tuple[float, float | None]:
    """The ratios r that Student's test of mean(a - r · b) = 0 does not exclude. pairs, differing: (examples, 2).

    Mean and variance of the gaps, the two added ones included, are quadratic in r; so is the test.
    """
    import numpy as np

    count = len(pairs) + 2
    a, b = pairs.sum(axis=0)
    squares = pairs.T @ pairs + 2 * (differing.T @ differing) / len(differing)
    quantile = _quantile((1 + level) / 2, count - 1) ** 2
    own, spread = (1 + quantile / (count - 1)) / count**2, quantile / (count * (count - 1))
    # c2 · r² - 2 · c1 · r + c0 <= 0
    c0, c1, c2 = own * np.array([a * a, a * b, b * b]) - spread * squares[[0, 0, 1], [0, 1, 1]]
    root = float(np.sqrt(max(c1 * c1 - c0 * c2, 0.0)))
    if c2 <= 0:
        # The means of b itself do not differ from 0: no ratio is too large.
        low = float((c1 - root) / c2) if c2 < 0 else 0.0
        return (low if 0 < low <= a / b else 0.0), None
    return max(0.0, float((c1 - root) / c2)), float((c1 + root) / c2)
