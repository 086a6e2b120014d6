"""Rewards of a group of episodes of one example: Eq. 1-2 of the method, and the filters before the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.types import Episode, Preference


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


def weights(preference: Preference) -> dict[str, float]:
    """P of Eq. 2, by the names of `features`."""
    return {
        **{f"tool:{name}": weight for name, weight in preference.tools.items()},
        "outcome": preference.outcome,
        "compute": preference.compute,
        "latency": preference.latency,
    }


def well_formed(episode: Episode) -> bool:
    """The format and invalid-output filters: every turn parsed, and there is an answer."""
    return episode.answer is not None and all(turn.parse_error is None for turn in episode.turns)


def group_rewards(episodes: Sequence[Episode], preference: Preference, *, malformed: str = "zero") -> list[Reward]:
    """Eq. 2 over one group: min-max normalise each feature over the group, weigh, and zero what is not solved.

    Episodes whose verdict is unknown (infrastructure) are left out of the normalisation and get None. With
    `malformed="drop"` so are those that break the format or give no valid answer; with "zero" they score 0.
    """
    weighed = {name: weight for name, weight in weights(preference).items() if weight > 0}
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
            parts = {
                name: weight * (row[name] - low[name]) / (high[name] - low[name]) if high[name] > low[name] else 0.0
                for name, weight in weighed.items()
            }
            rewards.append(Reward(sum(parts.values()), parts))
    return rewards


def _left_out(episode: Episode, malformed: str) -> str:
    if not episode.counted:
        return "infrastructure"
    if malformed == "drop" and not well_formed(episode):
        return "malformed"
    return ""


def advantages(
    rewards: Sequence[Reward], *, min_std: float, clip: float
) -> list[float]:  # fmt: skip
    """A of Eq. 3 for one group, clipped to ±`clip`; all 0 when the group is homogeneous (std below `min_std`)."""
    values = [r.value for r in rewards if r.value is not None]
    if len(values) < 2:
        return [0.0] * len(rewards)
    mean = sum(values) / len(values)
    std = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    if std < min_std or std == 0:
        return [0.0] * len(rewards)
    return [0.0 if r.value is None else max(-clip, min(clip, (r.value - mean) / (std + 1e-4))) for r in rewards]
