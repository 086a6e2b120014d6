"""The clock of one episode: when each turn was begun, written and ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Conversation, Generation, Policy

TurnTimes = tuple[float, float, float]
"""Seconds since the request came: the policy was asked, it had written, and its tool had answered."""


class EpisodeClock:
    """Of an episode that began at `began` (monotonic seconds)."""

    def __init__(self, began: float) -> None:
        self._began, self._asked, self._written = began, 0.0, 0.0
        self.turns: list[TurnTimes] = []

    def watched(self, policy: Policy) -> Policy:
        """The policy, each of whose turns is timed."""
        return _Watched(policy, self)

    def turned(self) -> None:
        """A turn has ended, with its tool."""
        self.turns.append((self._asked, self._written, self.now()))

    def asked(self) -> None:
        self._asked = self._written = self.now()

    def written(self) -> None:
        self._written = self.now()

    def now(self) -> float:
        return round(time.monotonic() - self._began, 6)


class _Watched:
    """The same policy, which tells a clock."""

    def __init__(self, policy: Policy, clock: EpisodeClock) -> None:
        self._policy, self._clock = policy, clock
        self.by_episode = bool(getattr(policy, "by_episode", False))

    @property
    def name(self) -> str:
        return self._policy.name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        self._policy.begin(conversations)

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        self._clock.asked()
        try:
            return await self._policy.generate(conversations, max_tokens)
        finally:
            self._clock.written()

    def end(self) -> None:
        self._policy.end()
