"""The baselines by name: a decorated function of this folder is one, with its knob and what it must be told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.register import Register
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.policies.scripted import ChooseExpert, follow
from orchestra.types import ToolSpec

STRONGEST = "always_strongest"
"""The baseline in whose dollars and seconds utility is counted."""
ORACLE = "oracle"
"""The head-room of the examples: it is told which expert will be right."""

Needs = Literal["lessons", "right"]
"""The fields of `Knowledge` that cost a call of every expert."""
Rule = Callable[[Knowledge], ChooseExpert]
Enough = Callable[[Conversation], bool]


class TunedRule(Protocol):
    """A rule with a knob between cheap and right."""

    def __call__(self, knowledge: Knowledge, knob: float = ..., /) -> ChooseExpert: ...


AnyRule = TypeVar("AnyRule", bound=Rule)
AnyTuned = TypeVar("AnyTuned", bound=TunedRule)


@dataclass(frozen=True)
class Baseline:
    """One rule, as registered."""

    rule: Rule
    needs: Needs | None = None
    tuned: TunedRule | None = None
    knobs: tuple[float, ...] = ()
    """Settings that trace the rule's frontier, in ascending order."""
    enough: Enough | None = None
    """When the replies settle a question; None: as soon as one expert was not unsure."""
    rival: str | None = None
    """What the claims table calls it in "better than …"; None: it has no row there."""


BASELINES: Register[Baseline] = Register("baseline", "orchestra.evaluation.baselines", "evaluate.baselines")
"""Every rule by the name that params.yaml uses."""


def baseline(name: str, *, needs: Needs | None = None) -> Callable[[AnyRule], AnyRule]:
    """Register a rule: its name then works in `evaluate.baselines`. `needs`: what of `Knowledge` it reads."""

    def register(rule: AnyRule) -> AnyRule:
        BASELINES.add(name, Baseline(rule, needs), rule.__module__)
        return rule

    return register


def tuned_baseline(
    name: str,
    *,
    knobs: tuple[float, ...],
    rival: str | None = None,
    needs: Needs | None = None,
    enough: Enough | None = None,
) -> Callable[[AnyTuned], AnyTuned]:
    """Register a rule with a knob, its second parameter: `name@0.05` works too, and `knobs` trace its frontier.

    `enough` says when the replies settle a question. With `rival`, the claims table says whether the trained model is
    better than "<rival>", at equal cost as well.
    """

    def register(rule: AnyTuned) -> AnyTuned:
        BASELINES.add(name, Baseline(rule, needs, rule, knobs, enough, rival), rule.__module__)
        return rule

    return register


def frontier(name: str) -> list[str]:
    """The names of a tuned rule over its knob, its own default first."""
    return [name, *(f"{name}@{knob:g}" for knob in BASELINES.find(name).knobs)]


def rivals() -> list[str]:
    """What `orchestra learn` measures the orchestrator against: every rule, and every setting of those with a knob."""
    return list(dict.fromkeys([*BASELINES, *(point for name in BASELINES for point in frontier(name))]))


def find_rule(name: str) -> Rule:
    """A rule by its name, a knob after `@`; `ConfigError` for a name that is no rule."""
    base, at, knob = name.partition("@")
    if not at and base in BASELINES:
        return BASELINES[base].rule
    try:
        tuned, setting = BASELINES[base].tuned, float(knob)
    except (KeyError, ValueError):
        tuned, setting = None, 0.0
    if tuned is None:
        with_knob = [f"{one}@NUMBER" for one, entry in BASELINES.items() if entry.tuned is not None]
        fix = f"one of: {', '.join(BASELINES)}; or {', '.join(with_knob)}"
        raise ConfigError(f"no baseline named {name}", where="evaluate.baselines", fix=fix)
    chosen = tuned
    return lambda knowledge: chosen(knowledge, setting)


def needed(names: Sequence[str]) -> set[Needs]:
    """What the rules must be told; `ConfigError` for a name that is no rule."""
    for name in names:
        find_rule(name)
    found = (BASELINES[name.partition("@")[0]].needs for name in names)
    return {needs for needs in found if needs is not None}


def baseline_policy(name: str, knowledge: Knowledge, encode_turn: Callable[[str], list[int]]) -> ScriptedPolicy:
    """The rule as a policy for the loop; `ConfigError` for a name that is no rule."""
    choose, enough = find_rule(name)(knowledge), BASELINES[name.partition("@")[0]].enough

    def in_time(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        # The last turn must answer: an expert asked in it would be paid for nothing.
        return choose(conversation, left) if len(conversation.turns) < knowledge.max_turns - 1 else None

    return ScriptedPolicy(name, lambda c: follow(c, in_time, enough=enough), encode_turn)
