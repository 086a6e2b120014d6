"""A policy whose episodes begin with given turns: what it writes after them is its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestra.errors import TrainingError
from orchestra.rollout.policies.base import Conversation, Generation, Policy
from orchestra.types import Turn


@dataclass(frozen=True)
class Beginning:
    """What an episode begins with."""

    ids: tuple[int, ...] = ()
    """Tokens that a turn begins with: the first one, or the one after `before`."""
    before: tuple[Turn, ...] = ()
    """Whole turns, which are said again and must get the same replies."""

    @property
    def tokens(self) -> list[int]:
        """All of it, replies included: (time,)."""
        return [*(token for turn in self.before for token in (*turn.ids, *turn.observation_ids)), *self.ids]


NOTHING = Beginning()
Begun = Mapping[tuple[str, int], Beginning]
"""How an episode begins, by example id and sample."""


@dataclass(eq=False)
class ForcedPolicy:
    """Runs another policy on conversations whose prompts end with the given tokens, which then count as written.

    The given tokens are in the turns' `ids` and are paid for like any others. Their turns have no log-probabilities,
    since they were not sampled. Conversations that are given nothing run as ever. All conversations of a batch are
    given the same number of whole turns: the policy behind drops those that it is not asked for.
    """

    inner: Policy
    begun: Begun
    _shadows: dict[int, Conversation] = field(default_factory=dict)
    """What the inner policy sees in place of each conversation (by identity). What all conversations of a prompt are
    given ends that prompt, so that it is read once for all of them."""
    _begun_with: dict[int, Turn] = field(default_factory=dict)
    """The rest of what a conversation is given, as a turn of its own."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def by_episode(self) -> bool:
        return getattr(self.inner, "by_episode", False)

    def begin(self, conversations: Sequence[Conversation]) -> None:
        if len({len(self._given(c).before) for c in conversations}) > 1:
            raise ValueError("conversations of one batch begin with different numbers of turns")
        shared: dict[tuple[int, ...], list[int]] = {}
        for one in conversations:
            tokens, prompt = self._given(one).tokens, tuple(one.prompt_ids)
            shared[prompt] = common(shared.get(prompt, tokens), tokens)
        self._shadows, self._begun_with = {}, {}
        for one in conversations:
            both = shared[tuple(one.prompt_ids)]
            self._shadows[id(one)] = Conversation(one.example, [*one.prompt_ids, *both], one.sample)
            if rest := self._given(one).tokens[len(both) :]:
                self._begun_with[id(one)] = Turn(ids=tuple(rest), text="")
        self.inner.begin(list(self._shadows.values()))

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        if any(len(c.turns) < len(self._given(c).before) for c in conversations):
            return [self._again(c) for c in conversations]
        shadows, limits = [], []
        for conversation, most in zip(conversations, max_tokens, strict=True):
            given, shadow = self._given(conversation), self._shadows[id(conversation)]
            own = list(conversation.turns[len(given.before) :])
            if given.ids and own:
                own[0] = own[0].model_copy(update={"ids": own[0].ids[len(given.ids) :], "logprobs": ()})
            rest = self._begun_with.get(id(conversation))
            shadow.turns = [*([rest] if rest is not None else []), *own]
            before = given.tokens[: -len(given.ids) or None]
            if given.before and not own and conversation.ids != [*conversation.prompt_ids, *before]:
                raise TrainingError(
                    f"a call of {conversation.example.id} that was made again got another reply",
                    where="grpo.branch.later",
                    fix="set it to 0, or have the experts answer from a tape: ORCHESTRA_CASSETTE=auto:FILE",
                )
            shadows.append(shadow)
            limits.append(most if own else max(1, most - len(given.ids)))
        found = await self.inner.generate(shadows, limits)
        return [self._whole(c, g) for c, g in zip(conversations, found, strict=True)]

    def end(self) -> None:
        self._shadows, self._begun_with = {}, {}
        self.inner.end()

    def _given(self, conversation: Conversation) -> Beginning:
        return self.begun.get((conversation.example.id, conversation.sample), NOTHING)

    def _again(self, conversation: Conversation) -> Generation:
        """The next of the whole turns."""
        turn = self._given(conversation).before[len(conversation.turns)]
        return Generation(list(turn.ids), [], "stop", cached_tokens=max(0, conversation.length - 1))

    def _whole(self, conversation: Conversation, generation: Generation) -> Generation:
        given = self._given(conversation)
        if not given.ids or len(conversation.turns) > len(given.before):
            return generation
        # A sampled turn would have found all that came before it but the last token in the cache.
        cached = min(generation.cached_tokens, conversation.length - 1)
        return replace(generation, ids=[*given.ids, *generation.ids], logprobs=[], cached_tokens=cached)


def common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The tokens that both begin with."""
    count = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return list(one[: min(len(one), len(other)) if count is None else count])
