"""Who the SFT warm-up imitates: right often and not always, with the bias that untrained orchestrators have.

Its thought names the subject, lists the experts that suit it with their prices, and ends with a plan: a word for what
it goes by when it picks. A plan is a skill that the base has learned; which plan fits whom and what is left to GRPO.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, get_args

from orchestra.config import Habits
from orchestra.rollout.policies import Conversation, ScriptedPolicy
from orchestra.rollout.scripts import follow
from orchestra.tools.catalogue import MASTERED, Catalogue
from orchestra.types import Category, Example, Preference, ToolKind, ToolSpec

CANDIDATE_SKILL = 0.38
"""An expert at least this skilled in a topic is worth considering; its description says so."""
GENERALIST = 0.4
"""Mean skill from which an expert is described as a generalist."""
GENERAL_GRADES = ((0.6, "strong"), (0.5, "good"))
PROMISE = {"expert": 0.84, "strong": 0.66, "some": 0.6, "good": 0.58, "fair": 0.46}
"""How often an expert of a grade is right; the means of the shipped catalogue."""
PRICE_WEIGHT = 5.0
"""How much promise a dollar is worth to the plan "value"."""
HARD = "hard"

Plan = Literal["cheap", "fast", "dear", "best", "strong", "value", "wish", "any"]
PLANS: tuple[Plan, ...] = get_args(Plan)
FREE: tuple[Plan, ...] = ("cheap", "fast", "dear", "best", "strong", "value")
"""The plans that need no wish of the user's."""
HEEDING: dict[str, Plan] = {"cheap": "cheap", "fast": "fast", "prefer": "wish", "avoid": "wish"}
"""The plan that heeds a preference, by its kind; "accurate" asks for the sensible one."""
SENSIBLE: dict[bool, Plan] = {True: "strong", False: "value"}
"""By whether the question is hard."""


def teacher_policy(
    catalogue: Catalogue, habits: Habits, seed: int, encode_turn: Callable[[str], list[int]]
) -> ScriptedPolicy:
    """Follows known solutions; of the experts it picks by its habits. Deterministic for a seed."""

    def drawn(conversation: Conversation) -> random.Random:
        return random.Random(f"{seed}/{conversation.example.id}/{conversation.sample}")

    def candidates(conversation: Conversation) -> list[ToolSpec]:
        example = conversation.example
        asked = {turn.call.name for turn in conversation.turns if turn.call is not None}
        experts = [s for s in example.toolbox if s.kind is ToolKind.EXPERT and s.name not in asked]
        return [s for s in experts if catalogue.skill(s.tool, example.topic or "") >= CANDIDATE_SKILL]

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        example, turn = conversation.example, len(conversation.turns)
        fit = candidates(conversation)
        if turn and not (
            fit and random.Random(f"{seed}/{example.id}/{conversation.sample}/{turn}").random() < habits.patience
        ):
            return None
        rng = drawn(conversation)
        plan = plan_for(example, habits, rng)
        if plan == "any":
            return rng.choice(left)
        topic = example.topic or ""
        return max(
            fit or left,
            key=lambda spec: (*merit(plan, spec, grade(catalogue, spec, topic), example.preference), spec.name),
        )

    def think(conversation: Conversation) -> str:
        example = conversation.example
        if example.category is not Category.TOPIC or conversation.turns:
            return ""
        topic = example.topic or ""
        by_price = sorted(candidates(conversation), key=lambda spec: (spec.call_usd, spec.name))
        plan = plan_for(example, habits, drawn(conversation))
        subject = f"{topic} {HARD}" if example.hard else topic
        return "\n".join([subject, *(show(spec, grade(catalogue, spec, topic)) for spec in by_price), plan])

    return ScriptedPolicy("teacher", lambda c: follow(c, choose, think), encode_turn)


def plan_for(example: Example, habits: Habits, rng: random.Random) -> Plan:
    """What the teacher goes by in an example: the stated wish, its bias, anybody, good sense, or one of the plans."""
    if example.preference.words and rng.random() < habits.heed:
        kind = example.preference.kind
        return SENSIBLE[example.hard] if kind == "accurate" else HEEDING[kind]
    if rng.random() < habits.bias:
        return "dear"
    if rng.random() < habits.careless:
        return "any"
    return SENSIBLE[example.hard] if rng.random() < habits.sense else rng.choice(FREE)


def merit(plan: Plan, spec: ToolSpec, graded: str, preference: Preference) -> tuple[float, ...]:
    """How well an expert of a grade fits a plan; the greatest is asked first, so what is left comes in its order."""
    usd, promise = float(spec.call_usd), PROMISE[graded]
    match plan:
        case "cheap":
            return (-usd,)
        case "fast":
            return (-spec.latency_s, -usd)
        case "dear":
            return (usd,)
        case "best":
            return (promise, -usd)
        case "strong":
            return (graded in ("strong", "good"), promise, -usd)
        case "wish":
            return (preference.tools.get(spec.name, 0.0) > 0, promise - PRICE_WEIGHT * usd)
        case _:
            return (promise - PRICE_WEIGHT * usd,)


def show(spec: ToolSpec, grade: str) -> str:
    """A candidate in a thought: price and seconds as the chat template shows them, what is expected of it, its name."""
    return f"${min(spec.call_usd, 9):.4f} {min(round(spec.latency_s), 999):03d}s {grade} {spec.name}"


def grade(catalogue: Catalogue, spec: ToolSpec, topic: str) -> str:
    """One word for what an expert's description promises in a topic: no more than a reader could tell."""
    strength = catalogue.strength(spec.tool)
    if strength >= GENERALIST:
        return next((word for floor, word in GENERAL_GRADES if strength >= floor), "fair")
    return "expert" if catalogue.skill(spec.tool, topic) >= MASTERED else "some"
