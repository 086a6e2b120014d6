"""Who the SFT warm-up imitates: right often and not always, with the bias that untrained orchestrators have."""

from __future__ import annotations

import random
from collections.abc import Callable

from orchestra.config import Habits
from orchestra.rollout.policies import Conversation, ScriptedPolicy
from orchestra.rollout.scripts import expert_answers, follow
from orchestra.tools.catalogue import MASTERED, Catalogue
from orchestra.types import Category, Preference, ToolKind, ToolSpec

CANDIDATE_SKILL = 0.38
"""An expert at least this skilled in a topic is worth considering; its description says so."""
GENERALIST = 0.4
"""Mean skill from which an expert is described as a generalist."""
GENERAL_GRADES = ((0.6, "strong"), (0.5, "good"))
TRIES = 2
"""After this many experts the teacher answers with what it has."""


def teacher_policy(
    catalogue: Catalogue, habits: Habits, seed: int, encode_turn: Callable[[str], list[int]]
) -> ScriptedPolicy:
    """Follows known solutions; of the experts it picks by its habits. Deterministic for a seed."""

    def candidates(conversation: Conversation) -> list[ToolSpec]:
        example = conversation.example
        asked = {turn.call.name for turn in conversation.turns if turn.call is not None}
        experts = [s for s in example.toolbox if s.kind is ToolKind.EXPERT and s.name not in asked]
        return [s for s in experts if catalogue.skill(s.tool, example.topic or "") >= CANDIDATE_SKILL]

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        example = conversation.example
        if len(conversation.turns) >= TRIES:
            return None
        rng = random.Random(f"{seed}/{example.id}/{conversation.sample}/{len(conversation.turns)}")
        fit = candidates(conversation) or left
        if example.preference.words and rng.random() < habits.heed:
            return max(fit, key=lambda spec: appeal(catalogue, spec, example.topic or "", example.preference))
        if rng.random() < habits.bias:
            return max(fit, key=lambda spec: spec.call_usd)
        return rng.choice(left if rng.random() < habits.careless else fit)

    def think(conversation: Conversation) -> str:
        example = conversation.example
        if example.category is not Category.TOPIC or expert_answers(conversation) or len(conversation.turns) >= TRIES:
            return ""
        topic = example.topic or ""
        by_price = sorted(candidates(conversation), key=lambda spec: (spec.call_usd, spec.name))
        return "\n".join([topic, *(show(spec, grade(catalogue, spec, topic)) for spec in by_price)])

    return ScriptedPolicy("teacher", lambda c: follow(c, choose, think), encode_turn)


def show(spec: ToolSpec, grade: str) -> str:
    """A candidate in a thought: price and seconds as the chat template shows them, what is expected of it, its name."""
    return f"${min(spec.call_usd, 9):.4f} {min(round(spec.latency_s), 999):03d}s {grade} {spec.name}"


def grade(catalogue: Catalogue, spec: ToolSpec, topic: str) -> str:
    """One word for what an expert's description promises in a topic: no more than a reader could tell."""
    strength = catalogue.strength(spec.tool)
    if strength >= GENERALIST:
        return next((word for floor, word in GENERAL_GRADES if strength >= floor), "fair")
    return "expert" if catalogue.skill(spec.tool, topic) >= MASTERED else "good"


def appeal(catalogue: Catalogue, spec: ToolSpec, topic: str, preference: Preference) -> float:
    """How much someone who knows the skills likes an expert: skill less price and wait, by the user's weights."""
    wish = preference.tools.get(spec.name, 0.0) * 3
    cost = float(spec.call_usd) / 0.05 * preference.compute
    wait = spec.latency_s / 60 * preference.latency
    return catalogue.skill(spec.tool, topic) * 2 + wish - cost - wait
