"""A caller's messages as the token ids of a conversation, cut by a stated rule where they are too long."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from orchestra.rollout.parse import format_answer, format_call
from orchestra.serving.episodes.frames import PromptFrames
from orchestra.serving.wire.errors import ApiError, bad_request
from orchestra.serving.wire.messages import CallMessage, ChatMessage
from orchestra.types import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec

MAX_CHARACTERS = 16
"""Characters for each token of the context: no language has longer tokens, so more of them cannot fit. Known before
any text is made into tokens."""
SYSTEM = ("system", "developer")
"""Roles of messages that hold for the whole conversation."""

Recall = Callable[[str, str], Sequence[int] | None]
"""From a call's id and the digest of what came before it to the token ids up to the call, where they are known."""


@dataclass(frozen=True)
class PromptSetting:
    """What the model reads before the messages."""

    toolbox: tuple[ToolSpec, ...]
    words: str
    budget_usd: Decimal | None
    limit: int
    """Tokens that a prompt may have."""
    codec: str = ""
    """The codec's hash: token ids of one vocabulary are other text in another."""

    def digest(self, messages: Sequence[ChatMessage]) -> str:
        """Of the setting and of the messages: equal where the model reads the same."""
        return self.digests(messages)[-1]

    def digests(self, messages: Sequence[ChatMessage]) -> list[str]:
        """The digests of no message, of the first, of the first two, up to all: made in one pass."""
        tools = [spec.model_dump(mode="json") for spec in self.toolbox]
        setting = [self.codec, tools, self.words, str(self.budget_usd)]
        whole = hashlib.sha256(json.dumps(setting, sort_keys=True).encode())
        found = [whole.hexdigest()]
        for message in messages:
            said = json.dumps(message.model_dump(mode="json", exclude_none=True), sort_keys=True)
            # One message a line, since this JSON has no line breaks: other messages never give the same text.
            whole.update(b"\n" + said.encode())
            found.append(whole.hexdigest())
        return found


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation, ready for the policy's turn."""

    ids: list[int]
    """(time,)"""
    dropped: int = 0
    """Messages that were left out."""


@dataclass(frozen=True)
class Renderer:
    """Makes prompts. Pure, so that it can run in any thread; `recall` alone looks into the shared store."""

    frames: PromptFrames
    setting: PromptSetting
    recall: Recall = lambda call_id, digest: None

    @property
    def codec(self) -> Codec:
        return self.frames.codec

    def prompt(self, messages: Sequence[ChatMessage], *, cut: bool = True) -> RenderedPrompt:
        """Token ids of the messages.

        Where they are too long, the oldest exchanges (a user's message and all that follows it, up to the next) are
        left out, as few as will do. System messages and the last exchange stay. Raises `ApiError` 400 when these alone
        are too long, or when `cut` is off.
        """
        head, exchanges = _exchanges(messages)
        first, last = self._by_characters(messages, exchanges) if cut else 0, len(exchanges) - 1
        kept = _kept(head, exchanges, first)
        self._check_characters(kept)
        ids = self._ids(kept)
        if cut and first < last and len(ids) > self.setting.limit:
            first += 1
            while first < last:
                middle = (first + last) // 2
                fits = len(self._ids(_kept(head, exchanges, middle))) <= self.setting.limit
                first, last = (first, middle) if fits else (middle + 1, last)
            kept = _kept(head, exchanges, first)
            ids = self._ids(kept)
        if len(ids) > self.setting.limit:
            raise self._too_long(len(ids))
        return RenderedPrompt(ids, len(messages) - len(kept))

    def _by_characters(self, messages: Sequence[ChatMessage], exchanges: list[list[ChatMessage]]) -> int:
        """The first of the latest exchanges whose characters could fit; the last one at the latest."""
        count, most = sum(map(_characters, messages)), self.setting.limit * MAX_CHARACTERS
        first = 0
        while count > most and first < len(exchanges) - 1:
            count -= sum(_characters(one) for one in exchanges[first] if one.role not in SYSTEM)
            first += 1
        return first

    def _check_characters(self, messages: Sequence[ChatMessage]) -> None:
        count, most = sum(map(_characters, messages)), self.setting.limit * MAX_CHARACTERS
        if count > most:
            message = f"{count} characters cannot fit into {self.setting.limit} tokens: shorten the conversation"
            raise bad_request(message, "messages", "context_length_exceeded")

    def _too_long(self, count: int) -> ApiError:
        tools = len(self.codec.messages_prompt([Message(role="user", content="")], self.setting.toolbox))
        limit = self.setting.limit
        message = (
            f"{count} tokens, of at most {limit}; the tools take {tools} of them, which leaves about "
            f"{max(0, limit - tools)} for messages: shorten them, or offer fewer tools (preference.tools_allowed)"
        )
        return bad_request(message, "messages", "context_length_exceeded")

    def _ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        start = next((i for i, one in enumerate(messages) if one.calls or one.role == "tool"), len(messages))
        known = self._known(messages)
        if known is not None:
            ids, start = known
            return self._follow(ids, messages, start)
        led = [one.plain for one in messages[:start]]
        # The question without space around it, as questions are in training.
        if led and led[-1].role == "user":
            led[-1] = led[-1].model_copy(update={"content": led[-1].content.strip()})
        setting = self.setting
        ids = self.frames.prompt(led, setting.toolbox, setting.words, setting.budget_usd)
        return self._follow(ids, messages, start)

    def _known(self, messages: Sequence[ChatMessage]) -> tuple[list[int], int] | None:
        """The ids up to the last call that is remembered, the turns that ran inside among them; and where the messages
        go on: at the call's own message, whose call is there already."""
        places = [place for place, message in enumerate(messages) if len(message.calls) == 1]
        before = self.setting.digests(messages[: places[-1]]) if places else []
        for place in reversed(places):
            ids = self.recall(messages[place].calls[0].id, before[place])
            if ids is not None:
                return self._observed(list(ids), messages, place)
        return None

    def _observed(self, ids: list[int], messages: Sequence[ChatMessage], place: int) -> tuple[list[int], int]:
        results, after = _results(messages, place)
        call = messages[place].calls[0]
        return [*ids, *self.codec.observation(_result(results, call))], after

    def _follow(self, ids: list[int], messages: Sequence[ChatMessage], place: int) -> list[int]:
        """The turns after a first call, one by one as the loop appends them: (time,)."""
        ids = list(ids)
        while place < len(messages):
            message = messages[place]
            if message.role == "user":
                ids += self.codec.reply(message.text)
                place += 1
            elif message.role == "assistant" and message.calls:
                results, after = _results(messages, place)
                for call in message.calls:
                    ids += self.codec.turn(_safe_call(call.call, message.text))
                    ids += self.codec.observation(_result(results, call))
                place = after
            elif message.role == "assistant":
                following = messages[place + 1].role if place + 1 < len(messages) else ""
                if following != "user":
                    raise bad_request("after an answer comes the user's message", f"messages.{place}")
                ids += self.codec.turn(format_answer(message.text.strip() or "…"))
                place += 1
            else:
                what = f"a {message.role} message cannot stand here, after a tool's call"
                raise bad_request(what, f"messages.{place}.role")
        return ids


