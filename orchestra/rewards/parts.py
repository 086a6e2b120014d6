"""Every reward part: M of Eq. 1 (arXiv 2511.21689) and what goes beyond it, one decorated function each."""

from collections.abc import Mapping, Sequence

from orchestra.config.reward import RewardParams
from orchestra.rewards.registry import Ends, feature
from orchestra.types import Episode, Preference, ToolKind, ToolSpec


def _ends(values: Sequence[float], fixed: float | None, shape: RewardParams) -> Ends | None:
    """Ends of a cost: minus the smallest value is worth 1; 0 lies `unit_ceiling` times the way to minus the largest.

    The way begins at no cost where there is but one value. None: all are 0. With fixed units it goes from no cost to
    `fixed`, whatever the values.
    """
    ceiling = shape.unit_ceiling
    if shape.unit == "fixed" and fixed is not None:
        return (-ceiling * fixed, 0.0)
    most, least = max(values, default=0.0), min(values, default=0.0)
    best = least if least < most else 0.0
    return None if most <= 0 else (-best - ceiling * (most - best), -best)


def _experts(toolbox: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    """The experts of a toolbox; all its tools where it has none."""
    return [spec for spec in toolbox if spec.kind is ToolKind.EXPERT] or toolbox


def dollars_of(toolbox: Sequence[ToolSpec], shape: RewardParams) -> Ends | None:
    """Of one call of the cheapest and the most expensive expert, at the prices of the example; or `unit_usd`."""
    return _ends([float(spec.call_usd) for spec in _experts(toolbox)], shape.unit_usd, shape)


def seconds_of(toolbox: Sequence[ToolSpec], shape: RewardParams) -> Ends | None:
    """Of one call of the fastest and the slowest expert; or `unit_s`."""
    return _ends([spec.latency_s for spec in _experts(toolbox)], shape.unit_s, shape)


@feature("outcome", weight="outcome", level="outcome", of_solved=False)
def outcome(episode: Episode) -> float:
    """1 for a solved episode, 0 for another."""
    return float(episode.solved)


@feature("compute", weight="compute", level="efficiency", ends=dollars_of, spent=True)
def compute(episode: Episode) -> float:
    """Dollars as a negative number, so that cheaper is larger."""
    return -float(episode.cost_usd)


@feature("latency", weight="latency", level="efficiency", ends=seconds_of, spent=True)
def latency(episode: Episode) -> float:
    """Seconds as a negative number, so that faster is larger."""
    return -episode.latency_s


@feature("tool", weight="tools", when=("liked", "count"))
def calls(episode: Episode, name: str) -> float:
    """How many calls of a liked tool ran (Eq. 1)."""
    return float(episode.tool_counts.get(name, 0))


@feature("share", weight="tools", when=("liked", "share"))
def share(episode: Episode, name: str) -> float:
    """The share of a tool in all calls that ran."""
    counts = episode.tool_counts
    return counts.get(name, 0) / sum(counts.values()) if counts else 0.0


def _liked(preference: Preference, toolbox: Sequence[ToolSpec]) -> Mapping[str, float]:
    del toolbox
    return {} if preference.kind == "avoid" else preference.tools


def _disliked(preference: Preference, toolbox: Sequence[ToolSpec]) -> Mapping[str, float]:
    """The experts that a preference against tools leaves out of its weights, each at the weight of the others."""
    if preference.kind != "avoid" or not preference.tools:
        return {}
    weight = max(preference.tools.values())
    named = preference.tools
    return {s.name: weight for s in toolbox if s.kind is ToolKind.EXPERT and s.name not in named}


@feature("use", weight=_liked, when=("liked", "use"))
def use(episode: Episode, name: str) -> float:
    """1 where a liked tool was used, however often."""
    return float(name in episode.tool_counts)


@feature("avoid", weight=_disliked, when=("liked", "use"))
def avoid(episode: Episode, name: str) -> float:
    """1 where a disliked tool was not used."""
    return float(name not in episode.tool_counts)
