"""The register of reward parts: what each one measures, the weight of P that it has, and its ends."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from orchestra.config.reward import PUBLISHED, RewardParams
from orchestra.errors import ConfigError
from orchestra.types import Episode, Preference, ToolSpec

Parts = Literal["outcome", "efficiency", "full"]
"""Which weights of P count: being right alone, also compute and latency, or also everything else."""
LEVELS: tuple[Parts, ...] = ("outcome", "efficiency", "full")
Ends = tuple[float, float]
"""The values of a feature that are worth 0 and 1."""
Weigh = Callable[[Preference, Sequence[ToolSpec]], Mapping[str, float]]
FindEnds = Callable[[Sequence[ToolSpec], RewardParams], Ends | None]
Measure = Callable[..., float]
"""From an episode (and, of a part for each tool, the tool's shown name) to a number; larger is better."""


@dataclass(frozen=True)
class Feature:
    """One reward part, as registered."""

    name: str
    weight: str | Weigh
    measure: Measure
    level: Parts
    ends: FindEnds
    of_solved: bool
    spent: bool
    when: tuple[str, Any] | None

    def weighed(self, preference: Preference, toolbox: Sequence[ToolSpec], shape: RewardParams) -> dict[str, float]:
        """Weight by the names of the parts that this feature has for a preference: one, or one for each tool."""
        if callable(self.weight):
            return {f"{self.name}:{key}": weight for key, weight in self.weight(preference, toolbox).items()}
        found = getattr(preference, self.weight) if self.weight in Preference.model_fields else None
        if isinstance(found, Mapping):
            return {f"{self.name}:{key}": weight for key, weight in found.items()}
        stated = preference.weights.get(self.weight, shape.weights.get(self.weight, 0.0))
        return {self.name: stated if found is None else float(found)}


@dataclass(frozen=True)
class Term:
    """One entry of M and of P (Eq. 1-2) for one preference."""

    name: str
    weight: float
    measure: Callable[[Episode], float]
    of_solved: bool
    """Whether only solved episodes are paid for it, so that only they may set its mean."""
    ends: Ends | None = None
    """The example's own ends of the feature; None: it has none, and differs by nothing."""
    loss: bool = False
    """Whether every episode pays for it, solved or not."""

    def value(self, episode: Episode) -> float:
        """What is measured of the episode; raises `ConfigError` where that is not finite."""
        found = self.measure(episode)
        if not math.isfinite(found):
            where = f"an episode of {episode.example_id!r:.80}"
            raise ConfigError(f"the reward part {self.name} is {found}", where=where, fix="correct its function")
        return found


FEATURES: dict[str, Feature] = {}
"""By name, in the order in which their parts are added up."""


def of_no_toolbox(toolbox: Sequence[ToolSpec], shape: RewardParams) -> Ends:
    """The ends of a feature that is between 0 and 1 by itself."""
    del toolbox, shape
    return (0.0, 1.0)


def feature(
    name: str,
    *,
    weight: str | Weigh,
    level: Parts = "full",
    ends: FindEnds = of_no_toolbox,
    of_solved: bool = True,
    spent: bool = False,
    when: tuple[str, Any] | None = None,
) -> Callable[[Measure], Measure]:
    """Register a function of an episode as a reward part; larger is better.

    `weight`: a field of `Preference`, a key of its `weights`, or a function to weights by tool; where it gives several,
    the function also takes the tool's name. `level`: the first value of `grpo.reward` that counts the part. `ends`:
    what is worth 0 and 1 where `grpo.unit` is not group, by the toolbox. `of_solved`: False for a part in whose mean
    failed episodes count. `spent`: True for what an episode spends, which `grpo.spent` may count for all. `when`: a
    switch and the value that turns the part on.
    """
    if name in FEATURES:
        raise ValueError(f"there is a reward part {name} already")

    def register(measure: Measure) -> Measure:
        FEATURES[name] = Feature(name, weight, measure, level, ends, of_solved, spent, when)
        return measure

    return register


def terms(
    preference: Preference, parts: Parts = "full", shape: RewardParams = PUBLISHED, toolbox: Sequence[ToolSpec] = ()
) -> list[Term]:
    """M and P of a preference: every registered part that `parts` and the switches of `shape` count."""
    check_word("parts", parts, LEVELS)
    found = []
    for one in FEATURES.values():
        off = one.when is not None and getattr(shape, one.when[0]) != one.when[1]
        if off or LEVELS.index(one.level) > LEVELS.index(parts):
            continue
        ends = one.ends(toolbox, shape)
        for name, weight in one.weighed(preference, toolbox, shape).items():
            _, several, key = name.partition(":")
            measure = partial(_of_key, one.measure, key) if several else one.measure
            loss = one.spent and shape.spent == "all"
            found.append(Term(name, weight, measure, one.of_solved and not loss, ends, loss))
    return found


def check_word(name: str, value: str, words: Sequence[str]) -> None:
    """Raises `ConfigError` where an argument has none of its words."""
    if value not in words:
        raise ConfigError(f"{name} is {value!r}", where="the reward", fix=f"write one of: {', '.join(words)}")


def unknown_weights(preference: Preference, shape: RewardParams) -> list[str]:
    """Names of further weights that no reward part has."""
    known = {one.weight for one in FEATURES.values() if isinstance(one.weight, str)}
    return sorted({*preference.weights, *shape.weights} - (known - set(Preference.model_fields)))


def _of_key(measure: Measure, key: str, episode: Episode) -> float:
    return measure(episode, key)
