"""Who the SFT warm-up imitates: right often and not always, with the bias that untrained orchestrators have.

Its thought names the subject, lists the experts that suit it with their prices, and ends with a plan: a word for what
it goes by when it picks. A plan is a skill that the base has learned; which plan fits whom and what is left to GRPO.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from orchestra.config.schema import Habits
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.policies.scripted import expert_answers, follow
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import MASTERED
from orchestra.types import Category, Example, Preference, ToolKind, ToolSpec

CANDIDATE_SKILL = 0.38
"""An expert at least this skilled in a topic is worth considering; its description says so."""
GENERALIST = 0.4
"""Mean skill from which an expert is described as a generalist."""
GENERAL_GRADES = ((0.6, "strong"), (0.5, "good"))
PROMISE = {
    False: {"expert": 0.99, "some": 0.86, "strong": 0.7, "good": 0.6, "fair": 0.56, "poor": 0.09},
    True: {"strong": 0.62, "good": 0.55, "expert": 0.34, "fair": 0.17, "some": 0.04, "poor": 0.0},
}
"""How often an expert of a grade is right, by whether the question is hard; as measured on training questions."""
DOUBT = {
    False: {"expert": 0.8, "some": 0.8, "strong": 0.4, "good": 0.5, "fair": 0.5, "poor": 0.8},
    True: {"strong": 0.4, "good": 0.5, "expert": 0.05, "fair": 0.05, "some": 0.05, "poor": 0.05},
}
"""How often it says that it is unsure where it is not right, in the same way."""
PRICES: dict[str, tuple[float, float]] = {
    "cheap": (20.0, 0.0),
    "fast": (1.0, 0.014),
    "best": (1.0, 0.0),
    "value": (3.5, 0.001),
    "wish": (3.5, 0.001),
    "any": (3.5, 0.001),
}
"""How much promise a dollar and a second are worth to a plan: about what the weights of P (Eq. 2) come to for those who
wish for it, when always-strongest's mean dollars and seconds are the units."""
HARD, POOR = "hard", "poor"

Mark = Literal["", "like", "not"]
"""Whether the user would like an expert, or avoid it."""

Plan = Literal["cheap", "fast", "dear", "best", "value", "wish", "any"]
PLANS: tuple[Plan, ...] = get_args(Plan)
FREE: tuple[Plan, ...] = ("cheap", "fast", "dear", "best", "value")
"""The plans that need no preference of the user."""
HEEDING: dict[str, Plan] = {"cheap": "cheap", "fast": "fast", "accurate": "best", "prefer": "wish", "avoid": "wish"}
"""The plan that heeds a preference, by its kind."""
SENSIBLE: Plan = "value"
"""The plan where the user states no preference."""


def teacher_policy(
    catalogue: Catalogue, habits: Habits, seed: int, encode_turn: Callable[[str], list[int]]
) -> ScriptedPolicy:
    """Follows known solutions; of the experts it picks by its habits. Deterministic for a seed."""

    def drawn(conversation: Conversation) -> random.Random:
        return random.Random(f"{seed}/{conversation.example.id}/{conversation.sample}")

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        example, turn = conversation.example, len(conversation.turns)
        named = {spec.name for spec in left}
        fit = [one for one in considered(catalogue, example) if one.spec.name in named]
        if not fit:
            return None
        plan = plan_for(example, habits, rng := drawn(conversation))
        if plan == "any" and not turn:
            return rng.choice(left)
        best = max(fit, key=lambda one: (*merit(plan, one, hard=example.hard), one.spec.name))
        if turn and not _only_poor(catalogue, conversation):
            patient = random.Random(f"{seed}/{example.id}/{conversation.sample}/{turn}").random() < habits.patience
            if not patient or merit(plan, best, hard=example.hard)[-1] < 0:
                return None
        return best.spec

    def think(conversation: Conversation) -> str:
        example = conversation.example
        if example.category is not Category.TOPIC or conversation.turns:
            return ""
        plan = plan_for(example, habits, drawn(conversation))
        subject = f"{example.topic} {HARD}" if example.hard else example.topic or ""
        return "\n".join([subject, *wished(example), *(show(one) for one in candidates(catalogue, example)), plan])

    def enough(conversation: Conversation) -> bool:
        return bool(expert_answers(conversation)) and not _only_poor(catalogue, conversation)

    return ScriptedPolicy("teacher", lambda c: follow(c, choose, think, enough), encode_turn)


