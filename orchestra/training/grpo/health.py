"""Whether a GRPO run still learns what it should: measures of each step, reasons to stop, which steps were good."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestra.rewards.group import Reward
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
UNKNOWN = {"valid": 1.0}
"""What a measure is taken for while no step has it; 0 otherwise."""
PARTS = {"tool_share/": "calls", "expert_share/": "expert_calls", "reward_": "reward"}
"""Measures that add up over their names, and what a step has that has any of them: what it does not name is 0 there."""

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
        "valid": fmean(e.well_formed for e in known),
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
    not called have a share of 0. `expert_share/<tool>` is of the expert calls where several experts were offered, and
    `expert_calls` how many those are an episode.
    """
    calls = Counter(key for episode in episodes for key in _called(episode, examples))
    offered = {key for e in episodes if e.example_id in examples for key in _offered(examples[e.example_id])}
    total = calls.total() or 1
    chosen = Counter(tool for episode in episodes for tool in _chosen(episode, examples))
    kinds = {kind: sum(n for (k, _), n in calls.items() if k is kind) for kind in ToolKind}
    return {
        "calls": calls.total() / len(episodes) if episodes else 0.0,
        **{f"kind_share/{kind.value}": count / total for kind, count in kinds.items()},
        **{f"tool_share/{tool}": calls[kind, tool] / total for kind, tool in sorted(offered | set(calls))},
        "top_tool_share": max(calls.values(), default=0) / total,
        "expert_calls": chosen.total() / len(episodes) if episodes else 0.0,
        **{f"expert_share/{tool}": count / chosen.total() for tool, count in sorted(chosen.items())},
    }


def _offered(example: Example) -> set[tuple[ToolKind, str]]:
    return {(s.kind, "domain" if s.kind is ToolKind.DOMAIN else s.tool) for s in example.toolbox}


def _chosen(episode: Episode, examples: Mapping[str, Example]) -> list[str]:
    """The experts that the episode called, unless its example offers one alone."""
    example = examples.get(episode.example_id)
    if example is not None and sum(spec.kind is ToolKind.EXPERT for spec in example.toolbox) < 2:
        return []
    return [tool for kind, tool in _called(episode, examples) if kind is ToolKind.EXPERT]


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
class Recent:
    """What a reason to stop reads: means over the last `window` steps, and over the first ones of the run."""

    history: History
    window: int
    max_failed: float
    """`grpo.max_infrastructure_failures`."""

    def began(self, name: str) -> float:
        return _mean(self.history[:WINDOW], name, UNKNOWN.get(name, 0.0))

    def now(self, name: str) -> float:
        return _mean(self.history[-self.window :], name, self.began(name))

    @property
    def steps(self) -> str:
        return f"over {self.window} steps"


@dataclass(frozen=True)
class HealthCheck:
    """How far a run has gone in one wrong way, and from where to where it may go."""

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


Check = Callable[[Recent], HealthCheck]


@dataclass(frozen=True)
class Reason:
    """A reason to stop, as registered."""

    name: str
    check: Check
    about_weights: bool
    since_restart: bool
    logged: str | None


REASONS: list[Reason] = []
"""In the order in which they are tried; two ways to the same end may share a name."""


def stop_reason(
    name: str, *, about_weights: bool = True, since_restart: bool = False, logged: str | None = None
) -> Callable[[Check], Check]:
    """Register a reason to stop a training: it ends the run when its check is broken over `WINDOW` steps.

    `about_weights`: the run then ends with its last good checkpoint, and a checkpoint is good only while the check is
    not half way to its limit. `since_restart`: steps before a restart do not count, for the cause may be fixed.
    `logged`: the name under which `now` is logged each step, after `train/`.
    """

    def register(check: Check) -> Check:
        REASONS.append(Reason(name, check, about_weights, since_restart, logged))
        return check

    return register


@stop_reason("infrastructure", about_weights=False, since_restart=True)
def infrastructure(run: Recent) -> HealthCheck:
    """Tools and endpoints fail."""
    failed = run.now("failed")
    return HealthCheck(failed, 0.0, run.max_failed, f"{failed:.0%} of episodes failed {run.steps}")


@stop_reason("format lost")
def format_lost(run: Recent) -> HealthCheck:
    """Turns no longer parse."""
    valid = run.now("valid")
    return HealthCheck(1 - valid, 1 - run.began("valid"), 1 - MIN_VALID, f"{valid:.0%} well formed {run.steps}")


@stop_reason("collapse")
def one_expert(run: Recent) -> HealthCheck:
    """One expert is asked, whatever the question and whoever else is offered."""
    share, began = _largest_expert(run.history[-run.window :]), _largest_expert(run.history[:WINDOW])
    return HealthCheck(share, began, MAX_TOOL_SHARE, f"{share:.0%} of expert calls go to one expert")


