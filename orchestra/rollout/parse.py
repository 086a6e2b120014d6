"""Text of one turn to a call or an answer, and back: Qwen3's thought and Hermes' tool-call format."""

import json
import re
from dataclasses import dataclass

from orchestra.errors import CallError
from orchestra.types import ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>\n", "\n</tool_call>"
MAX_TEXT = 200_000
"""Longer turns are refused before any parsing, so that hostile text cannot cost time."""

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
    inside, closed, after = rest.partition("</tool_call>")
    if not closed:
        raise CallError("<tool_call> is not closed")
    if before.strip() or after.strip():
        raise CallError("one tool call a turn, with nothing around it")
    return ParsedTurn(thought, _call(inside), None)


def _split_thought(text: str) -> tuple[str, str]:
    stripped = text.lstrip()
    if not stripped.startswith(THINK_OPEN):
        return "", text
    thought, closed, body = stripped[len(THINK_OPEN) :].partition(THINK_CLOSE)
    if not closed:
        raise CallError("<think> is not closed")
    return thought.strip(), body


def _call(inside: str) -> ToolCall:
    try:
        data = json.loads(inside)
    except (ValueError, RecursionError) as error:
        raise CallError(f"tool call is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise CallError('a tool call is {"name": "...", "arguments": {...}}')
    unknown = set(data) - {"name", "arguments"}
    if unknown:
        raise CallError(f"unknown key in the tool call: {sorted(unknown)[0][:40]}")
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallError("arguments must be an object")
    return ToolCall(name=data["name"], arguments=arguments)
