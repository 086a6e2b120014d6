"""Whether what is served still behaves like what was evaluated: pure functions over episodes."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestra.types import Episode, StopReason

MIN_EPISODES = 50
"""Below it, differences are noise: nothing is said."""
PSI_ALARM = 0.25
"""The usual reading of the population stability index: above it, the distribution is another one."""
COST_FACTOR, ANSWERED_DROP, PARSED_DROP, TOP_SHARE = 1.5, 0.1, 0.05, 0.9


@dataclass(frozen=True)
class Profile:
    """How a set of episodes behaved. Empty sets have no episodes and zeros."""

    episodes: int
    tools: Mapping[str, float]
    """Share of calls by tool; adds up to 1."""
    cost_usd: float
    """Mean dollars an episode."""
    calls: float
    """Mean calls an episode."""
    answered: float
    """Share of episodes that ended with an answer; infrastructure failures left out."""
    parsed: float
    """Share of turns that parsed."""


@dataclass(frozen=True)
class Signal:
    """One difference that a person should look at."""

    name: str
    reference: float
    current: float
    alarm: float
    """The bound that was crossed."""

    def __str__(self) -> str:
        return f"{self.name}: {self.current:.4g}, at evaluation {self.reference:.4g}, bound {self.alarm:.4g}"


def profile(episodes: Iterable[Episode]) -> Profile:
    """Summarise episodes; those that infrastructure ended count for nothing but their calls."""
    every = list(episodes)
    counted = [e for e in every if e.stop not in (StopReason.TOOL_FAILURE, StopReason.CANCELLED)]
    calls: Counter[str] = Counter()
    for episode in every:
        calls.update(episode.tool_counts)
    turns = [turn for episode in counted for turn in episode.turns]
    return Profile(
        episodes=len(counted),
        tools={name: count / calls.total() for name, count in sorted(calls.items())},
        cost_usd=_mean([float(episode.cost_usd) for episode in counted]),
        calls=_mean([float(sum(episode.tool_counts.values())) for episode in counted]),
        answered=_mean([float(episode.stop is StopReason.ANSWERED) for episode in counted]),
        parsed=_mean([float(turn.parse_error is None) for turn in turns]),
    )


def stability(reference: Mapping[str, float], current: Mapping[str, float], floor: float = 0.005) -> float:
    """Population stability index of two distributions; 0 for equal ones, never negative, symmetric.

    Shares below `floor` count as `floor`, so that a tool new to one side costs something finite.
    """
    total = 0.0
    for name in reference.keys() | current.keys():
        a, b = max(reference.get(name, 0.0), floor), max(current.get(name, 0.0), floor)
        total += (b - a) * math.log(b / a)
    return total


def drift(reference: Profile, current: Profile) -> list[Signal]:
    """What differs enough to matter, of served episodes against evaluated ones; empty when there are too few."""
    if min(reference.episodes, current.episodes) < MIN_EPISODES:
        return []
    found = []
    moved = stability(reference.tools, current.tools)
    if moved > PSI_ALARM:
        found.append(Signal("tool shares (stability index)", 0.0, moved, PSI_ALARM))
    top, share = max(current.tools.items(), key=lambda item: item[1], default=("", 0.0))
    if share > TOP_SHARE:
        found.append(
            Signal(f"share of {top} (collapse onto one tool)", reference.tools.get(top, 0.0), share, TOP_SHARE)
        )
    if current.cost_usd > (bound := reference.cost_usd * COST_FACTOR):
        found.append(Signal("dollars an episode", reference.cost_usd, current.cost_usd, bound))
    if current.answered < (bound := reference.answered - ANSWERED_DROP):
        found.append(Signal("share answered", reference.answered, current.answered, bound))
    if current.parsed < (bound := reference.parsed - PARSED_DROP):
        found.append(Signal("share of turns that parse", reference.parsed, current.parsed, bound))
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
