"""What a stream tells, event by event, in the order in which it happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestra.serving.episodes.stream import TurnReader
from orchestra.serving.wire import reply
from orchestra.serving.wire.errors import ApiError
from orchestra.types import Episode, Turn

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Conversation
    from orchestra.rollout.render import Codec


class StreamEvents:
    """Of one answer; a None in the queue is its end."""

    def __init__(self, codec: Codec, trace_id: str, own: frozenset[str], created: int, *, thoughts: bool) -> None:
        """`own` names the caller's tools, whose calls it is told at the end."""
        self._codec, self._trace_id, self._own = codec, trace_id, own
        self._created, self._thoughts = created, thoughts
        self.queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._turn = TurnReader(codec)
        self._unread = False
        """Whether text was told of a turn that then turned out to be none."""
        self._broken = False
        """Whether another turn came after that: what was told cannot be taken back."""

    def on_tokens(self, ids: Sequence[int]) -> None:
        self._broken = self._broken or self._unread
        thought, text = self._turn.feed(ids)
        if thought and self._thoughts:
            self._put({"reasoning_content": thought})
        if text:
            self._put({"content": text})

    def on_turn(self, _: Conversation, turn: Turn) -> None:
        if turn.call is not None and turn.call.name not in self._own:
            self._put({}, orchestra={"tool_call": reply.tool_call(turn)})
        if turn.parse_error and self._turn.given:
            self._unread = True
        if turn.call is not None or turn.parse_error:
            self._turn = TurnReader(self._codec)

    def last(self, episode: Episode, whole: dict[str, Any], *, with_usage: bool) -> list[str]:
        """The rest of the answer, or the call that is the caller's, then the account; raises `ApiError` 502 where what
        was told before cannot be taken back."""
        choice, answer = whole["choices"][0], episode.answer or ""
        if self._broken or (episode.answer is not None and not answer.startswith(self._turn.given)):
            message = "the model broke its answer off and began another: ask again, without stream to be sure"
            raise ApiError(502, message, kind="model_error", code="broken_answer")
        made = []
        if rest := answer[len(self._turn.given) :]:
            made.append(self._chunk({"content": rest}))
        if calls := choice["message"].get("tool_calls"):
            made.append(self._chunk({"tool_calls": [{"index": 0, **calls[0]}]}))
        account = {name: whole[name] for name in ("metadata", "orchestra") if name in whole}
        own = {} if with_usage else {"usage": whole["usage"]}
        made.append(self._chunk({}, choice["finish_reason"], **own, **account))
        if with_usage:
            made.append(self._chunk(None, usage=whole["usage"]))
        return made

    def _put(self, delta: dict[str, Any], **more: Any) -> None:
        self.queue.put_nowait(self._chunk(delta, **more))

    def _chunk(self, delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> str:
        return event(reply.chunk(self._trace_id, self._created, delta, finish, **more))


def event(data: dict[str, Any]) -> str:
    """One event of a stream."""
    # In ASCII: some clients cut a stream at every Unicode line break, where a quoted text could forge an event.
    return f"data: {json.dumps(data)}\n\n"
