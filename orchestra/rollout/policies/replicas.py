"""One model behind several servers: each conversation stays with the server that has its prefix."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing, Policy

DOWN_S = 5.0
"""Seconds for which a server that failed is asked last."""


class Closable(Policy, Protocol):
    """A policy that holds connections."""

    async def aclose(self) -> None: ...


class ReplicatedPolicy(KeepsNothing):
    """Asks the server with the fewest turns under way, and the same one for every turn of a conversation.

    A turn whose server fails is asked of another one, unless part of it was told: turns have no effect but their text.
    """

    by_episode = True

    def __init__(self, replicas: Sequence[Closable]) -> None:
        """Servers of the same weights; at least one."""
        self._replicas = list(replicas)
        self._busy = [0] * len(self._replicas)
        self._down_until = [0.0] * len(self._replicas)
        self._home: WeakKeyDictionary[Conversation, int] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self._replicas[0].name

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; raises `ServiceError` when no server gives it."""
        return [await self._turn(c, limit) for c, limit in zip(conversations, max_tokens, strict=True)]

    async def aclose(self) -> None:
        """Close every server's connections."""
        for replica in self._replicas:
            await replica.aclose()

    async def _turn(self, conversation: Conversation, limit: int) -> Generation:
        told = _Told(conversation)
        for place in self._order(conversation):
            self._home[conversation] = place
            self._busy[place] += 1
            try:
                return (await self._replicas[place].generate([told.watched()], [limit]))[0]
            except ServiceError as error:
                self._down_until[place] = time.monotonic() + DOWN_S
                failure = error
                if told.any:
                    break
            finally:
                self._busy[place] -= 1
        raise failure

    def _order(self, conversation: Conversation) -> list[int]:
        """Those that are up first; among them the conversation's own, then the least busy."""
        now, home = time.monotonic(), self._home.get(conversation)
        return sorted(
            range(len(self._replicas)),
            key=lambda place: (self._down_until[place] > now, place != home, self._busy[place]),
        )


class _Told:
    """Whether any token of a turn was told to the one who listens."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.any = False

    def watched(self) -> Conversation:
        """The conversation, or one that notes what is told of it."""
        listener = self._conversation.on_tokens
        if listener is None:
            return self._conversation

        def tell(ids: Sequence[int]) -> None:
            self.any = True
            listener(ids)

        own = self._conversation
        return Conversation(own.example, own.prompt_ids, own.sample, own.turns, tell)
