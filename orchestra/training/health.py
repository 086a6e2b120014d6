"""Whether a GRPO run still learns what it should: measures of each step, reasons to stop, which steps were good."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestra.rewards.group import Reward, well_formed
from orchestra.types import Component, Episode, Example, StopReason, ToolKind

WINDOW = 20
"""Steps that a reason must hold for, on average, before it stops a run; and the steps that a run began with."""
RECENT = 10
"""Steps whose average says whether a checkpoint is good."""
MIN_VALID = 0.5
"""Share of well-formed episodes below which the format is lost."""
MAX_TOOL_SHARE = 0.95
"""Share of calls that go to one tool, above which the policy has collapsed onto it."""
SPREAD = 0.75
"""Calls to all tools count for that only where none had this share when the run began: some worlds need one tool."""
MAX_DIVERGENCE = 0.15
"""How far accuracy may fall from the first window while reward rises: reward hacking."""
MAX_DECLINE = 0.3
"""How far accuracy may fall from its best window in any case."""
MAX_ENTROPY_LOST = 0.95
"""Share of the first window's entropy that may be lost; beyond it nothing is tried any more."""
INFRASTRUCTURE, NO_SIGNAL = "infrastructure", "no signal"
"""The two reasons that say nothing against the weights."""

History = Sequence[Mapping[str, float]]
"""`measure` of each step, oldest first."""


def measure(
    groups: Sequence[Sequence[Episode]],
    rewards: Sequence[Sequence[Reward]],
    advantages: Sequence[Sequence[float]],
    examples: Mapping[str, Example] | None = None,
) -> dict[str, float]:
    """What is logged each step. `groups`, `rewards` and `advantages` are parallel: one list per example.

    `examples` (by id) say which tool stands behind a shown name, and which tools were offered.
    """
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
    metrics |= outcomes(known, examples)
    names = sorted({name.partition(":")[0] for reward in flat for name in reward.parts})
    for name in names:
        parts = [sum(v for k, v in r.parts.items() if k.partition(":")[0] == name) for r in flat if r.value is not None]
        metrics[f"reward_{name}"] = fmean(parts)
    return metrics


def outcomes(episodes: Sequence[Episode], examples: Mapping[str, Example] | None = None) -> dict[str, float]:
    """Means over the episodes whose verdict is known; empty when there is none."""
    known = [episode for episode in episodes if episode.counted]
    if not known:
        return {}
    own = [sum(e.mask) for e in known]
    logprobs = [p for e in known for turn in e.turns for p in turn.logprobs]
    return {
        "accuracy": fmean(e.solved for e in known),
        "valid": fmean(well_formed(e) for e in known),
        "cost_usd": fmean(float(e.cost_usd) for e in known),
        "latency_s": fmean(e.latency_s for e in known),
        "turns": fmean(len(e.turns) for e in known),
        "tokens": fmean(own),
        "longest": float(max(own)),
        "cut": fmean(e.stop is StopReason.TOKEN_LIMIT for e in known),
        # The mean surprise of what was sampled is an unbiased estimate of the policy's entropy, in nats a token.
        **({"entropy": -fmean(logprobs)} if logprobs else {}),
        **shares(known, examples or {}),
    }