@stop_reason("collapse")
def one_tool(run: Recent) -> HealthCheck:
    """One tool is called, whatever the question."""
    began = run.began("top_tool_share")
    share = run.now("top_tool_share") if began < SPREAD else 0.0
    return HealthCheck(share, began, MAX_TOOL_SHARE, f"{share:.0%} of calls go to one tool")


@stop_reason("reward hacking", logged="divergence")
def reward_hacking(run: Recent) -> HealthCheck:
    """Reward rises while accuracy falls."""
    rose = run.now("reward") > run.began("reward")
    fall = run.began("accuracy") - run.now("accuracy") if rose else 0.0
    return HealthCheck(fall, 0.0, MAX_DIVERGENCE, f"reward rose while accuracy fell by {fall:.0%}")


@stop_reason("decline", logged="decline")
def decline(run: Recent) -> HealthCheck:
    """Accuracy falls from its best window."""
    starts = range(0, max(1, len(run.history) - WINDOW + 1), WINDOW)
    best = max(_mean(run.history[i : i + WINDOW], "accuracy") for i in starts)
    fall = best - run.now("accuracy")
    return HealthCheck(fall, 0.0, MAX_DECLINE, f"accuracy fell by {fall:.0%}")


@stop_reason("entropy lost", logged="entropy_lost")
def entropy_lost(run: Recent) -> HealthCheck:
    """The policy tries nothing any more."""
    began = run.began("entropy")
    lost = 1 - run.now("entropy") / began if began > 0 else 0.0
    return HealthCheck(lost, 0.0, MAX_ENTROPY_LOST, f"{lost:.0%} of it {run.steps}")


@stop_reason("no signal", about_weights=False)
def no_signal(run: Recent) -> HealthCheck:
    """No group has an advantage, so nothing is learnt."""
    last = run.history[-run.window :]
    dead = all(row.get("dead_groups", 0.0) == 1.0 and row.get("failed", 0.0) < 1.0 for row in last)
    return HealthCheck(float(dead), 0.0, 0.5, f"no group's rewards differ {run.steps}")


def reason_to_stop(history: History, max_failed: float, since: int = 0) -> str | None:
    """The name of the first broken reason and what it says, or None. `since`: the step of the last restart."""
    for reason in REASONS:
        rows = history[since:] if reason.since_restart else history
        if len(rows) < WINDOW:
            continue
        check = reason.check(Recent(rows, WINDOW, max_failed))
        if check.broken:
            return f"{reason.name}: {check.says}"
    return None


def failed_to_the_end(history: History, max_failed: float, since: int = 0) -> str | None:
    """The same of a training that ended with fewer steps than a reason needs: tools failed in those since a restart."""
    rows = history[since:][-WINDOW:]
    check = infrastructure(Recent(rows, len(rows), max_failed))
    return f"infrastructure: {check.says}" if rows and check.broken else None


def is_good(history: History, max_failed: float) -> bool:
    """Whether a checkpoint after these steps is one to go back to: nothing is half way to where it would be stopped."""
    recent = Recent(history, RECENT, max_failed)
    return bool(history) and not any(one.check(recent).half_way for one in REASONS if one.about_weights)


def declined(reason: str | None) -> bool:
    """Whether the weights are the worse for it, so that the last good checkpoint is the result."""
    return reason is not None and reason.partition(":")[0] in {one.name for one in REASONS if one.about_weights}


def trends(history: History) -> dict[str, float]:
    """How far each reason that is logged has gone: what `measure` of one step cannot tell."""
    recent = Recent(history, RECENT, 1.0)
    return {one.logged: one.check(recent).now for one in REASONS if one.logged is not None}


def _mean(rows: History, name: str, unknown: float = 0.0) -> float:
    """Over the rows that have it: a step without one known verdict has no accuracy."""
    found = [row[name] for row in rows if name in row]
    return fmean(found) if found else unknown


def _largest_expert(rows: History) -> float:
    """The share of the expert that is called most over all of the steps with a choice of experts."""
    steps = [row for row in rows if row.get("expert_calls")]
    names = {name for row in steps for name in row if name.startswith("expert_share/")}
    return max((fmean(row.get(name, 0.0) for row in steps) for name in names), default=0.0)


def averages(rows: History) -> dict[str, float]:
    """The mean of every measure over the steps that have it, so that means of parts add up as the parts do."""
    names = sorted({name for row in rows for name in row})
    return {name: _mean(_with_part(rows, name), name) for name in names}


def _with_part(rows: History, name: str) -> History:
    """The steps, with a 0 where one of `PARTS` is not named: no example offers the tool, no user weighs the part."""
    whole = next((whole for begin, whole in PARTS.items() if name.startswith(begin)), None)
    return [{name: 0.0, **row} if whole in row else row for row in rows]
