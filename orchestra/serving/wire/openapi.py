"""The gateway's own description in OpenAPI 3.1, made of the classes that read requests."""

from __future__ import annotations

from functools import cache
from typing import Any

from orchestra.serving.wire.errors import STATUSES
from orchestra.serving.wire.request import ChatRequest

SCHEMAS = "#/components/schemas/"
TEXT = {"type": "string"}
NUMBER = {"type": "number"}
COUNT = {"type": "integer", "minimum": 0}
USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
}
ACCOUNT = {
    "type": "object",
    "required": ["cost_usd", "latency_s", "wall_s", "engine", "version", "stop", "turns", "trace_id", "tool_calls"],
    "properties": {
        **dict.fromkeys(("cost_usd", "latency_s", "wall_s"), NUMBER),
        **dict.fromkeys(("engine", "version", "stop", "trace_id"), TEXT),
        "turns": COUNT,
        "simulated": {"type": "boolean"},
        "dropped_messages": COUNT,
        "tool_calls": {"type": "array", "items": {"type": "object", "required": ["name", "arguments", "cost_usd"]}},
    },
}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "items": {"type": "object", "required": ["id", "type", "function"]}},
    },
}
CHOICE = {
    "type": "object",
    "required": ["index", "message", "finish_reason"],
    "properties": {"message": MESSAGE, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}},
}
COMPLETION = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "orchestra"],
    "properties": {
        "object": {"const": "chat.completion"},
        "choices": {"type": "array", "minItems": 1, "maxItems": 1, "items": CHOICE},
        "usage": USAGE,
        "orchestra": {"$ref": f"{SCHEMAS}Account"},
    },
}
FAILURE = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": TEXT},
        },
        "orchestra": {"$ref": f"{SCHEMAS}Account"},
    },
}
MODEL_CARD = {
    "type": "object",
    "required": ["id", "object", "version", "context_window", "max_input_tokens", "max_turns"],
    "properties": {
        **{"id": TEXT, "object": {"const": "model"}, "version": TEXT, "context_window": COUNT, "max_seconds": COUNT},
        "notice": {"type": ["string", "null"]},
        "to_try": {"type": "array", "items": TEXT},
    },
}
MODEL_LIST = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": f"{SCHEMAS}Model"}}},
}


@cache
def description() -> dict[str, Any]:
    """The whole document."""
    request = ChatRequest.model_json_schema(ref_template=SCHEMAS + "{model}")
    parts = request.pop("$defs", {})
    answers = {"text/event-stream": {"schema": TEXT}, **_json("Completion")}
    chat = _operation("Answer a conversation", answers)
    chat["requestBody"] = {"required": True, "content": _json("ChatRequest")}
    key = {"name": "Idempotency-Key", "in": "header", "schema": {**TEXT, "minLength": 1, "maxLength": 200}}
    name = {"name": "model", "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}
    html, plain = ({kind: {"schema": TEXT}} for kind in ("text/html; charset=utf-8", "text/plain; version=0.0.4"))
    return {
        "openapi": "3.1.0",
        "info": {"title": "orchestra gateway", "version": "1"},
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": {**chat, "parameters": [key]}},
            "/v1/models": {"get": _operation("The served model", _json("ModelList"))},
            "/v1/models/{model}": {"get": {**_operation("The served model", _json("Model")), "parameters": [name]}},
            "/health": {"get": _operation("What serves", {"application/json": {"schema": {"type": "object"}}})},
            "/metrics": {"get": _operation("Prometheus metrics", plain)},
            "/": {"get": _operation("A page to try it", html)},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                **parts,
                "ChatRequest": request,
                "Completion": COMPLETION,
                "Account": ACCOUNT,
                "Failure": FAILURE,
                "Model": MODEL_CARD,
                "ModelList": MODEL_LIST,
            },
        },
    }


def _operation(summary: str, answers: dict[str, Any]) -> dict[str, Any]:
    """With every status that there is; what is not 200 has one form."""
    failed = {str(status): {"description": "refused or failed", "content": _json("Failure")} for status in STATUSES}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": answers}, **failed}}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"{SCHEMAS}{schema}"}}}
