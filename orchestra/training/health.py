"""Is a GRPO run still learning what it should? Measures of each step, and named reasons to stop early."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from orchestra.rewards.group import Reward, well_formed
from orchestra.types import Component, Episode

WINDOW = 20
"""Steps that a reason must hold for, on average, before it stops a run."""
MIN_VALID = 0.5
"""Share of well-formed episodes below which the format is lost."""
MAX_TOOL_SHARE = 0.95
"""Share of expert calls that go to one expert, above which the policy has collapsed onto it."""
MAX_DIVERGENCE = 0.15
"""How far accuracy may fall from the first window while reward rises: reward hacking."""


def measure(
    groups: Sequence[Sequence[Episode]], rewards: Sequence[Sequence[Reward]], advantages: Sequence[Sequence[float]]
) -> dict[str, float]:
    """What is logged each step. `groups`, `rewards` and `advantages` are parallel: one list per example."""
    everything = [episode for group in groups for episode in group]
    known = [episode for episode in everything if episode.counted]
    flat = [reward for group in rewards for reward in group]
    scored = [reward.value for reward in flat if reward.value is not None]
    metrics = {
        "failed": 1 - len(known) / len(everything) if everything else 0.0,
        "left_out": 1 - len(scored) / len(flat) if flat else 0.0,
        "reward": fmean(scored) if scored else 0.0,
        "dead_groups": fmean(not any(group) for group in advantages) if advantages else 1.0,
        "spent_usd": float(sum(episode.cost_usd for episode in everything)),
    }
    metrics |= outcomes(known)
    names = sorted({name.partition(":")[0] for reward in flat for name in reward.parts})
    for name in names:
        parts = [sum(v for k, v in r.parts.items() if k.partition(":")[0] == name) for r in flat if r.value is not None]
        metrics[f"reward_{name}"] = fmean(parts)
    return metrics


def outcomes(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes whose verdict is known; empty when there is none."""
    known = [episode for episode in episodes if episode.counted]
    if not known:
        return {}
    return {
        "accuracy": fmean(e.solved for e in known),
        "valid": fmean(well_formed(e) for e in known),
        "cost_usd": fmean(float(e.cost_usd) for e in known),
        "latency_s": fmean(e.latency_s for e in known),
        "turns": fmean(len(e.turns) for e in known),
        "tokens": fmean(sum(e.mask) for e in known),
        "top_expert_share": top_expert_share(known),
    }


def top_expert_share(episodes: Sequence[Episode]) -> float:
    """Share of expert calls that go to the most-called expert; 0 without calls."""
    counts = Counter(c.name for e in episodes for c in e.charges if c.component is Component.EXPERT)
    return max(counts.values()) / counts.total() if counts else 0.0


def reason_to_stop(history: Sequence[dict[str, float]], max_failed: float) -> str | None:
    """A named reason, or None. `history`: `measure` of each step, oldest first."""
    if len(history) < WINDOW:
        return None
    recent = history[-WINDOW:]

    def mean(rows: Sequence[dict[str, float]], name: str) -> float:
        return fmean(row.get(name, 0.0) for row in rows)

    if mean(recent, "failed") > max_failed:
        return f"infrastructure: {mean(recent, 'failed'):.0%} of episodes failed over {WINDOW} steps"
    if mean(recent, "valid") < MIN_VALID:
        return f"format lost: {mean(recent, 'valid'):.0%} of episodes well formed over {WINDOW} steps"
    if mean(recent, "top_expert_share") > MAX_TOOL_SHARE:
        return f"collapse: {mean(recent, 'top_expert_share'):.0%} of expert calls go to one expert"
    first = history[:WINDOW]
    if mean(first, "accuracy") - mean(recent, "accuracy") > MAX_DIVERGENCE and mean(recent, "reward") > mean(
        first, "reward"
    ):
        return "reward hacking: reward rose while accuracy fell"
    return None
