"""The teacher of the base and of SFT: it shows abilities in full and draws choices by habit.

For a topic question a thought names the subject, the expert that the user's preference names, the experts that suit
with price, seconds and grade, and the preference in one word. It ends with a choice, such as `cheapest`, and the call
carries the choice out. After a reply it says what is known and the preference once more, and chooses again. State and
preference stand right before the choice, in its line: a small model that never let them decide could hardly learn to
look far back for them.

Where the solution is known, a thought notes what the last reply gave, such as `balance 640`, and names the tools still
to call.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from orchestra.config.schema import Habits
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.policies.scripted import asking, expert_answers, follow
from orchestra.tools.base import UNSURE, unanswered
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import MASTERED
from orchestra.tools.search.corpus import NOTHING
from orchestra.training.choices import (
    ANSWER,
    NAMED,
    OTHERS,
    POOR,
    SEARCH,
    WORDS,
    Candidate,
    Mark,
    carried_out,
    drawn,
)
from orchestra.types import Category, Example, Preference, ToolCall, ToolKind, ToolSpec

CANDIDATE_SKILL = 0.42
"""An expert at least this skilled in a topic is worth considering; its description says so."""
GENERALIST = 0.4
"""Mean skill from which an expert is described as a generalist."""
GENERAL_GRADES = ((0.6, "strong"), (0.5, "good"))
MOST_CALLS = 4
"""Calls after which the teacher answers: an episode of five turns must end with an answer."""
WISHES = {"cheap": "cheap", "fast": "fast", "accurate": "right", "prefer": "like", "avoid": "not"}
"""The word for a preference, by its kind."""
NO_WISH = "any"

UNKNOWN, VAIN = "unsure", "nothing"
"""What the replies amount to where none gave an answer, and where a search was in vain."""
FELT = {UNKNOWN: "doubt", VAIN: "empty", "one": "single", "agree": "sure", "differ": "torn", "found": "record"}
MEANT = {"any": "open", "cheap": "saving", "fast": "hurry", "right": "careful", "like": "liking", "not": "avoiding"}
"""State and preference in other words, with which a choice begins: `doubt-saving-strongest`."""

ASK = "ask"
"""A step of its own: what only the user knows."""
CONDITION = re.compile(r"\b(?:only if|unless|if) it is\b")
"""What every conditional request says; see `orchestra.synthesis.domain_tasks.evolve`."""
FIELD = re.compile(r"(\w+): ([^,]+)")
"""One field of a domain's reply."""


def teacher_policy(
    catalogue: Catalogue,
    habits: Habits,
    seed: int,
    encode_turn: Callable[[str], list[int]],
) -> ScriptedPolicy:
    """Follows known solutions; asks experts by choices drawn from its habits. Deterministic for a seed."""

    def decide(conversation: Conversation) -> str:
        example, turn = conversation.example, len(conversation.turns)
        if example.category is not Category.TOPIC:
            return follow(conversation, lambda _, left: left[0], steps)
        rng = random.Random(f"{seed}/{example.id}/{conversation.sample}/{turn}")
        asked = {one.call.name for one in conversation.turns if one.call is not None}
        listed = candidates(catalogue, example)
        left = [one for one in listed if one.spec.name not in asked]
        tool = searchable(example)
        search = tool is not None and tool.name not in asked
        if turn >= MOST_CALLS or (turn and not left):
            choice = ANSWER
        else:
            doubt = turn and known(conversation) in (UNKNOWN, VAIN)
            stop = (habits.stop * (1 - habits.ask_on) if doubt else habits.stop) if turn else 0.0
            choice = drawn(rng, left, strongest=habits.strongest, search=search, answer=stop)
        state = known(conversation) if turn else None
        thought = "\n".join(opening(example, listed)) if state is None else f"{state} {wish(example)}"
        return spoken(f"{thought} {reasoned(state, wish(example), choice)}", conversation, choice, left)

    return ScriptedPolicy("teacher", decide, encode_turn)


def steps(conversation: Conversation) -> str:
    """What the last reply gave that is needed yet, as `field value`, then the tools left to call, then nothing."""
    example = conversation.example
    golden = example.verifier.golden_calls
    words = len(example.user.facts) if example.user is not None else 0
    done = len(conversation.turns)
    left = golden[max(0, done - words) :]
    ask = [ASK] if done < words else []
    # Until its condition is known, a request may need more calls or none: only the next is named.
    named = left[:1] if CONDITION.search(example.instruction) else left
    return " ".join([*(notes(conversation, left) if done > words else []), *ask, *(call.name for call in named)])


