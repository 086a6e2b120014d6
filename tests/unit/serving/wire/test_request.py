"""Every field of a request is honoured, or refused by its name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.serving.wire.errors import ApiError
from orchestra.serving.wire.request import NEUTRAL, ChatRequest, parse_request

ASKED = {"messages": [{"role": "user", "content": "hi"}]}


def parsed(**fields: Any) -> ChatRequest:
    return parse_request(json.dumps({**ASKED, **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.status == 400
    return caught.value


def test_a_misspelt_field_is_refused_with_the_right_name() -> None:
    error = refused(budget_us=1)
    assert error.code == "unknown_parameter" and error.param == "budget_us" and "budget_usd?" in error.message
    assert refused(stream_options={"include_usages": True}).param == "stream_options.include_usages"
    assert refused(preference={"avoids": []}).param == "preference.avoids"
    assert refused(messages=[{"role": "user", "content": "hi", "colour": "red"}]).param == "messages.0.colour"


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"role": "assistant", "content": "hi"}, "the last message must be the user's or a tool's"),
        ({"role": "system", "content": "hi"}, "the last message must be the user's or a tool's"),
        ({"role": "user", "content": " "}, "the last message is empty"),
    ],
)
def test_a_request_ends_with_a_question(last: dict[str, Any], said: str) -> None:
    assert said in refused(messages=[*ASKED["messages"], last]).message


def test_a_wrong_value_is_named_by_its_field_alone() -> None:
    assert refused(preference="x" * 501).message == "preference: String should have at most 500 characters"
    assert refused(tool_choice=4).message == "tool_choice: Input should be 'auto' or 'none'"
    assert refused(metadata={"my-key": "x" * 501}).param == "metadata.my-key"


@given(st.text(min_size=1, max_size=20).filter(lambda name: name not in ChatRequest.model_fields | NEUTRAL))
def test_no_unknown_field_is_taken(name: str) -> None:
    assert refused(**{name: 1}).code == "unknown_parameter"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("frequency_penalty", 1),
        ("logit_bias", {"5": 3}),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("stop", ["\n"]),
        ("response_format", {"type": "json_object"}),
        ("n", 2),
        ("n", True),
        ("reasoning_effort", "low"),
        ("functions", []),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("store", True),
    ],
)
def test_what_would_have_no_effect_is_refused(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.param == field and error.code in ("unsupported_parameter", "unsupported_value")
    assert "not supported" in error.message


def test_what_only_one_of_two_fields_could_mean_is_refused() -> None:
    both = refused(max_completion_tokens=999, max_tokens=1)
    assert both.param == "max_tokens" and "max_completion_tokens and max_tokens" in both.message
    assert parsed(max_completion_tokens=9, max_tokens=None).max_written == parsed(max_tokens=9).max_written == 9
    for streamed in ({}, {"stream": False}):
        assert refused(stream_options={"include_usage": True}, **streamed).param == "stream_options"
    assert parsed(stream=True, stream_options={"include_usage": True}).stream_options is not None
    assert parsed(stream_options=None).stream_options is None


def test_what_asks_for_nothing_is_taken() -> None:
    parsed(
        temperature=0, top_p=1.0, frequency_penalty=0, presence_penalty=0.0, logit_bias={}, logprobs=False, stop=None,
        response_format={"type": "text"}, n=1, modalities=["text"], store=False, service_tier="auto", seed=7,
        parallel_tool_calls=False, tool_choice="auto", tools=[], user="u", metadata={"a": "b"}, audio=None,
    )  # fmt: skip


def test_history_of_other_clients_is_understood() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    echoed = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [call],
        "annotations": [],
        "audio": None,
    }
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
        *ASKED["messages"],
        echoed,
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ]
    found = parsed(messages=said)
    assert [message.text for message in found.messages] == ["be brief", "hi", "", "2"]
    assert found.messages[2].calls[0].call.arguments == {"a": 1}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, "text only"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "text only"),
        ({"role": "user", "content": None}, "null"),
        ({"role": "user", "content": "hi", "name": "Ann"}, "name is not supported"),
        ({"role": "user", "content": "hi", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
         "only an assistant"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_read_is_said(message: dict[str, Any], says: str) -> None:
    error = refused(messages=[message])
    assert says in error.message and str(error.param).startswith("messages.0")


def test_tools_are_checked_before_the_model_sees_them() -> None:
    def tool(**function: Any) -> dict[str, Any]:
        return {"type": "function", "function": function}

    taken = parsed(tools=[tool(name="f", description="adds", parameters={"type": "object"}, strict=True)])
    assert taken.tools[0].spec.name == "f" and taken.tools[0].spec.call_usd == 0
    assert refused(tools=[tool(name="f"), tool(name="f")]).param == "tools"
    assert (
        "another document"
        in refused(
            tools=[tool(name="f", parameters={"type": "object", "properties": {"a": {"$ref": "http://x/"}}})]
        ).message
    )
    assert refused(tools=[tool(name="f f")]).param == "tools.0.function.name"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"messages": NaN}', b"\xff", b'{"a":' * 5000, b"1" * 5000])
def test_what_is_no_json_object_is_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(raw)
    assert caught.value.status == 400
