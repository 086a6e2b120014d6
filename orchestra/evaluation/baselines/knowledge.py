"""Knowledge that rules may use: the catalogue, measured outcomes on training examples, and the oracle's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestra.errors import CallError, JudgeError, ToolError
from orchestra.rewards.judge import Judge, judge_of
from orchestra.rewards.outcome import decide
from orchestra.rollout.policies.scripted import asking
from orchestra.tools.base import UNSURE
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.session import ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.waiting import at_once
from orchestra.types import Example, ToolKind, ToolSpec

AT_ONCE = 32
"""Examples that are asked at the same time."""


@dataclass(frozen=True)
class Lesson:
    """One training question, asked of every expert of the catalogue."""

    example: Example
    right: Mapping[str, float]
    """1 or 0 by catalogue entry; an expert that failed, or whose judge did, is left out."""
    unsure: frozenset[str] = frozenset()
    """The entries that said they were not sure."""


@dataclass(frozen=True)
class Knowledge:
    """What rules may know before any example; and what only the oracle knows."""

    catalogue: Catalogue
    right: Mapping[str, str | None] = field(default_factory=dict)
    """By example id, the shown name of the cheapest expert that answers it rightly (oracle only)."""
    lessons: Sequence[Lesson] = ()
    """Training questions that need an expert (routers that learn)."""
    expert_share: float = 1.0
    """Share of training examples that need an expert: `lessons` are those."""
    max_turns: int = 5
    """Turns an episode may take; the last must answer."""


async def who_is_right(examples: Sequence[Example], toolkit: Toolkit) -> dict[str, str | None]:
    """Asks every expert of every example that needs one; the cheapest right one by example id, None where none is.

    Costs a call each: meant for experts that are simulated or replayed, whose answers do not change. What no rule can
    tell the toolkit's judge decides, as of episodes. Raises `JudgeError` where it fails.
    """
    asked = [example for example in examples if example.needs_expert]
    judge = judge_of(toolkit, asked)
    right = await at_once((_cheapest_right(example, toolkit, judge) for example in asked), AT_ONCE)
    return {example.id: name for example, name in zip(asked, right, strict=True)}


def needs_lesson(example: Example) -> bool:
    """Whether only an expert answers it, and one is on offer."""
    return example.needs_expert and bool(example.experts)


def lesson_questions(examples: Sequence[Example], most: int | None = None) -> list[Example]:
    """The examples that need a lesson; `most`: only so many, evenly spread."""
    needing = list(filter(needs_lesson, examples))
    if most is not None and most < len(needing):
        needing = [needing[number * len(needing) // most] for number in range(most)]
    return needing


async def take_lessons(examples: Sequence[Example], toolkit: Toolkit, most: int | None = None) -> list[Lesson]:
    """Asks every expert of the catalogue every example that needs one: a call each, as `who_is_right`.

    `most`: as in `lesson_questions`. Examples are asked at the same time, within each provider's limits.
    """
    experts = tuple(toolkit.catalogue.spec(name) for name in toolkit.catalogue.names(ToolKind.EXPERT))
    asked = lesson_questions(examples, most)
    judge = judge_of(toolkit, asked)
    return await at_once((_lesson(example, experts, toolkit, judge) for example in asked), AT_ONCE)


async def _lesson(example: Example, experts: tuple[ToolSpec, ...], toolkit: Toolkit, judge: Judge | None) -> Lesson:
    asked = example.model_copy(update={"toolbox": experts})
    session = ToolSession(toolkit, asked)
    try:
        replies = {spec.tool: await _reply(session, spec, example.instruction) for spec in experts}
        # Equal replies are judged once.
        said = {text for text in replies.values() if text is not None}
        known = {text: verdict for text in sorted(said) if (verdict := await decide(asked, text, session, judge))}
    finally:
        session.close()
    right = {tool: float(known[text].solved) for tool, text in replies.items() if text in known}
    return Lesson(example, right, frozenset(tool for tool, text in replies.items() if text == UNSURE))


async def _cheapest_right(example: Example, toolkit: Toolkit, judge: Judge | None) -> str | None:
    session = ToolSession(toolkit, example)
    try:
        for spec in sorted(example.experts, key=lambda spec: spec.call_usd):
            text = await _reply(session, spec, example.instruction)
            if text is None:
                continue
            verdict = await decide(example, text, session, judge)
            if verdict is None:
                what = f"no verdict on what {spec.name} said, so that the oracle cannot be told"
                raise JudgeError(what, where=example.id, fix="run it again, or leave the oracle out")
            if verdict.solved:
                return spec.name
    finally:
        session.close()
    return None


async def _reply(session: ToolSession, spec: ToolSpec, words: str) -> str | None:
    """What an expert says to the bare question; None when it failed or refused: one out of reach cannot be right."""
    try:
        outcome = await session.call(asking(spec, words))
    except (CallError, ToolError):
        return None
    return None if outcome.error or outcome.by is not None else outcome.text
