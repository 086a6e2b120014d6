"""Advantages of a group (Eq. 3 of arXiv 2511.21689) and of a step, and the filter before the backward pass."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from orchestra.config.reward import PUBLISHED, RewardParams
from orchestra.errors import ConfigError
from orchestra.rewards.group import LIMIT, Reward
from orchestra.rewards.registry import check_word

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""

Normalise = Literal["sum_then_normalise", "normalise_then_sum"]


@dataclass(frozen=True)
class Group:
    """The rewards of one example's episodes, and how they are weighed."""

    rewards: Sequence[Reward]
    weighed: Mapping[str, float]
    """P by the names of the parts (`weights`)."""
    shares: Sequence[float] | None = None
    """How much each episode counts in the group's means and its gradient; None: all alike."""


@dataclass(frozen=True)
class _Column:
    """One number for each episode that has a value, to be centred."""

    weight: float
    values: Sequence[float]
    shares: Sequence[float]
    """0 for those that are in no mean and get nothing of it."""

    @property
    def std(self) -> float:
        """Of a sample, by plain count: how often a policy makes a choice does not decide whether choices differ."""
        return _std([value for value, share in zip(self.values, self.shares, strict=True) if share > 0])

    def centred(self, scale: Literal["group", "batch", "none"], batch_std: float) -> list[float]:
        """Less the mean, over the standard deviation that `scale` names; all 0 where the values are equal."""
        chosen = [value for value, share in zip(self.values, self.shares, strict=True) if share > 0]
        if not chosen or max(chosen) == min(chosen):
            return [0.0] * len(self.values)
        mean = _mean(self.values, self.shares)
        by = {"group": _std(chosen) + EPSILON, "batch": batch_std + EPSILON, "none": 1.0}[scale]
        return [(v - mean) / by if share > 0 else 0.0 for v, share in zip(self.values, self.shares, strict=True)]


def advantages(
    rewards: Sequence[Reward],
    weighed: Mapping[str, float] | None = None,
    *,
    min_std: float,
    clip: float,
    normalise: Normalise = "sum_then_normalise",
    shape: RewardParams = PUBLISHED,
    shares: Sequence[float] | None = None,
) -> list[float]:
    """A of one group that is a step by itself, see `step_advantages`.

    `weighed` is needed where parts count on their own: with `normalise_then_sum`, and with `homogeneity` part.
    """
    group = Group(rewards, weighed or {}, shares)
    return step_advantages([group], min_std=min_std, clip=clip, normalise=normalise, shape=shape)[0]


def step_advantages(
    groups: Sequence[Group],
    *,
    min_std: float,
    clip: float,
    normalise: Normalise = "sum_then_normalise",
    shape: RewardParams = PUBLISHED,
) -> list[list[float]]:
    """A of every group of a step, clipped to ±`clip`; what has no value is in no mean and gets 0.

    `sum_then_normalise` is Eq. 3: the values, which Eq. 2 summed, less their mean, over their standard deviation.
    `normalise_then_sum` (GDPO, arXiv 2601.05242) does that to every part on its own and sums the results with the
    weights P: how much a part counts is then P's to say, not the spread of the other parts. Of `shape`: `scale` names
    the divisor, `homogeneity` what is left out below `min_std`, `among` whose parts are in a mean, `batch_normalise`
    whether the advantages of the whole step are normalised at the end. With `shares` w, which add up to 1, means are
    Σ w·x, and the advantage of one of n episodes is multiplied by n·w. Raises `ConfigError` for arguments that have no
    meaning, and where a part counts that has no weight.
    """
    check_word("normalise", normalise, get_args(Normalise))
    if not (clip > 0 and min_std >= 0):
        raise ConfigError(f"clip is {clip}, min_std {min_std}", where="advantages", fix="clip above 0, min_std from 0")
    columns = [_columns(group, min_std, normalise, shape) for group in groups]
    spread = _batch_stds(columns) if shape.scale == "batch" else {}
    found = [
        _summed(group, parts, spread, shape) for group, parts in zip(groups, columns, strict=True)
    ]  # (groups, episodes with a value)
    if shape.batch_normalise:
        found = _normalised_together(found)
    every = []
    for group, values in zip(groups, found, strict=True):
        clipped = iter([max(-clip, min(clip, one)) for one in values])
        every.append([0.0 if reward.value is None else next(clipped) for reward in group.rewards])
    return every


