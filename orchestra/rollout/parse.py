"""Text of one turn to a call or an answer, and back: Qwen3's thought and Hermes' tool-call format."""

import json
import math
import re
from dataclasses import dataclass

from pydantic import JsonValue

from orchestra.errors import CallError
from orchestra.types import ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>\n", "\n</tool_call>"
MAX_TEXT = 200_000
"""Longer turns are refused before any parsing, so that hostile text cannot cost time."""
MAX_DEPTH = 20
"""Objects and lists inside each other; deeper ones cannot be written to an episode's record and read again."""

_MARKS = re.compile(r"</?(?:tool_call|tool_response|think)>")


@dataclass(frozen=True)
class ParsedTurn:
    """Either `call` or `answer` is set."""

    thought: str
    call: ToolCall | None
    answer: str | None


def _with_thought(thought: str, body: str) -> str:
    return f"{THINK_OPEN}\n{thought}\n{THINK_CLOSE}\n\n{body}" if thought else body


def format_call(call: ToolCall, thought: str = "") -> str:
    """The text of a turn that calls a tool; `parse_turn` gives the call back unchanged."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return _with_thought(thought, f"{CALL_OPEN}{body}{CALL_CLOSE}")


def format_answer(answer: str, thought: str = "") -> str:
    """The text of the last turn."""
    return _with_thought(thought, answer)


def parse_turn(text: str) -> ParsedTurn:
    """Read one turn (without its stop token).

    Raises `CallError`, with a message that the model can act on, when it is neither one call nor an answer.
    """
    if len(text) > MAX_TEXT:
        raise CallError(f"turn of {len(text)} characters is too long")
    thought, body = _split_thought(text)
    if "<tool_call>" not in body:
        answer = body.strip()
        if _MARKS.search(answer):
            raise CallError("stray tag in the answer")
        if not answer:
            raise CallError("empty turn: call one tool or give the answer")
        return ParsedTurn(thought, None, answer)
    before, _, rest = body.partition("<tool_call>")
    if "</tool_call>" not in rest:
        raise CallError("<tool_call> is not closed")
    call, after = _call(rest.lstrip())
    closed, _, after = after.lstrip().partition("</tool_call>")
    if closed:
        raise CallError("one JSON object inside <tool_call>, with nothing after it")
    if before.strip() or after.strip():
        raise CallError("one tool call a turn, with nothing around it")
    return ParsedTurn(thought, call, None)


def _split_thought(text: str) -> tuple[str, str]:
    stripped = text.lstrip()
    if not stripped.startswith(THINK_OPEN):
        return "", text
    thought, closed, body = stripped[len(THINK_OPEN) :].partition(THINK_CLOSE)
    if not closed:
        raise CallError("<think> is not closed")
    return thought.strip(), body


def _call(text: str) -> tuple[ToolCall, str]:
    """The call that `text` starts with, and the rest. Only the decoder knows where it ends: a string may hold tags."""
    try:
        data, end = _JSON.raw_decode(text)
    except CallError:
        raise
    except (ValueError, RecursionError) as error:
        raise CallError(f"tool call is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise CallError('a tool call is {"name": "...", "arguments": {...}}')
    unknown = set(data) - {"name", "arguments"}
    if unknown:
        raise CallError(f"unknown key in the tool call: {sorted(unknown)[0][:40]!r}")
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallError("arguments must be an object")
    _check(data, 0)
    return ToolCall(name=data["name"], arguments=arguments), text[end:]


def _check(value: JsonValue, depth: int) -> None:
    """What JSON text can spell but an episode's record cannot hold."""
    if depth > MAX_DEPTH:
        raise CallError(f"arguments are nested more than {MAX_DEPTH} deep")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise CallError("half a surrogate pair in a string") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth)
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)


def _finite(literal: str) -> float:
    """NaN and infinities are no JSON, though Python's decoder takes them."""
    number = float(literal)
    if not math.isfinite(number):
        raise CallError(f"{literal[:20]} is not a number of JSON")
    return number


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CallError("the same key twice in one object")
    return found


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)