def question(messages: Sequence[ChatMessage]) -> str:
    """What is asked: the last message of the user. Raises `ApiError` 400 where there is none."""
    for message in reversed(messages):
        if message.role == "user":
            return message.text.strip()
    raise bad_request("no message is the user's", "messages")


def check_calls(messages: Sequence[ChatMessage]) -> None:
    """Every call has its result right after it, and every result its call; raises `ApiError` 400."""
    place = 0
    while place < len(messages):
        message = messages[place]
        if message.role == "tool":
            what = f"no call before it has the id {str(message.tool_call_id)[:60]}"
            raise bad_request(what, f"messages.{place}.tool_call_id")
        if not message.calls:
            place += 1
            continue
        if not any(one.role == "user" for one in messages[:place]):
            raise bad_request("a call stands before the first message of the user", f"messages.{place}")
        results, after = _results(messages, place)
        wanted = {call.id for call in message.calls}
        if len(wanted) != len(message.calls):
            raise bad_request("two calls have one id", f"messages.{place}.tool_calls")
        if wanted - results.keys():
            what = f"the call {min(wanted - results.keys())[:60]} has no tool message right after it"
            raise bad_request(what, f"messages.{place}.tool_calls")
        if results.keys() - wanted:
            what = f"no call before it has the id {min(results.keys() - wanted)[:60]}"
            raise bad_request(what, f"messages.{place + 1}.tool_call_id")
        place = after


def _exchanges(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[list[ChatMessage]]]:
    """The system messages at the beginning, and the exchanges: each begins with a user's message."""
    count = next((i for i, one in enumerate(messages) if one.role not in SYSTEM), len(messages))
    exchanges: list[list[ChatMessage]] = []
    for message in messages[count:]:
        if message.role == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return list(messages[:count]), exchanges


def _kept(head: Sequence[ChatMessage], exchanges: Sequence[Sequence[ChatMessage]], first: int) -> list[ChatMessage]:
    """What stays where the exchanges before the first are left out: their system messages do."""
    rules = [message for exchange in exchanges[:first] for message in exchange if message.role in SYSTEM]
    return [*head, *rules, *(message for exchange in exchanges[first:] for message in exchange)]


def _characters(message: ChatMessage) -> int:
    return len(message.text) + sum(len(call.function.name) + len(call.function.arguments) for call in message.calls)


def _results(messages: Sequence[ChatMessage], place: int) -> tuple[dict[str, str], int]:
    """The tool messages after a call's message by the call's id, and the place after them."""
    found, after = {}, place + 1
    while after < len(messages) and messages[after].role == "tool":
        found[str(messages[after].tool_call_id)] = messages[after].text
        after += 1
    return found, after


def _result(results: dict[str, str], call: CallMessage) -> str:
    return results.get(call.id, "")


def _safe_call(call: ToolCall, said: str) -> str:
    """The text of a turn with a call, in which only the template's own tags are tags.

    JSON can spell `<` in another way, and what is said beside the call is cleaned as answers are.
    """
    text = format_call(call)
    body = text.removeprefix("<tool_call>").removesuffix("</tool_call>").replace("<", "\\u003c")
    thought = format_answer(said.strip()) if said.strip() else ""
    return (
        f"<think>\n{thought}\n</think>\n\n<tool_call>{body}</tool_call>"
        if thought
        else f"<tool_call>{body}</tool_call>"
    )
