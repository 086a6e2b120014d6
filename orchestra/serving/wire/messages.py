"""OpenAI's messages and the caller's own tools, as far as a model that reads text can take them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from orchestra.errors import CallError
from orchestra.rollout.parse import parse_turn
from orchestra.tools.catalogue.schema import schema_problem
from orchestra.types import Message, Price, ToolCall, ToolKind, ToolSpec

NAME = r"^[A-Za-z0-9_.-]{1,64}$"
MAX_TOOLS = 64
MAX_PARTS, MAX_CALLS = 1_000, 128
"""Of one message."""
CALLERS = "caller:"
"""What the tool behind a caller's function begins with."""


class Wire(BaseModel):
    """A part of a request; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class TextPart(Wire):
    """A part of a message's content."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, raw: Any) -> Any:
        kind = raw.get("type") if isinstance(raw, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"a part of type {kind[:40]}: this model reads text only, no images, sound or files")
        return raw


class CalledFunction(Wire):
    """The function that a message's tool call names, with its arguments as JSON text."""

    name: Annotated[str, Field(pattern=NAME)]
    arguments: Annotated[str, Field(max_length=100_000)]

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, text: str) -> str:
        text = text or "{}"
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("the arguments are no JSON") from None
        if not isinstance(found, dict):
            raise ValueError("the arguments are no JSON object")
        try:
            # Held to what a call of the model is held to: an episode could not hold others.
            parse_turn(f'<tool_call>{{"name": "x", "arguments": {text}}}</tool_call>')
        except CallError as error:
            raise ValueError(f"the arguments: {error}") from None
        return text


class CallMessage(Wire):
    """A call that an assistant's message makes."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> ToolCall:
        return ToolCall(name=self.function.name, arguments=json.loads(self.function.arguments))


class ChatMessage(Wire):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    tool_calls: Annotated[list[CallMessage], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None
    name: Annotated[str, Field(pattern=NAME)] | None = None
    """Of the function behind a tool's message; other messages have none."""
    refusal: str | None = None
    """What an assistant's message of another model holds in place of an answer."""
    annotations: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.role != "assistant" and self.tool_calls:
            raise ValueError("only an assistant's message has tool_calls")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a tool's message needs tool_call_id")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("only a tool's message has tool_call_id")
        if self.role != "tool" and self.name is not None:
            raise ValueError("name is not supported: the model is not told who speaks; write it into the content")
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise ValueError("content may be null only beside tool_calls")
        return self

    @property
    def text(self) -> str:
        if self.content is None:
            return self.refusal or ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    @property
    def plain(self) -> Message:
        return Message(role="system" if self.role == "developer" else self.role, content=self.text)

    @property
    def calls(self) -> list[CallMessage]:
        return self.tool_calls or []


class FunctionSpec(Wire):
    """A function of the caller."""

    name: Annotated[str, Field(pattern=NAME)]
    description: Annotated[str, Field(max_length=4_000)] | None = None
    parameters: dict[str, JsonValue] | None = None
    """JSON schema of the arguments; None: no arguments."""
    strict: bool | None = None
    """The arguments are checked either way: a call that does not fit goes back to the model."""

    @field_validator("parameters")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        problem = None if not schema else schema_problem(schema)
        if problem is not None:
            raise ValueError(problem)
        return schema


class CallerTool(Wire):
    """A tool that the caller runs: calls of it come back as `tool_calls`."""

    type: Literal["function"]
    function: FunctionSpec

    @property
    def spec(self) -> ToolSpec:
        """As the model is offered it; it costs nothing here."""
        function = self.function
        return ToolSpec(
            name=function.name,
            tool=CALLERS + function.name,
            kind=ToolKind.DOMAIN,
            description=" ".join((function.description or function.name).split()),
            parameters=function.parameters or {"type": "object", "properties": {}},
            price=Price(),
            call_usd=Price().per_call,
            latency_s=0.0,
        )


class NamedTool(Wire):
    """A choice of one function, which is not supported."""

    type: Literal["function"]
    function: dict[str, JsonValue]
