"""A policy that says "I cannot know that." in place of a turn that it doubts, or of an answer to a call that failed.

A small model writes something for every question. Where nothing of the kind was in its training, it still does, but the
tokens have far lower probabilities. The mean log-probability of a turn's tokens tells the two apart.

A small model also takes an error message for a result. Its answer to a failed call is thus no answer, unless a domain's
tools are offered: what they refuse may be just what the user asked about.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from orchestra.errors import CallError
from orchestra.rollout.charges import policy_usage
from orchestra.rollout.parse import read_turn
from orchestra.rollout.policies.base import Conversation, Generation, Policy
from orchestra.rollout.render import Codec
from orchestra.tools.base import call_failed


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
        if confidence(written.logprobs) >= self.least and not self._answers_error(conversation, written):
            return written
        usage = policy_usage(conversation, written)
        return replace(written, ids=list(self.instead), logprobs=[], stop="stop", usage=usage)

    def _answers_error(self, conversation: Conversation, written: Generation) -> bool:
        """Whether the turn is the answer to a call that failed, with no domain's tools offered."""
        if conversation.example.domain is not None or not any(map(call_failed, conversation.turns[-1:])):
            return False
        try:
            return read_turn(self.codec, written.ids, self.codec.decode(written.ids)).answer is not None
        except CallError:
            return False
