"""The policy behind the rollout server: a turn that its server did not finish is asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing

if TYPE_CHECKING:
    from orchestra.rollout.policies.vllm import VllmPolicy

TRIES = 3
"""Of one turn."""


class ServedPolicy(KeepsNothing):
    """Turns from the server; after a failure it waits until the server has the weights again and repeats the turn.

    A turn's seed does not depend on the try, so what is repeated is the same turn. No episode is scored without it.
    """

    by_episode = True

    def __init__(self, inner: VllmPolicy, recover: Callable[[], None]) -> None:
        self.inner, self._recover = inner, recover

    @property
    def name(self) -> str:
        return self.inner.name

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; raises `ServiceError` when the server does not come back."""
        turns = [self._turn(c, most) for c, most in zip(conversations, max_tokens, strict=True)]
        return list(await asyncio.gather(*turns))

    async def _turn(self, conversation: Conversation, most: int) -> Generation:
        for left in reversed(range(TRIES)):
            try:
                return (await self.inner.generate([conversation], [most]))[0]
            except ServiceError:
                if not left:
                    raise
                await asyncio.to_thread(self._recover)
        raise AssertionError("unreachable")
