"""A control: a model's own thoughts and calls, with the choices between them made by a rule.

The model reads the wish and the table, and carries a choice out; the rule picks the choice by the wish that the thought
names. What training is worth beyond that is the difference to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestra.config.reward import Branch
from orchestra.config.schema import Rollout
from orchestra.rollout.parse import THINK_CLOSE
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.training.choices import ANSWER, NAMED, OTHERS, SEARCH, WORDS
from orchestra.training.grpo.branching.points import ways
from orchestra.training.teacher import MOST_CALLS, NO_WISH, WISHES

if TYPE_CHECKING:
    from orchestra.rollout.policies.transformers import TransformersPolicy
    from orchestra.rollout.render import Codec

EVERY = Branch(at="word", words=[*WORDS, *OTHERS, NAMED, SEARCH, ANSWER])
FIRST = {
    "any": "fastest", "cheap": "cheapest", "fast": "fastest", "right": "best", "like": NAMED, "not": "other-fastest",
}  # fmt: skip
"""Whom to ask first, by the word for the wish."""
AGAIN = FIRST | {"like": "fastest"}
"""Whom to ask on, after a doubt or a search in vain."""
SEARCHING = ("any", "right")
"""Whose questions are looked up first, where there is something to search in."""
CHECKED = {"one": "cheapest", "differ": "strongest"}
"""What a careful user's answer is checked by."""


def chosen(line: str, turn: int, *, search: bool) -> str:
    """The choice for the last line of a thought, such as `unsure cheap strongest`; `search`: whether one is offered."""
    words = line.split()
    wish = next((word for word in words if word in (*WISHES.values(), NO_WISH)), NO_WISH)
    state = "" if words[:1] in ([], [wish]) else words[0]
    if turn >= MOST_CALLS:
        return ANSWER
    if not state:
        return SEARCH if search and wish in SEARCHING else FIRST[wish]
    if state in ("unsure", "nothing"):
        return AGAIN[wish]
    return CHECKED.get(state, ANSWER) if wish == "right" else ANSWER


class RuledPolicy:
    """A checkpoint, greedy, whose choices are overwritten by `chosen`."""

    def __init__(self, inner: TransformersPolicy, codec: Codec, limits: Rollout) -> None:
        self._inner, self._codec, self._limits = inner, codec, limits

    @property
    def name(self) -> str:
        return self._inner.name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing is kept from turn to turn: what was written may be taken back."""

    def end(self) -> None:
        """Nothing to free."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        found = await self._written([c.ids for c in conversations], conversations, max_tokens)
        given = [self._given(c, g) for c, g in zip(conversations, found, strict=True)]
        places = [place for place, ids in enumerate(given) if ids]
        others = [conversations[place] for place in places]
        begun = [[*conversations[place].ids, *given[place]] for place in places]
        room = [max(1, max_tokens[place] - len(given[place])) for place in places]
        for place, one in zip(places, await self._written(begun, others, room), strict=True):
            ids = [*given[place], *one.ids]
            found[place] = replace(one, ids=ids, logprobs=[], cached_tokens=found[place].cached_tokens)
        return found

    async def _written(
        self, prompts: Sequence[list[int]], conversations: Sequence[Conversation], room: Sequence[int]
    ) -> list[Generation]:
        """What the model goes on with after each prompt."""
        if not conversations:
            return []
        shadows = [Conversation(c.example, ids, c.sample) for c, ids in zip(conversations, prompts, strict=True)]
        self._inner.begin(shadows)
        try:
            return await self._inner.generate(shadows, room)
        finally:
            self._inner.end()

    def _given(self, conversation: Conversation, generation: Generation) -> tuple[int, ...]:
        """What the turn must begin with instead; () where it has no choice or the rule's."""
        if generation.stop != "stop":
            return ()
        found = ways(conversation, generation.ids, self._codec, self._limits, EVERY)
        search = any(spec.tool == SEARCH for spec in conversation.example.toolbox)
        thought, _, _ = self._codec.decode(generation.ids).partition(f"\n{THINK_CLOSE}")
        line = thought.rpartition("\n")[2]
        # A thought that plans calls names tools alone: `search` there is a step of a known solution.
        if set(line.split()) <= {spec.name for spec in conversation.example.toolbox}:
            return ()
        ids = found.get(chosen(line, len(conversation.turns), search=search), ()) if found else ()
        return () if tuple(generation.ids[: len(ids)]) == ids else ids
