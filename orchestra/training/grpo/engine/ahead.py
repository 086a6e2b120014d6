"""The next round's episodes, played while this round trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from orchestra.types import Episode, Example

Groups = list[list[Episode]]
Play = Callable[[Sequence[Example], int], Groups]
"""The groups of some examples, played with a seed."""


class Ahead:
    """At most one round ahead: what is played now has the weights of the round that trains now."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="round ahead")
        self._next: tuple[list[str], Future[Groups]] | None = None

    def start(self, examples: Sequence[Example], seed: int) -> None:
        """Begin to play a round."""
        self.settle()
        self._next = [example.id for example in examples], self._pool.submit(self._play, examples, seed)

    def take(self, examples: Sequence[Example]) -> tuple[Groups | None, float]:
        """The round of these examples and the seconds that it was waited for; None when another was played, or none.

        Raises what playing raised.
        """
        began, played, self._next = time.monotonic(), self._next, None
        if played is None:
            return None, 0.0
        found = played[1].result()
        same = played[0] == [example.id for example in examples]
        return (found if same else None), time.monotonic() - began

    def settle(self) -> None:
        """Return when nothing is played: tools are used by one round at a time."""
        if self._next is not None:
            self._next[1].exception()

    def close(self, *, wait: bool = True) -> None:
        """Let what is played go, once it has been played; with `wait` False at once, while it is played on."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
