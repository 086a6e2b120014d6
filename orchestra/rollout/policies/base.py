"""The model that acts: token ids in; token ids, log-probabilities and a stop reason out, a batch at a time."""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestra.errors import ToolError
from orchestra.types import Example, StopReason, Turn, Usage

UNFINISHED = {
    "length": (StopReason.TOKEN_LIMIT, "the turn did not end"),
    "refused": (StopReason.TOKEN_LIMIT, "the model refused to write a turn"),
    "failed": (StopReason.TOOL_FAILURE, "the policy's endpoint gave no turn"),
}
"""How a turn that did not stop by itself ends its episode, and what the record says."""


@dataclass(eq=False)
class Conversation:
    """An episode in the making; the loop owns it and appends turns, policies only read it."""

    example: Example
    prompt_ids: list[int]
    sample: int = 0
    turns: list[Turn] = field(default_factory=list)
    on_tokens: Callable[[Sequence[int]], None] | None = None
    """Called with the tokens of the turn under way as they are written. Possibly in another thread."""

    @property
    def ids(self) -> list[int]:
        """Every token so far: (time,)."""
        every = [*self.prompt_ids]
        for turn in self.turns:
            every += turn.ids
            every += turn.observation_ids
        return every

    @property
    def length(self) -> int:
        """How many tokens so far."""
        return len(self.prompt_ids) + sum(len(turn.ids) + len(turn.observation_ids) for turn in self.turns)


@dataclass(frozen=True)
class Generation:
    """The policy's output of one turn."""

    ids: list[int]
    """Its tokens, the stop token included when it stopped by itself."""
    logprobs: list[float]
    """One for each of `ids`; empty when the policy does not know them."""
    stop: Literal["stop", "length", "refused", "failed"]
    """length, refused: no whole turn, and the episode is wrong. failed: the model's endpoint gave no turn; the episode
    ends without a verdict."""
    cached_tokens: int = 0
    """How many of the conversation's earlier tokens were read from a cache."""
    usage: Usage | None = None
    """Tokens as the model's endpoint counts them; None: those of `ids` and of the conversation."""
    seconds: float | None = None
    """How long the endpoint took; None: modelled from the number of tokens."""
    replayed: bool = False
    """Whether a cassette gave it: it was paid for when it was recorded."""
    failure: ToolError | None = None
    """Why the endpoint gave no turn."""


class Policy(Protocol):
    """Continues conversations by one turn at a time. `begin` and `end` bracket a batch, so that caches can be kept.

    Where an attribute `by_episode` is true, turns of different episodes need not be asked for together: each is then
    asked for as soon as its episode can go on. Where a method `worst_usage` is there, it says the most tokens that the
    endpoint may bill for a turn, from the conversation and the most tokens of the turn; when `generate` is cancelled,
    such a policy notes what its endpoint may bill (`note_used`).
    """

    @property
    def name(self) -> str: ...

    def begin(self, conversations: Sequence[Conversation]) -> None: ...

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; `max_tokens` bounds each turn."""
        ...

    def end(self) -> None: ...


def note_used(given_up: CancelledError, usages: Sequence[Usage]) -> None:
    """Say in a cancellation which tokens may be billed all the same."""
    vars(given_up)["usages"] = tuple(usages)


def used_until(given_up: CancelledError) -> tuple[Usage, ...] | None:
    """The tokens of turns that were cancelled; None: nobody has noted them."""
    noted: tuple[Usage, ...] | None = vars(given_up).get("usages")
    return noted


class KeepsNothing:
    """A policy's `begin` and `end` where it keeps nothing for a batch."""

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing to prepare."""

    def end(self) -> None:
        """Nothing to free."""


class ScriptedPolicy(KeepsNothing):
    """A policy whose turns are decided by a function of the conversation: teachers, baselines and tests."""

    by_episode = True

    def __init__(
        self, name: str, decide: Callable[[Conversation], str], encode_turn: Callable[[str], list[int]]
    ) -> None:
        self._name, self._decide, self._encode = name, decide, encode_turn

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        made = [Generation(self._encode(self._decide(c)), [], "stop") for c in conversations]
        for conversation, generation in zip(conversations, made, strict=True):
            if conversation.on_tokens is not None:
                for token in generation.ids:
                    conversation.on_tokens([token])
        return made
