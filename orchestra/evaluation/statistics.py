"""Statistics of an evaluation: rates with bootstrap intervals, and differences on the same examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from orchestra.evaluation.outcomes import outcomes, unit, utility
from orchestra.evaluation.preference import preference_score
from orchestra.types import Category, Episode, Example, Record, ToolKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

BLOCK = 4_000_000
"""Resampled values held at once: 32 MB."""


class Interval(Record):
    """A mean and its 95 % bootstrap interval (percentiles); all None when there was nothing to average."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class CategorySummary(Record):
    examples: int
    accuracy: float | None
    cost_usd: float | None
    """Mean dollars per example."""


class PolicySummary(Record):
    """One policy over the evaluated examples; infrastructure failures are in `failed` and nowhere else."""

    policy: str
    examples: int
    """Examples with a known verdict."""
    failed: int
    """Episodes that infrastructure failures left without a verdict."""
    accuracy: Interval
    cost_usd: Interval
    """Dollars per example, the policy's own tokens included."""
    latency_s: Interval
    turns: float | None
    """Turns per example."""
    calls: float | None
    """Tool calls per example."""
    valid: float | None
    """Share of turns that parse."""
    preference: Interval = Interval()
    """Mean of Eq. 5-6 per example, against the reference policy."""
    utility: Interval = Interval()
    """Mean of `outcomes.utility`: what users' own preferences make of right, dollars, seconds and preferred tools."""
    cost_ratio: Interval = Interval()
    """Mean dollars over always-strongest's on the same examples."""
    accuracy_gain: Interval = Interval()
    """Accuracy minus the reference policy's on the same examples."""
    tool_shares: dict[str, float] = Field(default_factory=dict)
    """Share of tool calls by catalogue entry; a domain's functions count together, misnamed tools as `unknown`."""
    stops: dict[str, int] = Field(default_factory=dict)
    """Episodes by stop reason, failed ones included."""
    categories: dict[Category, CategorySummary] = Field(default_factory=dict)
    simulated: bool = False
    """Whether any simulated expert took part."""


def summarise(
    episodes: Mapping[str, Sequence[Episode]],
    examples: Sequence[Example],
    *,
    reference: str,
    strongest: str,
    bootstrap: int,
    seed: int,
) -> dict[str, PolicySummary]:
    """One summary for each policy, in the order given; comparisons with a missing policy stay empty."""
    by_id = {example.id: example for example in examples}
    first = {name: _by_example(found) for name, found in episodes.items()}
    return {
        name: _summary(name, found, by_id, first.get(reference), first.get(strongest), bootstrap, seed)
        for name, found in episodes.items()
    }


def bootstrap_means(values: "Values", resamples: int, seed: int) -> "Values":
    """Means of `resamples` resamples with replacement. values: (examples, columns) → (resamples, columns).

    Rows are drawn together, so columns stay paired.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    count = len(values)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, BLOCK // (count * values.shape[1]))
    for start in range(0, resamples, step):
        rows = generator.integers(0, count, size=(min(step, resamples - start), count))
        means[start : start + len(rows)] = values[rows].mean(axis=1)
    return means


def mean_interval(values: Sequence[float], resamples: int, seed: int) -> Interval:
    """Mean of `values`: (examples,) with its interval."""
    import numpy as np

    if not values:
        return Interval()
    column = np.asarray(values, dtype=np.float64)[:, None]
    return _interval(float(column.mean()), bootstrap_means(column, resamples, seed)[:, 0])


def paired_difference(ours: Mapping[str, float], theirs: Mapping[str, float], resamples: int, seed: int) -> Interval:
    """Mean of ours - theirs over the examples (keys) that both have."""
    shared = [key for key in ours if key in theirs]
    return mean_interval([ours[key] - theirs[key] for key in shared], resamples, seed)


def paired_ratio(ours: Mapping[str, float], theirs: Mapping[str, float], resamples: int, seed: int) -> Interval:
    """Mean of ours over mean of theirs, on the examples that both have; empty when theirs is nothing."""
    import numpy as np

    shared = [key for key in ours if key in theirs]
    if not shared:
        return Interval()
    pairs = np.asarray([[ours[key], theirs[key]] for key in shared], dtype=np.float64)
    mean = pairs.mean(axis=0)
    if mean[1] <= 0:
        return Interval()
    means = bootstrap_means(pairs, resamples, seed)
    means = means[means[:, 1] > 0]
    return _interval(float(mean[0] / mean[1]), means[:, 0] / means[:, 1])


def flat_metrics(summaries: Mapping[str, PolicySummary]) -> dict[str, float]:
    """Numbers by `<policy>.<metric>` for DVC and MLflow; what was not measured is left out."""
    metrics: dict[str, float] = {}
    for name, summary in summaries.items():
        for metric in ("accuracy", "cost_usd", "latency_s", "preference", "utility", "cost_ratio", "accuracy_gain"):
            interval: Interval = getattr(summary, metric)
            for suffix, number in (("", interval.value), ("_low", interval.low), ("_high", interval.high)):
                if number is not None:
                    metrics[f"{name}.{metric}{suffix}"] = number
        for metric in ("turns", "calls", "valid", "examples", "failed"):
            if (number := getattr(summary, metric)) is not None:
                metrics[f"{name}.{metric}"] = float(number)
        for tool, share in summary.tool_shares.items():
            metrics[f"{name}.share.{tool.replace(':', '-')}"] = share
        for category, part in summary.categories.items():
            if part.accuracy is not None:
                metrics[f"{name}.accuracy.{category}"] = part.accuracy
    return metrics


def tool_shares(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> dict[str, float]:
    """Share of all answered calls by catalogue entry, largest first."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        entries = {
            spec.name: spec.tool.split("/")[0] if spec.kind is ToolKind.DOMAIN else spec.tool
            for spec in examples[episode.example_id].toolbox
        }
        for shown, count in episode.tool_counts.items():
            counts[entries.get(shown, "unknown")] += count
    return {tool: count / counts.total() for tool, count in counts.most_common()}


