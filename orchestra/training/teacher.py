"""Who the SFT warm-up imitates: right often and not always, by a known share."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from orchestra.rollout.policies import Conversation, ScriptedPolicy
from orchestra.rollout.scripts import expert_answers, follow
from orchestra.tools.catalogue import Catalogue
from orchestra.types import Category, Preference, ToolKind, ToolSpec

GENERALIST = "every subject"
"""What the catalogue's generalists say of themselves."""


def candidates(topic: str, experts: list[ToolSpec]) -> list[ToolSpec]:
    """The experts whose description claims the topic, generalists included, in the order shown."""
    claim = re.compile(rf"\b{re.escape(topic)}\b|{GENERALIST}")
    return [spec for spec in experts if claim.search(spec.description)]


def think(conversation: Conversation) -> str:
    """The thought before the first expert: the topic, and each candidate with its price and seconds."""
    example = conversation.example
    if example.category is not Category.TOPIC or example.topic is None or expert_answers(conversation):
        return ""
    asked = {turn.call.name for turn in conversation.turns if turn.call is not None}
    experts = [s for s in example.toolbox if s.kind is ToolKind.EXPERT and s.name not in asked]
    listed = [f"{s.name} {show_price(s)} {show_latency(s)}" for s in candidates(example.topic, experts)]
    return "\n".join([example.topic, *listed])


def show_price(spec: ToolSpec) -> str:
    """As the chat template shows it."""
    return f"${min(spec.call_usd, 9):.4f}"


def show_latency(spec: ToolSpec) -> str:
    return f"{min(round(spec.latency_s), 999):03d}s"


def appeal(catalogue: Catalogue, spec: ToolSpec, topic: str, preference: Preference) -> float:
    """How much a well-informed teacher likes an expert: its skill less its price and wait, by the user's weights."""
    wish = preference.tools.get(spec.name, 0.0)
    cost = float(spec.call_usd) / 0.1 * preference.compute
    wait = spec.latency_s / 200 * preference.latency
    return catalogue.skill(spec.tool, topic) * (0.5 + preference.outcome) + wish - cost - wait


def teacher_policy(
    catalogue: Catalogue, skill: float, seed: int, encode_turn: Callable[[str], list[int]]
) -> ScriptedPolicy:
    """Picks the most appealing candidate with probability `skill`, otherwise any expert. Deterministic for a seed."""

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        example = conversation.example
        rng = random.Random(f"{seed}/{example.id}/{conversation.sample}/{len(conversation.turns)}")
        topic = example.topic or ""
        fit = candidates(topic, left)
        if rng.random() < skill and fit:
            return max(fit, key=lambda spec: appeal(catalogue, spec, topic, example.preference))
        # Asking everyone until someone knows is not worth it: after two tries a careless teacher gives up.
        return rng.choice(left) if len(conversation.turns) < 2 else None

    return ScriptedPolicy("teacher", lambda c: follow(c, choose, think), encode_turn)
