"""Replies hold against OpenAI's own types, strictly: its client reads them without checking."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from orchestra.serving.wire.reply import chunk, completion, report, usage
from orchestra.types import StopReason
from tests.support.worlds import episode

OURS = {"orchestra"}
"""What the orchestrator adds."""


def unknown(told: Any, model: BaseModel, where: str = "") -> list[str]:
    """Fields that OpenAI's types do not have, at any depth."""
    found = []
    for name, value in told.items():
        if not where and name in OURS:
            continue
        if name not in type(model).model_fields:
            found.append(f"{where}{name}")
            continue
        read = getattr(model, name)
        pairs = zip(value, read, strict=True) if isinstance(value, list) else [(value, read)]
        for inner, one in pairs:
            if isinstance(one, BaseModel):
                found += unknown(inner, one, f"{where}{name}.")
    return found


def told(stop: StopReason) -> dict[str, Any]:
    made = episode(cost_usd="0.01", solved=True, calls={"look_up": 1}).model_copy(update={"stop": stop})
    if stop is StopReason.HANDED_OVER:
        made = made.model_copy(update={"turns": made.turns[:1], "answer": None})
    account = report(made, engine="vllm", version="1", trace_id="t1", wall_s=1.0)
    return completion(made, account, created=1_790_000_000, call_id="call_1", metadata={"a": "b"})


@pytest.mark.parametrize("stop", [StopReason.ANSWERED, StopReason.HANDED_OVER, StopReason.TURN_LIMIT])
def test_a_completion_is_what_openai_s_types_say(stop: StopReason) -> None:
    wire = json.loads(json.dumps(told(stop)))
    read = ChatCompletion.model_validate_json(json.dumps(wire), strict=True)
    assert unknown(wire, read) == []
    (choice,) = read.choices
    expected = {StopReason.ANSWERED: "stop", StopReason.HANDED_OVER: "tool_calls"}.get(stop, "length")
    assert choice.finish_reason == expected and (choice.message.tool_calls is not None) == (expected == "tool_calls")


def test_a_field_of_another_kind_would_be_found() -> None:
    wire = told(StopReason.ANSWERED)
    for change in ({"created": "soon"}, {"choices": [{**wire["choices"][0], "finish_reason": "tired"}]}):
        with pytest.raises(ValueError, match="validation error"):
            ChatCompletion.model_validate_json(json.dumps({**wire, **change}), strict=True)


def test_events_of_a_stream_are_what_openai_s_types_say() -> None:
    made = episode(cost_usd="0.01", solved=True)
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    events = [
        chunk("t1", 1_790_000_000, {"role": "assistant", "content": ""}),
        chunk("t1", 1_790_000_000, {"content": "so"}),
        chunk("t1", 1_790_000_000, {"tool_calls": [call]}),
        chunk("t1", 1_790_000_000, {}, "stop"),
        chunk("t1", 1_790_000_000, None, usage=usage(made)),
    ]
    for event in events:
        read = ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
        assert unknown(event, read) == []
