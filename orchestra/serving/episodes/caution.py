"""A policy that says "I cannot know that." in place of a turn that it doubts, or of an answer to a call that failed.

A small model writes something for every question. Where nothing of the kind was in its training, it still does, but the
tokens have far lower probabilities. The mean log-probability of a turn's tokens tells the two apart.

It also leaves numbers out of a story's sum, and is sure of it. A sum of its own that lacks a number of the request, or
has one that the request does not name, is thus doubted too.

A small model also takes an error message for a result. Its answer to a failed call is thus no answer, unless a domain's
tools are offered: what they refuse may be just what the user asked about.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean

from orchestra.errors import CallError
from orchestra.rollout.charges import policy_usage
from orchestra.rollout.parse import read_turn
from orchestra.rollout.policies.base import Conversation, Generation, Policy
from orchestra.rollout.render import Codec
from orchestra.tools.arithmetic.words import BELOW_TWENTY, SCALES, TENS
from orchestra.tools.base import call_failed
from orchestra.tools.calculator import evaluate
from orchestra.types import Example, ToolCall

CALCULATOR = "calculator"
"""The catalogue's name of the tool that works sums out."""
CONSTANTS = frozenset(map(Fraction, (1, 2, 3, 4, 7, 10, 12, 24, 52, 60, 100, 365, 1000)))
"""Numbers that a sum may have beyond the request's: parts, units, percent."""
_WORD = "|".join(sorted([*BELOW_TWENTY, *TENS, *SCALES, "hundred"], key=len, reverse=True))
_NUMBER = re.compile(rf"\d[\d,]*(?:\.\d+)?|\.\d+|\b(?:{_WORD})(?:(?: and | |-)(?:{_WORD}))*\b", re.IGNORECASE)


def numbers(text: str) -> set[Fraction]:
    """The numbers that a text names, in digits or in words."""
    found = set()
    for number in _NUMBER.findall(text):
        with suppress(CallError):
            found.add(evaluate(number))
    return found


def missums(example: Example, call: ToolCall) -> bool:
    """Whether a call asks a calculator for a sum whose numbers are not those of the request.

    One that cannot be read is none: the calculator then reads the request.
    """
    expression = call.arguments.get("expression")
    calculates = any(spec.name == call.name and spec.tool == CALCULATOR for spec in example.toolbox)
    if not calculates or not isinstance(expression, str):
        return False
    try:
        evaluate(expression)
    except CallError:
        return False
    wanted, used = numbers(example.instruction), numbers(expression)
    return bool(wanted - used - {Fraction(1)} or used - wanted - CONSTANTS)


def confidence(logprobs: Sequence[float]) -> float:
    """Mean log-probability of a turn's tokens, in nats; 0 where they are not known."""
    return fmean(logprobs) if logprobs else 0.0


@dataclass(eq=False)
class CautiousPolicy:
    """Of one request: tokens of a turn are told when it is whole, since a doubted turn is nobody's answer."""

    inner: Policy
    least: float
    """`confidence` below which a turn is doubted."""
    instead: Sequence[int]
    """The tokens that stand in its place, the stop token included: (time,)."""
    codec: Codec
    sums: bool = True
    """Whether sums are checked: of a conversation, the numbers may be those of earlier messages."""
    by_episode: bool = field(init=False)
    _silent: dict[int, Conversation] = field(default_factory=dict)
    """What the inner policy sees in place of each conversation (by identity); turns are shared."""

    def __post_init__(self) -> None:
        self.by_episode = bool(getattr(self.inner, "by_episode", False))

    @property
    def name(self) -> str:
        return self.inner.name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        self._silent = {id(c): replace(c, on_tokens=None) for c in conversations}
        self.inner.begin(list(self._silent.values()))

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        written = await self.inner.generate([self._silent[id(c)] for c in conversations], max_tokens)
        made = [self._sure(c, one) for c, one in zip(conversations, written, strict=True)]
        for conversation, one in zip(conversations, made, strict=True):
            if conversation.on_tokens is not None:
                conversation.on_tokens(one.ids)
        return made

    def end(self) -> None:
        self.inner.end()

    def _sure(self, conversation: Conversation, written: Generation) -> Generation:
        """The turn, or what stands in its place; the tokens of a doubted turn are paid for all the same."""
        if confidence(written.logprobs) >= self.least and not self._wrong(conversation, written):
            return written
        usage = policy_usage(conversation, written)
        return replace(written, ids=list(self.instead), logprobs=[], stop="stop", usage=usage)

    def _wrong(self, conversation: Conversation, written: Generation) -> bool:
        """Whether the turn answers a failed call, with no domain's tools offered, or begins with a wrong sum."""
        failed = conversation.example.domain is None and any(map(call_failed, conversation.turns[-1:]))
        if conversation.turns and not failed:
            return False
        try:
            turn = read_turn(self.codec, written.ids, self.codec.decode(written.ids))
        except CallError:
            return False
        if failed:
            return turn.answer is not None
        return self.sums and turn.call is not None and missums(conversation.example, turn.call)
