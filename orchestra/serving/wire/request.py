"""A chat completion's request: every field is honoured, or refused by its name."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from orchestra.serving.wire.errors import MAX_PARAM, bad_request, too_large, unsupported
from orchestra.serving.wire.messages import MAX_TOOLS, CallerTool, ChatMessage, NamedTool, Wire
from orchestra.text import is_text

MODEL = "orchestrator"
MAX_BODY = 1_000_000
"""Bytes of a request's body."""
MAX_VALUES = 30_000
"""Names and values of a whole body: each takes far more memory than its bytes."""
MAX_TOOLS_DEPTH, MAX_TOOLS_VALUES, MAX_TOOLS_CHARACTERS = 40, 5_000, 200_000
"""Of all tools of a request together, their schemas among them."""
MESSAGE = 30
"""Characters that a message counts beside its text: a template writes as many around it."""

GREEDY = "the model always writes its most likely answer"
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "temperature": ((0,), f"{GREEDY}; leave it out, or send 0"),
    "top_p": ((1,), f"{GREEDY}; leave it out, or send 1"),
    "frequency_penalty": ((0,), f"{GREEDY}; leave it out, or send 0"),
    "presence_penalty": ((0,), f"{GREEDY}; leave it out, or send 0"),
    "logit_bias": (({},), f"{GREEDY}; leave it out"),
    "logprobs": ((False,), "an answer comes out of several turns; leave it out"),
    "top_logprobs": ((0,), "an answer comes out of several turns; leave it out"),
    "stop": (([], ""), "an answer ends by itself; leave it out, or bound it with max_completion_tokens"),
    "response_format": (({"type": "text"},), "the model was trained on answers in words; ask for JSON in the message"),
    "modalities": ((["text"],), "this model writes text only"),
    "store": ((False,), "nothing is kept for you here"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "n": ((1,), "there is one answer; send the request again for another"),
    "audio": ((), "this model writes text only"),
    "prediction": ((), "leave it out"),
    "reasoning_effort": ((), "say what matters in `preference`"),
    "verbosity": ((), "say what matters in `preference`"),
    "web_search_options": ((), "tools come from the catalogue, or from `tools`"),
    "functions": ((), "it is an old form; send `tools`"),
    "function_call": ((), "it is an old form; send `tool_choice`"),
    "prompt_cache_key": ((), "prompts are cached by their beginning"),
    "prompt_cache_retention": ((), "prompts are cached by their beginning"),
}
"""OpenAI's fields that do nothing here: the values that ask for nothing, and what is said of any other."""

_MEMBER = re.compile(r"constrained-str|literal\[.*")
"""What pydantic calls some members of a union."""

Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=200)]
Weight = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class PreferenceSpec(Wire):
    """What matters to the user, part by part. `avoid` and `tools_allowed` are kept to, whatever the model would do."""

    words: Annotated[str, Field(max_length=500)] | None = None
    outcome: Weight | None = None
    """With `compute`, `latency` and `tools`: the vector P. The model is told the weight that stands out."""
    compute: Weight | None = None
    latency: Weight | None = None
    tools: Annotated[dict[Annotated[str, Field(max_length=200)], Weight], Field(max_length=200)] = Field(
        default_factory=dict
    )
    """Weight by tool; those above a half are preferred."""
    prefer: Names = Field(default_factory=list)
    """Tools that the model is asked to use."""
    avoid: Names = Field(default_factory=list)
    """Tools that are not offered, and that nothing calls."""
    tools_allowed: Names | None = None
    """The only tools that may be called, the caller's own besides."""


class StreamOptions(Wire):
    """Of a streamed answer."""

    include_usage: bool = False
    """A last chunk without choices holds the usage, as OpenAI sends it."""
    include_obfuscation: Literal[False] = False
    include_thoughts: bool = False
    """Chunks hold the model's thoughts as `reasoning_content`."""


