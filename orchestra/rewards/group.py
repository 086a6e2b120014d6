"""Rewards of a group of episodes of one example: Eq. 1-3 of the method, and the filters before the backward pass."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestra.types import Episode, Preference

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""

Parts = Literal["outcome", "efficiency", "full"]
"""Which weights of P count: being right alone, also compute and latency, or also the tools that the user prefers."""
Normalise = Literal["sum_then_normalise", "normalise_then_sum"]


@dataclass(frozen=True)
class Reward:
    """The scalar of Eq. 2 and its raw parts."""

    value: float | None
    """None: left out of the group (infrastructure failed, or filtered), never a 0."""
    parts: dict[str, float]
    """Weighted, normalised features by name: outcome, compute, latency, tool:<name>; they add up to the value."""
    reason: str = ""
    """Why the value is None or 0."""


def features(episode: Episode, tools: Sequence[str]) -> dict[str, float]:
    """M of Eq. 1. Cost and latency enter as negatives, so that cheaper and faster are larger."""
    counts = episode.tool_counts
    return {
        **{f"tool:{name}": float(counts.get(name, 0)) for name in tools},
        "outcome": float(episode.solved),
        "compute": -float(episode.cost_usd),
        "latency": -episode.latency_s,
    }


def weights(preference: Preference, parts: Parts = "full") -> dict[str, float]:
    """P of Eq. 2, by the names of `features`; the weights that `parts` leaves out are absent."""
    found = {"outcome": preference.outcome}
    if parts != "outcome":
        found |= {"compute": preference.compute, "latency": preference.latency}
    if parts == "full":
        found |= {f"tool:{name}": weight for name, weight in preference.tools.items()}
    return found


def well_formed(episode: Episode) -> bool:
    """The format and invalid-output filters: every turn parsed, and there is an answer."""
    return episode.answer is not None and all(turn.parse_error is None for turn in episode.turns)


def group_rewards(
    episodes: Sequence[Episode], preference: Preference, *, malformed: str = "zero", parts: Parts = "full"
) -> list[Reward]:
    """Eq. 2 over one group: min-max normalise each feature over the group, weigh, and zero what is not solved.

    Episodes whose verdict is unknown (infrastructure) are left out of the normalisation and get None. With
    `malformed="drop"` so are those that break the format or give no valid answer; with "zero" they score 0.
    """
    weighed = {name: weight for name, weight in weights(preference, parts).items() if weight > 0}
    left_out = [_left_out(episode, malformed) for episode in episodes]
    rows = [features(e, list(preference.tools)) for e, out in zip(episodes, left_out, strict=True) if not out]
    low = {name: min((row[name] for row in rows), default=0.0) for name in weighed}
    high = {name: max((row[name] for row in rows), default=0.0) for name in weighed}
    rewards = []
    for episode, out in zip(episodes, left_out, strict=True):
        if out:
            rewards.append(Reward(None, {}, out))
        elif not episode.solved:
            rewards.append(Reward(0.0, {}, episode.verdict.why if episode.verdict else ""))
        else:
            row = features(episode, list(preference.tools))
            earned = {
                name: weight * (row[name] - low[name]) / (high[name] - low[name]) if high[name] > low[name] else 0.0
                for name, weight in weighed.items()
            }
            rewards.append(Reward(sum(earned.values()), earned))
    return rewards


def _left_out(episode: Episode, malformed: str) -> str:
    if not episode.counted:
        return "infrastructure"
    if malformed == "drop" and not well_formed(episode):
        return "malformed"
    return ""


def advantages(
    rewards: Sequence[Reward],
    weighed: Mapping[str, float] | None = None,
    *,
    min_std: float,
    clip: float,
    normalise: Normalise = "sum_then_normalise",
) -> list[float]:
    """A of one group, clipped to ±`clip`; all 0 when the group is homogeneous (std of its values below `min_std`).

    `sum_then_normalise` is Eq. 3: the values, which Eq. 2 summed, less their mean, over their standard deviation.
    `normalise_then_sum` (the idea of GDPO: normalise each reward of a group apart from the others) does that to every
    part on its own and sums the results with the weights P (`weighed`, by name, as of `weights`): how much a part
    counts is then P's to say, not the spread of the other parts. A failed rollout earned 0 of every part, the least
    there is, so that neither way ranks it above a solved one. What has no value is in no mean and gets 0.
    """
    kept = [reward for reward in rewards if reward.value is not None]
    values = [reward.value for reward in kept if reward.value is not None]
    std = _std(values)
    if std < min_std or std == 0:
        return [0.0] * len(rewards)
    if normalise == "sum_then_normalise":
        found = _standardised(values)
    else:
        terms = [
            [weight * z for z in _standardised([reward.parts.get(name, 0.0) / weight for reward in kept])]
            for name, weight in (weighed or {}).items()
            if weight > 0
        ]
        found = [sum(column) for column in zip(*terms, strict=True)]
    clipped = iter([max(-clip, min(clip, one)) for one in found])
    return [0.0 if reward.value is None else next(clipped) for reward in rewards]


def _std(values: Sequence[float]) -> float:
    """Of a sample; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _standardised(values: Sequence[float]) -> list[float]:
    """Each value less the mean, in standard deviations; all 0 where they are equal."""
    if max(values) == min(values):
        return [0.0] * len(values)
    mean, std = sum(values) / len(values), _std(values)
    return [(value - mean) / (std + EPSILON) for value in values]