def _columns(group: Group, min_std: float, normalise: Normalise, shape: RewardParams) -> dict[str, _Column]:
    """What of a group is to be centred: its values as one column, or a column for each part; {} when it is left out."""
    lacking = {name for reward in group.rewards for name in reward.parts} - group.weighed.keys()
    if lacking and (normalise == "normalise_then_sum" or shape.homogeneity == "part"):
        fix = "hand in `weights` of the same preference and switches as the rewards"
        raise ConfigError(f"the part {min(lacking)} has no weight", where="advantages", fix=fix)
    kept = [index for index, reward in enumerate(group.rewards) if reward.value is not None]
    values = [reward.value for reward in group.rewards if reward.value is not None]
    shares = _shares(group, kept)
    whole = {"": _Column(1.0, values, shares)}
    if shape.homogeneity == "group" and (whole[""].std < min_std or whole[""].std == 0):
        return {}
    parts = {}
    for name, weight in group.weighed.items():
        if weight > 0:
            earned = [group.rewards[index].parts.get(name, 0.0) / weight for index in kept]
            parts[name] = _Column(weight, earned, _paid(group, kept, shares, name, shape))
    if shape.homogeneity == "part":
        parts = {name: part for name, part in parts.items() if part.std >= min_std and part.std > 0}
        whole = whole if parts else {}
    return whole if normalise == "sum_then_normalise" else parts


def _shares(group: Group, kept: Sequence[int]) -> list[float]:
    """Of the episodes that have a value; they add up to 1."""
    given = [1.0 if group.shares is None else group.shares[index] for index in kept]
    total = sum(given)
    return [share / total for share in given] if total > 0 else given


def _paid(group: Group, kept: Sequence[int], shares: list[float], name: str, shape: RewardParams) -> list[float]:
    """The shares in a part's mean: with `among` solved, those of solved episodes, which alone have its part."""
    if shape.among == "all" or name in ("outcome", LIMIT):
        return shares
    return [share if name in group.rewards[i].parts else 0.0 for i, share in zip(kept, shares, strict=True)]


def _batch_stds(columns: Sequence[Mapping[str, _Column]]) -> dict[str, float]:
    """By name of a column: the standard deviation of all groups' values together (TRL's scale_rewards batch)."""
    names = {name for group in columns for name in group}
    found = {}
    for name in names:
        here = [group[name] for group in columns if name in group]
        found[name] = _std([v for c in here for v, share in zip(c.values, c.shares, strict=True) if share > 0])
    return found


def _summed(
    group: Group, parts: Mapping[str, _Column], spread: Mapping[str, float], shape: RewardParams
) -> list[float]:
    """The weighted sum of a group's centred columns, each episode by its share; one number for each with a value."""
    kept = [index for index, reward in enumerate(group.rewards) if reward.value is not None]
    terms = [
        [part.weight * z for z in part.centred(shape.scale, spread.get(name, 0.0))] for name, part in parts.items()
    ]
    found = [sum(column) for column in zip(*terms, strict=True)] if terms else [0.0] * len(kept)
    if shape.among == "solved" and shape.spent == "solved" and LIMIT not in group.weighed:
        found = _failed_last([group.rewards[index] for index in kept], found)
    if group.shares is None:
        return found
    return [len(kept) * share * one for share, one in zip(_shares(group, kept), found, strict=True)]


def _failed_last(rewards: Sequence[Reward], found: Sequence[float]) -> list[float]:
    """No failed episode above a solved one: what solved ones cost is in no mean that a failed one is measured by."""
    least = min((one for one, reward in zip(found, rewards, strict=True) if reward.parts), default=math.inf)
    return [one if reward.parts else min(one, least) for one, reward in zip(found, rewards, strict=True)]


def _normalised_together(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Less the mean of the step, over its standard deviation; what no group has anything to learn from stays 0."""
    every = [one for group in groups for one in group if any(group)]
    if not every or max(every) == min(every):
        return [list(group) for group in groups]
    mean, by = sum(every) / len(every), _std(every) + EPSILON
    return [[(one - mean) / by for one in group] if any(group) else list(group) for group in groups]


def _mean(values: Sequence[float], shares: Sequence[float]) -> float:
    used = [(value, share) for value, share in zip(values, shares, strict=True) if share > 0]
    if len({share for _, share in used}) == 1:
        return sum(value for value, _ in used) / len(used)
    return sum(value * share for value, share in used) / sum(share for _, share in used)


def _std(values: Sequence[float]) -> float:
    """Of a sample; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