def notes(conversation: Conversation, left: Sequence[ToolCall]) -> list[str]:
    """`field value` for each value of the last reply that a later call or the answer holds; none where two fields have
    that value."""
    reply = conversation.turns[-1].observation or ""
    fields = FIELD.findall(reply)
    verifier = conversation.example.verifier
    wanted = {str(value) for call in left for value in call.arguments.values()} | set(verifier.communicate)
    given = Counter(value for _, value in fields)
    return [f"{field} {value}" for field, value in fields if value in wanted and given[value] == 1]


def spoken(thought: str, conversation: Conversation, choice: str, left: list[Candidate]) -> str:
    """The turn that carries the choice out."""
    tool = searchable(conversation.example)
    if choice == SEARCH and tool is not None:
        return format_call(ToolCall(name=tool.name, arguments={"query": conversation.example.query}), thought)
    asked = carried_out(choice, left)
    if asked is None:
        return format_answer(answer(conversation), thought)
    return format_call(asking(asked.spec, conversation.example.instruction), thought)


def opening(example: Example, listed: list[Candidate]) -> list[str]:
    """The first thought: the subject, the expert that the preference names, the suited ones, the search, its word."""
    tool = searchable(example)
    lines = [] if tool is None else [show(Candidate(tool, SEARCH)).removesuffix(f" {tool.name}")]
    return [example.topic or "", *named(example), *(show(one) for one in listed), *lines, wish(example)]


def reasoned(state: str | None, wished: str, choice: str) -> str:
    """A choice with its reasons, one word: `saving-cheapest` for the first one, `doubt-saving-cheapest` later."""
    return "-".join([*([] if state is None else [FELT[state]]), MEANT[wished], choice])


def choice_words() -> list[str]:
    """Every choice with every reason that it can have."""
    anybody = [*WORDS, SEARCH]
    marked = [*anybody, *OTHERS, NAMED]
    found = []
    for state in (None, *FELT):
        for wished in MEANT:
            choices = marked if wished in (WISHES["prefer"], WISHES["avoid"]) else anybody
            found += [reasoned(state, wished, choice) for choice in [*choices, *([ANSWER] if state else [])]]
    return found


def searchable(example: Example) -> ToolSpec | None:
    """The search on offer, where there is something to search for."""
    return next((spec for spec in example.toolbox if spec.tool == SEARCH), None) if example.query else None


def found(conversation: Conversation) -> str | None:
    """The answer that a record gave; None where nothing was searched or found."""
    for turn in conversation.turns:
        query = turn.call is not None and "query" in turn.call.arguments
        if query and turn.observation and turn.observation != NOTHING:
            return turn.observation.rstrip(".").split()[-1]
    return None


def known(conversation: Conversation) -> str:
    """One word for what the replies so far amount to."""
    if found(conversation) is not None:
        return "found"
    answers = expert_answers(conversation)
    if not answers:
        return UNKNOWN if any(unanswered(turn.observation) for turn in conversation.turns) else VAIN
    if len(answers) == 1:
        return "one"
    return "agree" if max(Counter(answers).values()) > 1 else "differ"


def answer(conversation: Conversation) -> str:
    """What a record says, or the most frequent reply, the last of equals."""
    record, answers = found(conversation), expert_answers(conversation)
    return record or (max(reversed(answers), key=answers.count) if answers else UNSURE)


def candidates(catalogue: Catalogue, example: Example) -> list[Candidate]:
    """The experts of a thought, cheapest first: those suited (else two cheap ones), and the one that is named."""
    graded = [
        Candidate(spec, grade(catalogue, spec, example.topic or ""), mark(spec, example.preference))
        for spec in example.toolbox
        if spec.kind is ToolKind.EXPERT
    ]
    by_price = sorted(graded, key=lambda one: (one.spec.call_usd, one.spec.name))
    suited = [one for one in by_price if one.grade != POOR] or by_price[:2]
    return [one for one in by_price if one in suited or one.mark]


def mark(spec: ToolSpec, preference: Preference) -> Mark:
    """What a preference says of a tool."""
    if preference.kind == "prefer" and spec.name in preference.tools:
        return "like"
    avoided = preference.kind == "avoid" and spec.kind is ToolKind.EXPERT and spec.name not in preference.tools
    return "not" if avoided else ""


def named(example: Example) -> list[str]:
    """The line of a thought for an expert to prefer or avoid; none where the preference names no expert."""
    marked = ((mark(spec, example.preference), spec.name) for spec in example.toolbox)
    return [f"{word} {name}" for word, name in marked if word]


def wish(example: Example) -> str:
    """The word for what the user prefers: `cheap`, `fast`, `right`, `like`, `not`, or `any`."""
    return WISHES.get(example.preference.kind, NO_WISH)


def show(one: Candidate) -> str:
    """A line of a thought: price and seconds as the chat template shows them, the grade, the name, and the mark."""
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
