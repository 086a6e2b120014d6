"""The wire format: OpenAI chat completions and errors, with what the orchestrator adds."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from orchestra.accounting.ledger import total
from orchestra.errors import Fault, OrchestraError
from orchestra.types import Component, Episode, Message, StopReason, Turn

MODEL = "orchestrator"
MAX_BODY = 1_000_000
FINISH = {StopReason.ANSWERED: "stop", StopReason.MALFORMED: "stop"}
"""OpenAI's finish reasons; every limit is `length`."""


class ApiError(Exception):
    """An answer with an HTTP status other than 200."""

    def __init__(self, status: int, message: str, *, kind: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param
        self.extra: dict[str, Any] = {}
        """What else the body holds: what a failed episode cost."""

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error, **self.extra}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", code=code, param=param)


def from_orchestra(error: OrchestraError) -> ApiError:
    """The caller's faults are 400, everybody else's 502."""
    if error.fault is Fault.CALLER:
        return bad_request(str(error))
    return ApiError(502, str(error), kind=f"{error.fault.value}_error", code=type(error).__name__)


class TextPart(BaseModel):
    """A part of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message; its other OpenAI fields do not matter here."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    @property
    def plain(self) -> Message:
        return Message(role="system" if self.role == "developer" else self.role, content=self.text)


class ChatRequest(BaseModel):
    """A chat completion. OpenAI's sampling fields are taken and have no effect: the orchestrator is greedy."""

    model_config = ConfigDict(extra="ignore")

    model: str = MODEL
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=100)]
    stream: bool = False
    n: Literal[1] = 1
    tools: Annotated[list[JsonValue], Field(max_length=0)] = []
    """Tools come from the catalogue; a request cannot bring its own."""
    preference: Annotated[str, Field(max_length=500)] | None = None
    """cheap, fast, accurate, or the user's own words."""
    budget_usd: Annotated[Decimal, Field(ge=0, le=10**15, allow_inf_nan=False)] | None = None
    """A call that could cross it is not made."""
    max_turns: Annotated[int, Field(gt=0)] | None = None
    """Fewer turns than the release allows."""
    domain: str | None = None
    """Offer this domain's tools, over a copy of its database that ends with the request."""


def parse_request(raw: bytes) -> ChatRequest:
    """Raises `ApiError`: 400 naming the first field that is wrong, 413 for a body that no model could read."""
    if len(raw) > MAX_BODY:
        raise ApiError(413, f"more than {MAX_BODY} bytes", kind="invalid_request_error", code="too_large")
    try:
        request = ChatRequest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise bad_request(f"{where + ': ' if where else ''}{first['msg']}", where or None) from None
    if request.messages[-1].role != "user":
        raise bad_request("the last message must be the user's", "messages")
    if not request.messages[-1].text.strip():
        raise bad_request("the last message is empty", "messages")
    return request


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


def report(episode: Episode, *, engine: str, version: str, trace_id: str, wall_s: float) -> dict[str, Any]:
    """The `orchestra` object of a response. `latency_s` is the ledger's (listed seconds), `wall_s` the clock's."""
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
        "tool_calls": [tool_call(turn) for turn in episode.turns if turn.call is not None],
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
    return error


def completion(episode: Episode, orchestra: dict[str, Any], *, created: int) -> dict[str, Any]:
    """A whole chat completion."""
    finish = FINISH.get(episode.stop, "length")
    message = {"role": "assistant", "content": episode.answer or "", "refusal": None}
    return {
        "id": f"chatcmpl-{orchestra['trace_id']}",
        "object": "chat.completion",
        "created": created,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage(episode),
        "orchestra": orchestra,
    }


def chunk(
    trace_id: str, created: int, delta: dict[str, Any], finish: str | None = None, **more: object
) -> dict[str, Any]:
    """One event of a stream."""
    return {
        "id": f"chatcmpl-{trace_id}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        **more,
    }
