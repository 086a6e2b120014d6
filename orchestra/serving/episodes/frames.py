"""Prompts over toolboxes that stay the same: what stands around the messages is rendered once, not at each request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from orchestra.errors import DataError
from orchestra.types import Message, ToolSpec

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec

MOST_MESSAGES = 4
"""Longer conversations are rendered whole: there are too many kinds of them."""
GAP = -1
"""Stands for a message among token ids."""


def codec_hash(codec: Codec) -> str:
    """Of what token ids mean: the vocabulary, and what the chat template puts around messages."""
    tokenizer = codec.tokenizer
    whole = hashlib.sha256(json.dumps([tokenizer.chat_template, codec.eos_id]).encode())
    # One by one: a large vocabulary as one text would hold up a gateway that serves meanwhile.
    for number, token in sorted((number, token) for token, number in tokenizer.get_vocab().items()):
        whole.update(f"{number} {token!r}\n".encode())
    return whole.hexdigest()


@dataclass(frozen=True)
class ToolRows:
    """How toolboxes of a head and then some of many tools are written around one message of the user: each of those
    tools has token ids of its own, and the same ones stand before, between and after them."""

    head: tuple[ToolSpec, ...]
    tools: tuple[ToolSpec, ...]
    rows: dict[int, list[int]]
    """By the identity of each of the `tools`."""
    before: list[int]
    between: list[int]
    after: list[int]

    @classmethod
    def of(cls, codec: Codec, head: tuple[ToolSpec, ...], tools: tuple[ToolSpec, ...]) -> Self | None:
        """None where the template or the tokenizer does not write them so, and of fewer than two tools."""
        alone = [_around(codec, (*head, tool), "x") for tool in tools]
        if len(tools) < 2 or not all(alone):
            return None
        before = _beginning(alone)
        tails = [ids[len(before) :][::-1] for ids in alone]
        after = _beginning(tails)[::-1]
        rows = [tail[len(after) :][::-1] for tail in tails]
        pair = _around(codec, (*head, *tools[:2]), "x")
        between = pair[len(before) + len(rows[0]) : len(pair) - len(rows[1]) - len(after)]
        made = cls(head, tools, dict(zip(map(id, tools), rows, strict=True)), before, between, after)
        # Every two of the tools stand side by side here, either one first.
        chain = [one for place, tool in enumerate(tools) for other in tools[place + 1 :] for one in (tool, other)]
        chain.append(tools[0])
        return made if made.written(chain) == _around(codec, (*head, *chain), "Why?") else None

    def written(self, tools: Sequence[ToolSpec]) -> list[int]:
        """The token ids of the head and these tools, with the `GAP`: (time,)."""
        ids = list(self.before)
        for place, tool in enumerate(tools):
            ids += [*(self.between if place else ()), *self.rows[id(tool)]]
        return ids + self.after

    def frame(self, toolbox: tuple[ToolSpec, ...]) -> list[list[int]] | None:
        """The ids before and after the message; None for a toolbox that is no such one."""
        count = len(self.head)
        if toolbox[:count] != self.head or not all(id(tool) in self.rows for tool in toolbox[count:]):
            return None
        ids = self.written(toolbox[count:])
        gap = ids.index(GAP)
        return [ids[:gap], ids[gap + 1 :]]


def _beginning(several: Sequence[Sequence[int]]) -> list[int]:
    """What all of them begin with."""
    return [ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, zip(*several, strict=False))]


def _around(codec: Codec, toolbox: tuple[ToolSpec, ...], said: str) -> list[int]:
    """The token ids around one message of the user, with the `GAP` in its place; none where it has no frame."""
    try:
        frame = codec.frame([Message(role="user", content=said)], toolbox)
    except DataError:
        return []
    return [] if frame is None else [*frame[0], GAP, *frame[1]]


class PromptFrames:
    """Of one codec, for the toolboxes that it is told to keep. Safe in any thread: a frame is made twice at worst."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.codec_hash = codec_hash(codec)
        self._kept: dict[int, tuple[ToolSpec, ...]] = {}
        self._frames: dict[tuple[int, tuple[str, ...]], list[list[int]] | None] = {}
        self._rows: dict[int, ToolRows] = {}
        """By the identity of each tool that has a row."""

    def keep(self, toolbox: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """The same toolbox, known from now on."""
        self._kept[id(toolbox)] = toolbox
        return toolbox

    def keep_rows(self, head: tuple[ToolSpec, ...], tools: tuple[ToolSpec, ...]) -> None:
        """Toolboxes of the head and then some of the tools, in any order, are known from now on."""
        rows = ToolRows.of(self.codec, head, tools)
        if rows is not None:
            self._rows |= dict.fromkeys(rows.rows, rows)

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
        if len(messages) > MOST_MESSAGES or not all(message.content for message in messages):
            return None
        roles = tuple(message.role for message in messages)
        if self._kept.get(id(toolbox)) is not toolbox:
            rows = self._rows.get(id(toolbox[-1])) if toolbox and roles == ("user",) else None
            return None if rows is None else rows.frame(toolbox)
        key = (id(toolbox), roles)
        if key not in self._frames:
            frame = self.codec.frame(messages, toolbox)
            # A template whose own text hangs on what a message says has no frame.
            other = [message.model_copy(update={"content": "x"}) for message in messages]
            self._frames[key] = frame if frame == self.codec.frame(other, toolbox) else None
        return self._frames[key]
