"""The reply in a chat completion: its text and tokens, or the reason why it holds no answer."""

import re
from typing import Any

from pydantic import Field, JsonValue

from orchestra.text import as_text
from orchestra.tools.failures import ReplyError, Unusable
from orchestra.types import Record, Usage

SPEAKS = "check that the endpoint speaks OpenAI chat completions"
AGAIN = "ask again later, or see the provider's status"
MOST_TOKENS = 10**9
"""A count above it is none: no request has so many, and what they would cost is no amount of dollars."""
_OPEN, _CLOSE = "<think>", "</think>"


class RequestedCall(Record):
    """A call that a model asks for; whether its arguments are JSON is for whoever runs it to see."""

    name: str
    arguments: str


class ChatReply(Record):
    """What a model endpoint answered."""

    text: str
    calls: tuple[RequestedCall, ...] = Field(default=(), exclude_if=lambda calls: not calls)
    """Calls of tools that the request offered."""
    usage: Usage = Usage()
    counted: bool = True
    """Whether the endpoint said how many tokens it used."""
    cut: bool = False
    """Whether the token limit ended it: the text is a beginning."""
    seconds: float = 0.0
    """From the first attempt to the reply; what waited for a free place is not counted."""
    lost: tuple[Usage | None, ...] = ()
    """Attempts before it that may be billed: their usage, None where it is not known."""
    replayed: bool = False
    orchestra: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda value: value is None)
    """What a gateway of ours adds: dollars, seconds, the tools that it called."""

    @property
    def attempts(self) -> tuple[Usage | None, ...]:
        """The usage of every attempt that may be billed, this reply's own last."""
        return (*self.lost, self.usage if self.counted else None)


def tokens_of(raw: Any) -> Usage | None:
    """The tokens of a chat completion; None where it does not say both those read and those written.

    Some providers leave thoughts out of `completion_tokens` and bill them: only `total_tokens` counts them.
    """
    counts = raw.get("usage") or {}
    said = Usage(
        input_tokens=counts.get("prompt_tokens") or 0,
        cached_input_tokens=(counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=counts.get("completion_tokens") or 0,
    )
    total = counts.get("total_tokens")
    written = total - said.input_tokens if isinstance(total, int) else 0
    output = max(said.output_tokens, written)
    if not (said.input_tokens and said.output_tokens) or max(said.input_tokens, output) > MOST_TOKENS:
        return None
    return said.model_copy(update={"output_tokens": output})


def read_reply(raw: Any, where: str, *, tools: bool = False) -> ChatReply:
    """The reply in a chat completion, without the model's thoughts; raises `ReplyError`.

    Servers differ in what they leave out, so only what is used is looked at. `tools`: the request offered some, so that
    calls are a reply.
    """
    try:
        choice = raw["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content = _content(message.get("content"))
        counts = tokens_of(raw)
        broken = choice.get("error") or (finish == "error" and finish)
        calls, refusal = message.get("tool_calls") or message.get("function_call"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        said = raw.get("error") if isinstance(raw, dict) else None
        what, fix = f"a reply of another shape ({error!r:.200})", SPEAKS
        if said:
            what, fix = f"an error instead of a reply: {said!r:.200}", AGAIN
        raise ReplyError(what, unusable=Unusable.SHAPE, where=where, fix=fix) from None
    if broken:
        what = f"a reply that an error ended: {broken!r:.200}"
        raise ReplyError(what, unusable=Unusable.SHAPE, usage=counts, where=where, fix=AGAIN)
    text = _without_thoughts(content)
    if finish == "content_filter":
        what = f"{'a part of an' if text else 'an empty'} answer, which the provider's filter ended"
        raise ReplyError(what, unusable=Unusable.REFUSED, usage=counts, where=where)
    usage, counted = counts or Usage(), counts is not None
    if calls and tools and (asked := _calls(calls)):
        return ChatReply(text=text, calls=asked, usage=usage, counted=counted, cut=finish == "length")
    if text:
        told = raw.get("orchestra")
        orchestra = told if isinstance(told, dict) else None
        return ChatReply(text=text, usage=usage, counted=counted, cut=finish == "length", orchestra=orchestra)
    if calls:
        unusable, what = Unusable.TOOL_CALLS, "it calls tools instead of answering"
    elif refusal:
        unusable, what = Unusable.REFUSED, f"an empty answer, since it refuses: {refusal!s:.200}"
    elif finish == "length" or (content and _CLOSE not in content):
        unusable, what = Unusable.TRUNCATED, f"an empty answer: its thoughts did not end (finish_reason {finish})"
    else:
        unusable, what = Unusable.EMPTY, f"an empty answer (finish_reason {finish})"
    fix = "raise max_output_tokens or lower its reasoning effort" if unusable is Unusable.TRUNCATED else ""
    raise ReplyError(what, unusable=unusable, usage=counts, where=where, fix=fix)


def is_of(answered: str, asked: str) -> bool:
    """Whether a model's name as a reply says it is the one that was asked for: its folder, its date (gpt-5-2025-08-07)
    or the mark of a revision may differ."""
    names = [name.rpartition("/")[2].lower().removesuffix("-latest") for name in (answered, asked)]
    short, long = sorted(names, key=len)
    return re.fullmatch(re.escape(short) + r"([@:].*|-v?\d[\d.-]*)?", long) is not None


def _calls(calls: Any) -> tuple[RequestedCall, ...]:
    """The calls of a message; none where they have another shape, or a name or arguments that are no text."""
    try:
        asked = [call["function"] for call in calls]
        return tuple(
            RequestedCall(name=as_text(one["name"]), arguments=as_text(one.get("arguments") or "{}")) for one in asked
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return ()


def _content(content: Any) -> str:
    """The text of a message's content, be it null, a string or a list of parts; raises `TypeError` for others."""
    if content is None:
        return ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError(f"content of type {type(content).__name__}")
    return as_text(content).strip()


def _without_thoughts(content: str) -> str:
    """What follows the thoughts; empty when they do not end. A template may have opened them in the prompt."""
    before, closed, after = content.partition(_CLOSE)
    if content.startswith(_OPEN) or (closed and _OPEN not in before):
        return after.strip()
    return content
