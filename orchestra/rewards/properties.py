"""The properties that Eq. 1-2 must have, checked on the weights of a training before it starts."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial

from orchestra.config.schema import Grpo
from orchestra.errors import DataError
from orchestra.rewards.group import LIMIT, Reward, group_rewards, weights
from orchestra.rewards.limits import Limit
from orchestra.rewards.registry import Ends, terms, unknown_weights
from orchestra.types import (
    Charge,
    Component,
    Episode,
    Preference,
    Price,
    StopReason,
    ToolCall,
    ToolKind,
    ToolSpec,
    Turn,
    Verdict,
)

Score = Callable[[Sequence[Episode]], list[Reward]]
"""The rewards of a group under one vector P."""
GROUPS = 12
"""Drawn groups that each vector is tried on."""
TOLERANCE = 1e-9
NO_ENDS: Mapping[str, Ends | None] = {}

RESOLVED = 1e-12
"""The least share of the weights that a reward in double precision can tell from nothing."""


def check_weights(preferences: Iterable[Preference], settings: Grpo) -> list[str]:
    """Try the properties on every distinct vector P; raises `DataError` naming the first one that breaks.

    Returns notes, one line each, on vectors that are sound but whose cost, latency and tools train nothing where
    a group is all solved: `grpo.min_group_std` takes such a group for homogeneous. And on parts that train nothing,
    since what they measure is beyond their ends.
    """
    distinct = {
        (p.kind == "avoid", p.outcome, p.compute, p.latency, tuple(sorted(p.tools.values())), repr(p.weights)): p
        for p in preferences
    }
    notes = []
    for preference in distinct.values():
        if problem := _vector_problem(preference, settings):
            where, fix = "the preferences to train on", "fix its weights where the examples are made"
            raise DataError(f"{preference.kind}: {problem}", where=where, fix=fix)
        if problem := _reward_problem(preference, settings):
            where, fix = "the reward", "change the reward's keys of grpo, or the reward part"
            raise DataError(f"{preference.kind}: {problem}", where=where, fix=fix)
        notes += _beyond_ends(preference, settings)
        most = largest_std(preference, settings)
        if settings.homogeneity == "group" and 0 < most < settings.min_group_std:
            notes.append(
                f"{preference.kind}: where all of a group are solved its rewards have a std of {most:.3f} at most, "
                f"below min_group_std {settings.min_group_std:g}: cost and latency train nothing there"
            )
    return notes


def _reward_problem(preference: Preference, settings: Grpo) -> str | None:
    """The first property that the configured reward lacks under P, with a multiplier of 0 and the largest one."""
    toolbox, limits = _toolbox(preference), list[Limit | None]([None])
    if settings.constraint is not None and preference.kind in settings.constraint.usd:
        usd = settings.constraint.usd[preference.kind]
        limits = [Limit(usd, 0.0), Limit(usd, settings.constraint.most)]
    for limit in limits:
        score = partial(
            group_rewards, preference=preference, malformed=settings.malformed, parts=settings.reward, shape=settings,
            toolbox=toolbox, limit=limit,
        )  # fmt: skip
        weighed = weights(preference, settings.reward, settings, toolbox, limit)
        ends = {term.name: term.ends for term in terms(preference, settings.reward, settings, toolbox)}
        losses = settings.spent == "all"
        problem = broken_property(score, weighed, absolute=settings.unit != "group", losses=losses, ends=ends)
        if problem is not None:
            return problem
    return None


def _beyond_ends(preference: Preference, settings: Grpo) -> list[str]:
    """A note on each weighed part that is beyond its own ends in every drawn episode, so that all earn the same."""
    toolbox, rng = _toolbox(preference), random.Random(0)
    drawn = [_draw(rng, list(preference.tools)) for _ in range(GROUPS)]
    notes = []
    for term in terms(preference, settings.reward, settings, toolbox):
        if settings.unit == "group" or term.loss or term.ends is None or term.weight <= 0:
            continue
        low, high = term.ends
        if low == high or not any(low <= term.value(episode) <= high for episode in drawn):
            beyond = f"{term.name} pays all episodes alike, which lie beyond its ends {low:g} and {high:g}"
            notes.append(f"{preference.kind}: {beyond}: give the reward part other ends")
    return notes


def largest_std(preference: Preference, settings: Grpo) -> float:
    """The largest standard deviation that the rewards of a group of solved episodes can have."""
    weighed = weights(preference, settings.reward, settings, _toolbox(preference))
    spread, size = sum(weighed.values()) - weighed["outcome"], settings.group_size
    half = size // 2
    return float(spread * (half * (size - half) / (size * (size - 1))) ** 0.5)


def broken_property(
    score: Score,
    weighed: Mapping[str, float],
    *,
    absolute: bool = False,
    losses: bool = False,
    ends: Mapping[str, Ends | None] = NO_ENDS,
) -> str | None:
    """The first property that `score` lacks under the weights P (`weighed`, by feature name), in words.

    None: it has them all. The groups that it is tried on are the same every time. `absolute`: its ends are not the
    group's, so that what does not differ may add a constant. With `losses` or a limit among the weights, failed
    episodes pay for their dollars too, and a reward may be negative. `ends`: between which dollars and seconds count.
    """
    rng = random.Random(0)
    tools = [name.partition(":")[2] for name in weighed if ":" in name]
    negative = losses or LIMIT in weighed
    for _ in range(GROUPS):
        group = [_draw(rng, tools) for _ in range(rng.randint(2, 8))]
        problem = (
            _constant_problem(score, absolute=absolute or negative)
            or (None if negative else _order_problem(score, group, sum(weighed.values())))
            or _group_problem(score, group)
            or _dearer_problem(score, group)
        )
        if problem is not None:
            return problem
    spending: dict[str, Callable[[float], Episode]] = {
        "compute": lambda usd: _episode(cost_usd=usd),
        "latency": lambda seconds: _episode(latency_s=seconds),
        LIMIT: lambda usd: _episode(cost_usd=usd),
    }
    for name, spends in spending.items():
        # Beyond the ends two costs may count alike.
        most, least = (-end for end in ends.get(name) or (-2.0, -1.0))
        better, worse = _values(score([spends(least), spends(most)]))
        # A weight that floating point loses beside the others changes no reward.
        if weighed.get(name, 0.0) > RESOLVED * sum(weighed.values()) and better <= worse:
            return f"of two solved episodes the one with less {name} does not have the higher reward"
    return None


def _vector_problem(preference: Preference, settings: Grpo) -> str | None:
    named = {"outcome": preference.outcome, "compute": preference.compute, "latency": preference.latency}
    for name, weight in {**named, **preference.tools, **preference.weights}.items():
        # NaN is in no range either.
        if not 0 <= weight <= 1:
            return f"the weight of {name} is {weight:g}, outside [0, 1]"
    unknown = unknown_weights(preference, settings)
    if unknown:
        return f"no reward part has the weight {unknown[0]}"
    return None if preference.outcome > 0 else "the weight of outcome is 0: being right would earn nothing"


def _constant_problem(score: Score, *, absolute: bool) -> str | None:
    values = _values(score([_episode(cost_usd=1, latency_s=1)] * 3))
    if len(set(values)) > 1 or (any(values) and not absolute):
        return "features that do not differ within a group contribute"
    return None


def _order_problem(score: Score, group: Sequence[Episode], bound: float) -> str | None:
    """Solved above failed, and bounds."""
    values = _values(score(group))
    failed = [value for value, episode in zip(values, group, strict=True) if not episode.solved]
    solved = [value for value, episode in zip(values, group, strict=True) if episode.solved]
    if solved and failed and min(solved) < max(failed) - TOLERANCE:
        return "a solved episode has a lower reward than a failed one"
    if not all(-TOLERANCE <= value <= bound + TOLERANCE for value in values):
        return "a reward is outside [0, sum of the weights]"
    return None


def _group_problem(score: Score, group: Sequence[Episode]) -> str | None:
    """Permutation, and what infrastructure failed."""
    rewards = score(group)
    values = _values(rewards)
    if _values(score(list(reversed(group)))) != list(reversed(values)):
        return "a reward depends on the order of the group"
    with_unknown = score([_episode(solved=None, cost_usd=1000, latency_s=1e6), *group])
    if with_unknown[0].value is not None or with_unknown[1:] != rewards:
        return "an episode that infrastructure failed is scored, or changes the others' rewards"
    return None


def _dearer_problem(score: Score, group: Sequence[Episode]) -> str | None:
    before = _values(score(group))
    for index, episode in enumerate(group):
        for name, cost_usd, latency_s in (("more expensive", Decimal("0.3"), 0.0), ("slower", Decimal(0), 7.0)):
            charge = Charge(component=Component.POLICY, name="policy", cost_usd=cost_usd, latency_s=latency_s)
            last = episode.turns[-1]
            turns = (*episode.turns[:-1], last.model_copy(update={"charges": (*last.charges, charge)}))
            changed = [*group[:index], episode.model_copy(update={"turns": turns}), *group[index + 1 :]]
            if episode.solved and _values(score(changed))[index] > before[index] + TOLERANCE:
                return f"a solved episode that becomes {name} has a higher reward"
    return None


def _toolbox(preference: Preference) -> tuple[ToolSpec, ...]:
    """The tools that a preference names and two others, their prices and seconds as far apart as those of `_draw`."""
    names = [*preference.tools, *(name for name in ("one", "other") if name not in preference.tools)]
    ends = ((Decimal("0.001"), 1.0), (Decimal(2), 200.0))
    return tuple(
        ToolSpec(
            name=name, tool=name, kind=ToolKind.EXPERT, description="", parameters={}, price=Price(),
            call_usd=ends[place % 2][0], latency_s=ends[place % 2][1],
        )
        for place, name in enumerate(names)
    )  # fmt: skip


def _values(rewards: Sequence[Reward]) -> list[float]:
    return [0.0 if reward.value is None else reward.value for reward in rewards]


def _draw(rng: random.Random, tools: Sequence[str]) -> Episode:
    return _episode(
        solved=rng.random() < 0.6,
        cost_usd=rng.choice([0.0, 0.001, round(rng.uniform(0, 0.5), 4)]),
        latency_s=rng.choice([0.0, 30.0, round(rng.uniform(0, 200), 1)]),
        tools=[name for name in tools for _ in range(rng.randint(0, 2))],
    )


def _episode(
    *, solved: bool | None = True, cost_usd: float = 0.0, latency_s: float = 0.0, tools: Sequence[str] = ()
) -> Episode:
    """An episode that answered, with that verdict (None: unknown), dollars, seconds and calls."""
    calls = [
        Turn(ids=(1,), text="", call=ToolCall(name=n), charges=(Charge(component=Component.EXPERT, name=n),))
        for n in tools
    ]
    spent = Charge(component=Component.POLICY, name="policy", cost_usd=Decimal(str(cost_usd)), latency_s=latency_s)
    return Episode(
        example_id="check", policy="check", prompt_ids=(1,), turns=(*calls, Turn(ids=(2,), text="", charges=(spent,))),
        stop=StopReason.ANSWERED, answer="x", verdict=None if solved is None else Verdict(solved=solved, why=""),
    )  # fmt: skip
