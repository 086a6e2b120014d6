"""Rule policies to measure the orchestrator against: which expert each asks; everything else they are told.

Every rule is given the known solution of what needs no expert (arithmetic, search, domains), so it differs from the
others, and from the trained model, only in its choice of experts; its own tokens are free. Both favour the rules.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable

from orchestra.evaluation.baselines.base import ORACLE, STRONGEST, baseline, tuned_baseline
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.scripted import ChooseExpert
from orchestra.synthesis.questions.topic_words import THINGS
from orchestra.types import ToolCall, ToolKind, ToolSpec

PRICE_CAP_USD = 0.02
"""What the price-aware rule pays for its first question; between the published cost a task of the small experts (0.5
cents) and of the large ones (6 and 27 cents)."""
PRICE_CAPS_USD = (0.0, 0.002, 0.005, 0.01, 0.05, 0.2)


def _words_of(topic: str) -> set[str]:
    things = THINGS[topic]
    said = [part for thing in things for one in thing.asked for part in (thing.called, one.noun, *one.forms)]
    return {_stem(word) for word in re.findall(r"[a-z]+", " ".join([topic, *said]).lower())}


def _stem(word: str) -> str:
    """Endings do not matter: `photons` is `photon`."""
    return word[:-1] if word.endswith("s") else word


_USED = Counter(word for topic in THINGS for word in _words_of(topic))
SUBJECTS: dict[str, frozenset[str]] = {
    topic: frozenset(word for word in _words_of(topic) if _USED[word] == 1) for topic in THINGS
}
"""The words by which a rule-writer who has read training questions tells a subject: those that no other has."""
GENERAL = {"strong": 0.66, "good": 0.57, "fair": 0.45}
"""How often the price-aware rule expects a generalist described so to be right."""
SPECIALIST, DABBLER, STRANGER = 0.62, 0.5, 0.15
"""The same for an expert whose description names the subject, names it with a reserve, and does not name it."""


@baseline(STRONGEST)
def always_strongest(knowledge: Knowledge) -> ChooseExpert:
    """Asks, once, the expert with the best published accuracy alone; without one, the most expensive by list price.

    Both are facts of the catalogue, so an example's random price does not change who is strongest. List price alone
    would name an expert that costs four times the most accurate one, and make an easy rival.
    """
    catalogue = knowledge.catalogue

    def strength(spec: ToolSpec) -> tuple[float, float]:
        return catalogue.strength(spec.tool), float(catalogue.spec(spec.tool).call_usd)

    return _once(lambda conversation, left: max(left, key=strength))


@baseline("always_cheapest")
def always_cheapest(knowledge: Knowledge) -> ChooseExpert:
    """Asks, once, the expert that is cheapest in this example."""
    return _once(lambda conversation, left: min(left, key=lambda spec: (spec.call_usd, spec.name)))


@baseline("random")
def random(knowledge: Knowledge) -> ChooseExpert:
    """Asks, once, any expert, by a hash of the example's id."""
    return _once(lambda conversation, left: left[_draw(conversation.example.id) % len(left)])


@tuned_baseline("price_aware", knobs=PRICE_CAPS_USD, rival="the price-aware rule")
def price_aware(knowledge: Knowledge, cap_usd: float = PRICE_CAP_USD) -> ChooseExpert:
    """Asks the best match per dollar under a price cap; when that one is unsure, the best match left at any price.

    It reads what a policy can see: the instruction, and each expert's description and price.
    """

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec:
        subject = subject_of(conversation.example.instruction)
        match = {spec.name: described_match(subject, spec.description) for spec in left}
        escalating = any(_is_expert(conversation, turn.call) for turn in conversation.turns)
        suited = [spec for spec in left if spec.call_usd <= cap_usd and match[spec.name] > STRANGER]
        if escalating or not suited:
            return max(left, key=lambda spec: (match[spec.name], -spec.call_usd))
        return max(suited, key=lambda spec: (match[spec.name] / max(float(spec.call_usd), 1e-6), spec.name))

    return choose


@baseline(ORACLE, needs="right")
def oracle(knowledge: Knowledge) -> ChooseExpert:
    """Asks the cheapest expert that will be right, and none where none will be: the head-room of the examples."""

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        name = knowledge.right.get(conversation.example.id)
        return next((spec for spec in left if spec.name == name), None)

    return choose


def subject_of(instruction: str) -> str | None:
    """The subject whose words the instruction uses most; None when it uses none."""
    words = [_stem(word) for word in re.findall(r"[a-z]+", instruction.lower())]
    hits = {subject: sum(word in stems for word in words) for subject, stems in SUBJECTS.items()}
    best = max(hits, key=lambda subject: hits[subject])
    return best if hits[best] else None


def described_match(subject: str | None, description: str) -> float:
    """How often an expert so described may be expected to be right about a subject."""
    text = description.lower()
    named = re.search(rf"(\b(?:some|easy|basic|a little) )?\b{re.escape(subject)}\b", text) if subject else None
    if named:
        return DABBLER if named.group(1) else SPECIALIST
    general = [chance for word, chance in GENERAL.items() if re.search(rf"\b{word}\b", text)]
    return max(general) if general and re.search(r"\b(every|any|all)\b", text) else STRANGER


def _once(choose: Callable[[Conversation, list[ToolSpec]], ToolSpec]) -> ChooseExpert:
    """Ask one expert and take what it says."""

    def first_only(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        if any(_is_expert(conversation, turn.call) for turn in conversation.turns):
            return None
        return choose(conversation, left)

    return first_only


def _is_expert(conversation: Conversation, call: ToolCall | None) -> bool:
    kinds = {spec.name: spec.kind for spec in conversation.example.toolbox}
    return call is not None and kinds.get(call.name) is ToolKind.EXPERT


def _draw(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