class ChatRequest(Wire):
    """A chat completion."""

    model: str = MODEL
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Annotated[list[CallerTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    """The caller's own, beside the catalogue's."""
    tool_choice: Literal["auto", "none"] | NamedTool | str = "auto"
    """`none`: the caller's tools are not offered."""
    parallel_tool_calls: bool = True
    """Calls come one at a time, which either value allows."""
    max_completion_tokens: Annotated[int, Field(gt=0, le=10**9)] | None = None
    """Tokens that the model may write over all turns."""
    max_tokens: Annotated[int, Field(gt=0, le=10**9)] | None = None
    """The old name of `max_completion_tokens`."""
    seed: int | None = None
    """Any seed gives the same answer: the model writes its most likely one."""
    user: Annotated[str, Field(max_length=200)] | None = None
    """The caller's name for its user; kept in the trace."""
    safety_identifier: Annotated[str, Field(max_length=200)] | None = None
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=500)]], Field(max_length=16)
    ] = Field(default_factory=dict)
    """Kept in the trace."""
    preference: Annotated[str, Field(max_length=500)] | PreferenceSpec | None = None
    """cheap, fast, accurate, or the user's own words; or part by part."""
    budget_usd: Annotated[Decimal, Field(ge=0, le=10**15, allow_inf_nan=False)] | None = None
    """A call that could cross it is not made."""
    max_turns: Annotated[int, Field(gt=0)] | None = None
    """Fewer turns than the release allows."""
    max_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    """By the clock; then what is under way ends."""
    domain: str | None = None
    """Offer this domain's tools, over a copy of its database that ends with the request."""
    truncation: Literal["auto", "disabled"] = "auto"
    """auto: where a conversation is too long its oldest exchanges are left out; disabled: it is refused."""

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: list[CallerTool]) -> list[CallerTool]:
        names = [tool.function.name for tool in tools]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two tools are named {min(twice)}")
        return tools

    @field_validator("budget_usd")
    @classmethod
    def _is_short(cls, budget: Decimal | None) -> Decimal | None:
        """Any number of JSON is; a text can spell one with a million digits, which the model might have to read."""
        if budget is not None:
            _, digits, exponent = budget.as_tuple()
            if len(digits) > 60 or not isinstance(exponent, int) or abs(exponent) > 400:
                raise ValueError("a number of at most 60 digits and 400 decimal places")
        return budget

    @model_validator(mode="after")
    def _ends_with_a_question(self) -> ChatRequest:
        last = self.messages[-1]
        if last.role not in ("user", "tool"):
            raise ValueError("the last message must be the user's or a tool's")
        if last.role == "user" and not last.text.strip():
            raise ValueError("the last message is empty")
        return self

    @property
    def max_written(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def own_tools(self) -> list[CallerTool]:
        """The caller's tools that are offered."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def characters(self) -> int:
        """Of all that is made into tokens or looked up."""
        said = sum(MESSAGE + len(one.text) + len(one.tool_call_id or "") for one in self.messages)
        calls = [call for one in self.messages for call in one.calls]
        called = sum(len(call.id) + len(call.function.name) + len(call.function.arguments) for call in calls)
        return said + called + sum(len(tool.model_dump_json()) for tool in self.own_tools)

    @property
    def wanted(self) -> PreferenceSpec:
        """The preference, whatever its form."""
        if isinstance(self.preference, PreferenceSpec):
            return self.preference
        return PreferenceSpec(words=self.preference)


def parse_request(raw: bytes) -> ChatRequest:
    """Raises `ApiError`: 400 naming the first field that is wrong, 413 for a body that no model could read."""
    if len(raw) > MAX_BODY:
        raise too_large(f"more than {MAX_BODY} bytes")
    try:
        # JSON is UTF-8. Given bytes, the parser would take other encodings too, and halves of pairs in them.
        text = raw.decode("utf-8")
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_named_once)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise bad_request("the body is no JSON object")
    if len(raw) > 2 * MAX_VALUES:  # Each takes two bytes at least.
        _check_values(found)
    if b"\\ud" in raw.lower() and not is_text(json.dumps(found, ensure_ascii=False)):
        raise bad_request("the body holds half a surrogate pair, which is no character")
    return check_request(found)


def check_request(found: dict[str, Any]) -> ChatRequest:
    """The request in a JSON object; raises `ApiError` 400, naming the first field that is wrong."""
    found = {key: value for key, value in found.items() if value is not None}
    for key, (neutral, why) in NEUTRAL.items():
        if key in found:
            value = found.pop(key)
            if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
                raise unsupported(key, why)
    _check_size(found.get("tools"))
    try:
        request = ChatRequest.model_validate(found)
    except ValidationError as error:
        raise _first(error, found) from None
    if request.tool_choice not in ("auto", "none"):
        raise unsupported("tool_choice", "the model chooses by itself; send auto or none", "unsupported_value")
    if request.max_completion_tokens is not None and request.max_tokens is not None:
        raise bad_request("max_completion_tokens and max_tokens say one thing: send one of them", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options without stream: send stream: true, or leave it out", "stream_options")
    return request


def _first(error: ValidationError, found: dict[str, Any]) -> Exception:
    """The error to answer with: an unknown field first, since a misspelt one is also missing; then a list too long."""
    errors = error.errors(include_url=False, include_input=False)
    kinds = ("extra_forbidden", "too_long")
    first = min(errors, key=lambda one: (*(one["type"] != kind for kind in kinds), -len(one["loc"])))
    # Names of union members, which pydantic puts in between, are no fields.
    parts = [str(part) for part in first["loc"] if isinstance(part, int) or str(part).islower()]
    where = ".".join(part for part in parts if not _MEMBER.fullmatch(part))
    where = where.removesuffix(".str").replace(".str.", ".").replace(".list[TextPart]", "")
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])[:80]
        known = [*ChatRequest.model_fields, *NEUTRAL] if len(first["loc"]) == 1 else []
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return bad_request(f"unknown field {where[:200]}{hint}", where[:200], "unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "too_long":
        message = f"at most {first['ctx']['max_length']} entries"
    if not where and "last message" in message:
        where = "messages"
    return bad_request(f"{where + ': ' if where else ''}{message}", where or None)


def _no_number(literal: str) -> float:
    raise ValueError(f"{literal} is not a number of JSON")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; raises `ValueError` for a name that stands twice, of which a proxy may have checked the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name {twice[:40]!r} stands twice in an object")
    return found


def _check_values(found: dict[str, Any]) -> None:
    """Raises `ApiError` naming the field with which the body has too many names and values."""
    count = 0
    for name, value in found.items():
        count, rest = count + 2, [value]
        while rest and count <= MAX_VALUES:
            one = rest.pop()
            inner = [*one, *one.values()] if isinstance(one, dict) else one if isinstance(one, list) else []
            count += len(inner)
            rest += inner
        if count > MAX_VALUES:
            what = f"{name[:MAX_PARAM]}: the body has more than {MAX_VALUES} names and values"
            raise bad_request(what, name, "too_large")


def _check_size(tools: Any) -> None:
    """Raises `ApiError` for tools that take long to check; nothing looks into them before."""
    values = characters = 0
    rest = [(tools, 0)]
    while rest:
        value, depth = rest.pop()
        inner: list[Any] = []
        if isinstance(value, dict):
            inner = [*value, *value.values()]
        elif isinstance(value, list):
            inner = value
        elif isinstance(value, str):
            characters += len(value)
        values += len(inner)
        for count, most, what in (
            (depth, MAX_TOOLS_DEPTH, "levels of lists and objects"),
            (values, MAX_TOOLS_VALUES, "names and values"),
            (characters, MAX_TOOLS_CHARACTERS, "characters"),
        ):
            if count > most:
                raise bad_request(f"the tools have more than {most} {what} together", "tools", "too_large")
        rest += [(one, depth + 1) for one in inner]
