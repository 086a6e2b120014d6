"""Prompts over toolboxes that stay the same: what stands around the messages is rendered once, not at each request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from orchestra.types import Message, ToolSpec

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec

MOST_MESSAGES = 4
"""Longer conversations are rendered whole: there are too many kinds of them."""


def codec_hash(codec: Codec) -> str:
    """Of what token ids mean: the vocabulary, and what the chat template puts around messages."""
    tokenizer = codec.tokenizer
    whole = hashlib.sha256(json.dumps([tokenizer.chat_template, codec.eos_id]).encode())
    # One by one: a large vocabulary as one text would hold up a gateway that serves meanwhile.
    for number, token in sorted((number, token) for token, number in tokenizer.get_vocab().items()):
        whole.update(f"{number} {token!r}\n".encode())
    return whole.hexdigest()


class PromptFrames:
    """Of one codec, for the toolboxes that it is told to keep. Safe in any thread: a frame is made twice at worst."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.codec_hash = codec_hash(codec)
        self._kept: dict[int, tuple[ToolSpec, ...]] = {}
        self._frames: dict[tuple[int, tuple[str, ...]], list[list[int]] | None] = {}

    def keep(self, toolbox: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """The same toolbox, known from now on."""
        self._kept[id(toolbox)] = toolbox
        return toolbox

    def prompt(
        self, messages: Sequence[Message], toolbox: tuple[ToolSpec, ...], preference: str, budget_usd: Decimal | None
    ) -> list[int]:
        """The ids that `Codec.messages_prompt` gives: (time,)."""
        led = self.codec.led(messages, preference, budget_usd)
        frame = self._frame(led, toolbox)
        if frame is None:
            return self.codec.rendered_prompt(led, toolbox)
        ids = list(frame[0])
        for message, after in zip(led, frame[1:], strict=True):
            ids += self.codec.encode_content(message.content)
            ids += after
        return ids

    def _frame(self, messages: Sequence[Message], toolbox: tuple[ToolSpec, ...]) -> list[list[int]] | None:
        if self._kept.get(id(toolbox)) is not toolbox or len(messages) > MOST_MESSAGES:
            return None
        if not all(message.content for message in messages):
            return None
        key = (id(toolbox), tuple(message.role for message in messages))
        if key not in self._frames:
            frame = self.codec.frame(messages, toolbox)
            # A template whose own text hangs on what a message says has no frame.
            other = [message.model_copy(update={"content": "x"}) for message in messages]
            self._frames[key] = frame if frame == self.codec.frame(other, toolbox) else None
        return self._frames[key]