def shares(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> dict[str, float]:
    """Where the calls that ran went: `kind_share/<kind>` and `tool_share/<tool>` of all calls, and the largest ones.

    A tool is its catalogue entry, whatever name it was shown under; domain tools are one. Tools that were offered and
    not called have a share of 0. `top_expert_share` is of expert calls.
    """
    calls = Counter(key for episode in episodes for key in _called(episode, examples))
    offered = {key for e in episodes if e.example_id in examples for key in _offered(examples[e.example_id])}
    total = calls.total() or 1
    experts = {tool: count for (kind, tool), count in calls.items() if kind is ToolKind.EXPERT}
    kinds = {kind: sum(n for (k, _), n in calls.items() if k is kind) for kind in ToolKind}
    return {
        "calls": calls.total() / len(episodes) if episodes else 0.0,
        **{f"kind_share/{kind.value}": count / total for kind, count in kinds.items()},
        **{f"tool_share/{tool}": calls[kind, tool] / total for kind, tool in sorted(offered | set(calls))},
        "top_tool_share": max(calls.values(), default=0) / total,
        "top_expert_share": max(experts.values(), default=0) / (sum(experts.values()) or 1),
    }


def _offered(example: Example) -> set[tuple[ToolKind, str]]:
    return {(s.kind, "domain" if s.kind is ToolKind.DOMAIN else s.tool) for s in example.toolbox}


def _called(episode: Episode, examples: Mapping[str, Example]) -> list[tuple[ToolKind, str]]:
    example = examples.get(episode.example_id)
    behind = {spec.name: spec.tool for spec in example.toolbox} if example is not None else {}
    found = []
    for charge in episode.charges:
        match charge.component:
            case Component.EXPERT:
                found.append((ToolKind.EXPERT, behind.get(charge.name, charge.name)))
            case Component.SEARCH | Component.SANDBOX:
                found.append((ToolKind.BASIC, behind.get(charge.name, charge.name)))
            case Component.DOMAIN:
                found.append((ToolKind.DOMAIN, "domain"))
    return found


@dataclass(frozen=True)
class HealthCheck:
    """One way in which a run goes wrong: how far it has gone, and from where to where it may go."""

    name: str
    now: float
    began: float
    limit: float
    says: str

    @property
    def broken(self) -> bool:
        return self.now > self.limit

    @property
    def half_way(self) -> bool:
        """More than half way from where the run began to the limit, or beyond it."""
        return self.now > min(self.limit, (self.began + self.limit) / 2)


def checks(history: History, window: int, max_failed: float) -> list[HealthCheck]:
    """Every way but dead infrastructure is about the weights; `window`: how many of the last steps are averaged."""

    def began(name: str, unknown: float = 0.0) -> float:
        return _mean(history[:WINDOW], name, unknown)

    def now(name: str) -> float:
        return _mean(history[-window:], name, began(name, 1.0 if name == "valid" else 0.0))

    starts = range(0, max(1, len(history) - WINDOW + 1), WINDOW)
    best = max(_mean(history[i : i + WINDOW], "accuracy") for i in starts)
    fall = best - now("accuracy")
    hacked = began("accuracy") - now("accuracy") if now("reward") > began("reward") else 0.0
    lost = 1 - now("entropy") / began("entropy") if began("entropy") > 0 else 0.0
    onto_one = now("top_tool_share") if began("top_tool_share") < SPREAD else 0.0
    start, top, any_top = 1 - began("valid", 1.0), began("top_expert_share"), began("top_tool_share")
    steps = f"over {window} steps"
    return [
        HealthCheck(INFRASTRUCTURE, now("failed"), 0.0, max_failed, f"{now('failed'):.0%} of episodes failed {steps}"),
        HealthCheck("format lost", 1 - now("valid"), start, 1 - MIN_VALID, f"{now('valid'):.0%} well formed {steps}"),
        HealthCheck(
            "collapse", now("top_expert_share"), top, MAX_TOOL_SHARE,
            f"{now('top_expert_share'):.0%} of expert calls go to one expert",
        ),
        HealthCheck("collapse", onto_one, any_top, MAX_TOOL_SHARE, f"{onto_one:.0%} of calls go to one tool"),
        HealthCheck("reward hacking", hacked, 0.0, MAX_DIVERGENCE, f"reward rose while accuracy fell by {hacked:.0%}"),
        HealthCheck("decline", fall, 0.0, MAX_DECLINE, f"accuracy fell by {fall:.0%}"),
        HealthCheck("entropy lost", lost, 0.0, MAX_ENTROPY_LOST, f"{lost:.0%} of it {steps}"),
    ]  # fmt: skip


def reason_to_stop(history: History, max_failed: float, since: int = 0) -> str | None:
    """A named reason, or None. Failures before step `since` (a restart) do not count: their cause may be fixed."""
    fresh = checks(history[since:], WINDOW, max_failed)[0]
    if fresh.broken and len(history) - since >= WINDOW:
        return f"{fresh.name}: {fresh.says}"
    if len(history) < WINDOW:
        return None
    for check in checks(history, WINDOW, max_failed)[1:]:
        if check.broken:
            return f"{check.name}: {check.says}"
    if all(row.get("dead_groups", 0.0) == 1.0 and row.get("failed", 0.0) < 1.0 for row in history[-WINDOW:]):
        return f"{NO_SIGNAL}: no group's rewards differ over {WINDOW} steps"
    return None


def is_good(history: History, max_failed: float) -> bool:
    """Whether a checkpoint after these steps is one to go back to: nothing is half way to where it would be stopped."""
    return bool(history) and not any(check.half_way for check in checks(history, RECENT, max_failed)[1:])


def declined(reason: str | None) -> bool:
    """Whether the weights are the worse for it, so that the last good checkpoint is the result."""
    return reason is not None and reason.partition(":")[0] not in (INFRASTRUCTURE, NO_SIGNAL)


def trends(history: History) -> dict[str, float]:
    """Logged each step: accuracy lost since the first window while reward rose, or since its best one; entropy lost."""
    named = {check.name: check.now for check in checks(history, RECENT, 1.0)}
    return {"divergence": named["reward hacking"], "decline": named["decline"], "entropy_lost": named["entropy lost"]}


def _mean(rows: History, name: str, unknown: float = 0.0) -> float:
    """Over the rows that have it: a step without one known verdict has no accuracy."""
    found = [row[name] for row in rows if name in row]
    return fmean(found) if found else unknown


def averages(rows: History) -> dict[str, float]:
    """The mean of every measure over the steps that have it."""
    return {name: _mean(rows, name) for name in sorted({name for row in rows for name in row})}
