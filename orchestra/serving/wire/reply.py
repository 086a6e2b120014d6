"""The wire format of answers: OpenAI chat completions, with what the orchestrator adds."""

from __future__ import annotations

import json
from typing import Any

from orchestra.accounting.ledger import total
from orchestra.serving.wire.errors import ApiError, final
from orchestra.serving.wire.request import MODEL
from orchestra.types import Component, Episode, StopReason, ToolCall, Turn

FINISH = {StopReason.ANSWERED: "stop", StopReason.MALFORMED: "stop", StopReason.HANDED_OVER: "tool_calls"}
"""OpenAI's finish reasons; every limit is `length`."""


def usage(episode: Episode) -> dict[str, Any]:
    """The policy's own tokens over all turns, as OpenAI counts them."""
    spent = [charge.usage for charge in episode.charges if charge.component is Component.POLICY]
    prompt, written = sum(u.input_tokens for u in spent), sum(u.output_tokens for u in spent)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_input_tokens for u in spent)},
    }


def tool_call(turn: Turn) -> dict[str, Any]:
    """What was called, with what, what came back, and what that cost; the turn must hold a call."""
    assert turn.call is not None
    charges = [charge for charge in turn.charges if charge.component is not Component.POLICY]
    return {
        "name": turn.call.name,
        "arguments": turn.call.arguments,
        "observation": turn.observation,
        "cost_usd": float(total(charges)),
        "latency_s": sum(charge.latency_s for charge in charges),
    }


def report(
    episode: Episode,
    *,
    engine: str,
    version: str,
    trace_id: str,
    wall_s: float,
    dropped: int = 0,
    own: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The `orchestra` object of a response. `latency_s` is the ledger's (listed seconds), `wall_s` the clock's.

    `dropped`: messages that were left out of a long conversation; `own`: the caller's tools, whose calls are in the
    message and not here.
    """
    return {
        "cost_usd": float(episode.cost_usd),
        "latency_s": round(episode.latency_s, 3),
        "wall_s": round(wall_s, 3),
        "engine": engine,
        "version": version,
        "simulated": episode.simulated,
        "stop": episode.stop.value,
        "turns": len(episode.turns),
        "trace_id": trace_id,
        "dropped_messages": dropped,
        "tool_calls": [
            tool_call(turn) for turn in episode.turns if turn.call is not None and turn.call.name not in own
        ],
    }


def refusal(episode: Episode, orchestra: dict[str, Any]) -> ApiError | None:
    """The error that an episode becomes; None for answers, and for limits, which the caller can raise."""
    messages = {
        StopReason.TOOL_FAILURE: ("tool_error", "a tool failed; nothing is wrong with the question: try again"),
        StopReason.MALFORMED: ("model_error", "the model did not write a readable turn"),
        StopReason.CANCELLED: ("infrastructure_error", "the request was cancelled"),
    }
    if episode.stop not in messages:
        return None
    kind, message = messages[episode.stop]
    error = ApiError(502, message, kind=kind, code=episode.stop.value)
    error.extra = {"orchestra": orchestra}
    # Greedy, the model would write the same again, for the same dollars.
    return final(error) if episode.stop is StopReason.MALFORMED else error


def calls_message(call: ToolCall, call_id: str) -> list[dict[str, Any]]:
    """The `tool_calls` of a message that hands a call to the caller."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return [{"id": call_id, "type": "function", "function": function}]


def handed_over(episode: Episode) -> ToolCall | None:
    """The call that the caller has to make."""
    return episode.turns[-1].call if episode.stop is StopReason.HANDED_OVER else None


def completion(
    episode: Episode, orchestra: dict[str, Any], *, created: int, call_id: str = "", metadata: dict[str, str]
) -> dict[str, Any]:
    """A whole chat completion."""
    call = handed_over(episode)
    message: dict[str, Any] = {"role": "assistant", "content": episode.answer or "", "refusal": None}
    if call is not None:
        message |= {"content": None, "tool_calls": calls_message(call, call_id)}
    finish = FINISH.get(episode.stop, "length")
    return {
        "id": f"chatcmpl-{orchestra['trace_id']}",
        "object": "chat.completion",
        "created": created,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage(episode),
        **({"metadata": metadata} if metadata else {}),
        "orchestra": orchestra,
    }


def chunk(
    trace_id: str, created: int, delta: dict[str, Any] | None, finish: str | None = None, **more: object
) -> dict[str, Any]:
    """One event of a stream; `delta` None: without choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return {
        "id": f"chatcmpl-{trace_id}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": MODEL,
        "choices": [] if delta is None else [choice],
        **more,
    }