@dataclass(frozen=True)
class Candidate:
    """An expert of a toolbox."""

    spec: ToolSpec
    grade: str
    """What its description promises in the topic, see `grade`; "poor" where it promises nothing."""
    mark: Mark = ""


def candidates(catalogue: Catalogue, example: Example) -> list[Candidate]:
    """The experts that a thought lists, cheapest first: those suited; where nobody is, the two cheapest."""
    graded = [
        Candidate(spec, grade(catalogue, spec, example.topic or ""), mark(spec, example.preference))
        for spec in example.toolbox
        if spec.kind is ToolKind.EXPERT
    ]
    by_price = sorted(graded, key=lambda one: (one.spec.call_usd, one.spec.name))
    return [one for one in by_price if one.grade != POOR] or by_price[:2]


def considered(catalogue: Catalogue, example: Example) -> list[Candidate]:
    """The candidates and whom the user would like, suited or not; nobody to avoid while there are others."""
    listed = candidates(catalogue, example)
    names = {one.spec.name for one in listed}
    liked = [s for s in example.toolbox if mark(s, example.preference) == "like" and s.name not in names]
    found = [*listed, *(Candidate(spec, grade(catalogue, spec, example.topic or ""), "like") for spec in liked)]
    return [one for one in found if one.mark != "not"] or found


def mark(spec: ToolSpec, wish: Preference) -> Mark:
    """What a preference says of a tool."""
    if wish.kind == "prefer" and spec.name in wish.tools:
        return "like"
    return "not" if wish.kind == "avoid" and spec.kind is ToolKind.EXPERT and spec.name not in wish.tools else ""


def wished(example: Example) -> list[str]:
    """The line of a thought that says whom the user would like or avoid; none where the preference names no tool."""
    marked = ((mark(spec, example.preference), spec.name) for spec in example.toolbox)
    return [f"{word} {name}" for word, name in marked if word]


def plan_for(example: Example, habits: Habits, rng: random.Random) -> Plan:
    """What the teacher goes by in an example: the stated preference, its bias, any expert, good sense, or a plan."""
    if example.preference.words and rng.random() < habits.follow_preference:
        return HEEDING[example.preference.kind]
    if rng.random() < habits.bias:
        return "dear"
    if rng.random() < habits.random_choice:
        return "any"
    return SENSIBLE if rng.random() < habits.weigh_value else rng.choice(FREE)


def merit(plan: Plan, one: Candidate, *, hard: bool) -> tuple[float, ...]:
    """How well a candidate fits a plan; the greatest is asked first, so what is left comes in its order.

    A poor one is nobody's choice but that of a user who likes it. Who is unsure leaves the question to the next, so
    what an expert is worth counts per chance that the matter ends with it: the order in which asking on is worth most.
    """
    usd, promise = float(one.spec.call_usd), PROMISE[hard][one.grade]
    liked = plan == "wish" and one.mark == "like"
    if plan == "dear":
        return (one.grade != POOR, usd)
    compute, latency = PRICES[plan]
    worth = promise - compute * usd - latency * one.spec.latency_s
    ends = 1 - (1 - promise) * DOUBT[hard][one.grade]
    return (liked, one.grade != POOR, worth / ends if worth > 0 else worth)


def show(one: Candidate) -> str:
    """A line of a thought: price and seconds as the chat template shows them, what the expert promises, its name, and
    what the user wishes of it, in time for the choice."""
    usd, seconds = min(one.spec.call_usd, 9), min(round(one.spec.latency_s), 999)
    return f"${usd:.4f} {seconds:03d}s {one.grade} {one.spec.name} {one.mark}".rstrip()


def grade(catalogue: Catalogue, spec: ToolSpec, topic: str) -> str:
    """One word for what an expert's description promises in a topic: no more than a reader could tell."""
    skill, strength = catalogue.skill(spec.tool, topic), catalogue.strength(spec.tool)
    if skill < CANDIDATE_SKILL:
        return POOR
    if strength >= GENERALIST:
        return next((word for floor, word in GENERAL_GRADES if strength >= floor), "fair")
    return "expert" if skill >= MASTERED else "some"


def _only_poor(catalogue: Catalogue, conversation: Conversation) -> bool:
    """Whether nobody but poor ones was asked, and a better one is on the list: what they said settles nothing."""
    listed = {one.spec.name: one.grade for one in candidates(catalogue, conversation.example)}
    asked = {turn.call.name for turn in conversation.turns if turn.call is not None}
    return any(grade != POOR for grade in listed.values()) and all(listed.get(name, POOR) == POOR for name in asked)
