"""Rewards of a group of episodes of one example: Eq. 1-2 of the method (arXiv 2511.21689), and their switches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orchestra.rewards.parts  # noqa: F401  (registers the reward parts)
from orchestra.config.reward import PUBLISHED, RewardParams
from orchestra.errors import ConfigError
from orchestra.rewards.limits import Limit
from orchestra.rewards.registry import Ends, Parts, Term, check_word, terms
from orchestra.types import Episode, Preference, ToolSpec

NO_TOOLS: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True)
class Reward:
    """The scalar of Eq. 2 and its raw parts."""

    value: float | None
    """None: left out of the group (infrastructure failed, or filtered), never a 0."""
    parts: dict[str, float]
    """Weighted, normalised features, which add up to the value. By name: outcome, compute, latency, limit, further
    parts, and tool:, share:, use: or avoid: with a tool's name (`grpo.liked`)."""
    reason: str = ""
    """Why the value is None or 0."""

    def __post_init__(self) -> None:
        for name, number in {"value": self.value, **self.parts}.items():
            if number is not None and not math.isfinite(number):
                raise ConfigError(f"{name} is {number}", where="a reward", fix="give None to leave an episode out")


def weights(
    preference: Preference,
    parts: Parts = "full",
    shape: RewardParams = PUBLISHED,
    toolbox: Sequence[ToolSpec] = NO_TOOLS,
    limit: Limit | None = None,
) -> dict[str, float]:
    """P of Eq. 2, by the names of the parts; the weights that `parts` leaves out are absent."""
    return {term.name: term.weight for term in _terms(preference, parts, shape, toolbox, limit)}


def group_rewards(
    episodes: Sequence[Episode],
    preference: Preference,
    *,
    malformed: str = "zero",
    parts: Parts = "full",
    shape: RewardParams = PUBLISHED,
    toolbox: Sequence[ToolSpec] = NO_TOOLS,
    limit: Limit | None = None,
) -> list[Reward]:
    """Eq. 2 over one group: normalise each feature between two ends, weigh, and zero what is not solved.

    M̂[k] = (M[k] - low) / (high - low), within [0, 1], 0 where the ends are equal. The ends are the group's least and
    greatest values (`shape.among`: of all episodes, or of solved ones), the example's own, by its `toolbox`, or
    given ones (`shape.unit`). Episodes whose verdict is unknown (infrastructure) are left out and get None. With
    `malformed="drop"` so are those that break the format or give no valid answer; with "zero" they score 0.
    With `shape.spent` all, dollars and seconds are losses p · (M[k] - high) / (high - low), without a bound, of failed
    episodes too. With a `limit` dollars count by its multiplier in place of compute, and for failed episodes too.
    """
    check_word("malformed", malformed, ("drop", "zero"))
    counted = [term for term in _terms(preference, parts, shape, toolbox, limit) if term.weight > 0]
    left_out = [_left_out(episode, malformed) for episode in episodes]
    kept = [episode for episode, out in zip(episodes, left_out, strict=True) if not out]
    ends = {term.name: _ends(term, kept, shape) for term in counted}
    rewards = []
    for episode, out in zip(episodes, left_out, strict=True):
        if out:
            rewards.append(Reward(None, {}, out))
            continue
        paid = [term for term in counted if episode.solved or term.loss or term.name == LIMIT]
        earned = {term.name: _earned(term, episode, ends[term.name]) for term in paid}
        why = "" if episode.solved else episode.verdict.why if episode.verdict else ""
        rewards.append(Reward(sum(earned.values(), start=0.0), earned, why))
    return rewards


LIMIT = "limit"
"""The part that counts dollars against a limit."""


def _terms(
    preference: Preference, parts: Parts, shape: RewardParams, toolbox: Sequence[ToolSpec], limit: Limit | None
) -> list[Term]:
    """M and P; with a limit, P's compute gives way to its multiplier, and 1 + multiplier divides all weights.

    So (outcome - m · dollars / limit) / (1 + m), the Lagrangian, keeps its size as m grows (arXiv 2007.03964).
    """
    found = terms(preference, parts, shape, toolbox)
    if limit is None:
        return found
    share = 1 / (1 + limit.multiplier)
    others = [replace(t, weight=t.weight * share) for t in found if t.name != "compute"]
    return [*others, Term(LIMIT, limit.multiplier * share, limit.spent, of_solved=False)]


def _ends(term: Term, kept: Sequence[Episode], shape: RewardParams) -> Ends | None:
    """What is worth 0 and 1; None where the feature differs by nothing."""
    if shape.unit != "group":
        return term.ends
    among = [episode for episode in kept if episode.solved or shape.among == "all" or not term.of_solved]
    measured = [term.value(episode) for episode in among]
    low, high = min(measured, default=0.0), max(measured, default=0.0)
    return (low, high) if high > low else None


def _earned(term: Term, episode: Episode, ends: Ends | None) -> float:
    """p · M̂ of one feature."""
    if term.name == LIMIT:
        return term.weight * term.value(episode)
    low, high = ends or (0.0, 0.0)
    if low == high:
        return 0.0
    if term.loss:
        return term.weight * (term.value(episode) - high) / (high - low)
    return term.weight * (min(high, max(low, term.value(episode))) - low) / (high - low)


def _left_out(episode: Episode, malformed: str) -> str:
    if not episode.counted:
        return "infrastructure"
    if malformed == "drop" and not episode.well_formed:
        return "malformed"
    return ""