def _summary(
    name: str,
    episodes: Sequence[Episode],
    examples: Mapping[str, Example],
    reference: Mapping[str, Episode] | None,
    strongest: Mapping[str, Episode] | None,
    bootstrap: int,
    seed: int,
) -> PolicySummary:
    counted = [episode for episode in episodes if episode.counted]
    own = _by_example(episodes)
    turns = [turn for episode in counted for turn in episode.turns]
    solved, cost = _solved(own), _cost(own)
    summary = PolicySummary(
        policy=name,
        examples=len(counted),
        failed=len(episodes) - len(counted),
        accuracy=mean_interval(list(solved.values()), bootstrap, seed),
        cost_usd=mean_interval(list(cost.values()), bootstrap, seed),
        latency_s=mean_interval([episode.latency_s for episode in counted], bootstrap, seed),
        turns=_mean([len(episode.turns) for episode in counted]),
        calls=_mean([sum(episode.tool_counts.values()) for episode in counted]),
        valid=_mean([turn.parse_error is None for turn in turns]),
        tool_shares=tool_shares(counted, examples),
        stops=dict(Counter(episode.stop.value for episode in episodes).most_common()),
        categories=_categories(counted, examples),
        simulated=any(episode.simulated for episode in episodes),
    )
    update: dict[str, Interval] = {}
    if reference is not None:
        scores = {
            key: preference_score(episode, reference[key], examples[key].preference)
            for key, episode in own.items()
            if key in reference
        }
        update["preference"] = mean_interval([s for s in scores.values() if s is not None], bootstrap, seed)
        update["accuracy_gain"] = paired_difference(solved, _solved(reference), bootstrap, seed)
    if strongest is not None:
        update["cost_ratio"] = paired_ratio(cost, _cost(strongest), bootstrap, seed)
        update["utility"] = _utility(counted, list(strongest.values()), examples, bootstrap, seed)
    return summary.model_copy(update=update)


def _utility(
    own: Sequence[Episode], strongest: Sequence[Episode], examples: Mapping[str, Example], resamples: int, seed: int
) -> Interval:
    """Mean utility, dollars and seconds in units of always-strongest's means."""
    measure = unit(outcomes(strongest, examples))
    if measure is None:
        return Interval()
    worth = [utility(one, examples[one.example_id].preference, measure) for one in outcomes(own, examples)]
    return mean_interval(worth, resamples, seed)


def _categories(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> dict[Category, CategorySummary]:
    found: dict[Category, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(examples[episode.example_id].category, []).append(episode)
    return {
        category: CategorySummary(
            examples=len(found[category]),
            accuracy=_mean([episode.solved for episode in found[category]]),
            cost_usd=_mean([float(episode.cost_usd) for episode in found[category]]),
        )
        for category in Category
        if category in found
    }


def _by_example(episodes: Sequence[Episode]) -> dict[str, Episode]:
    """The episode of each example; evaluation runs one a policy."""
    return {episode.example_id: episode for episode in episodes}


def _solved(episodes: Mapping[str, Episode]) -> dict[str, float]:
    return {key: float(episode.solved) for key, episode in episodes.items() if episode.counted}


def _cost(episodes: Mapping[str, Episode]) -> dict[str, float]:
    return {key: float(episode.cost_usd) for key, episode in episodes.items() if episode.counted}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _interval(value: float, means: "Values") -> Interval:
    import numpy as np

    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(value=value, low=float(low), high=float(high))
