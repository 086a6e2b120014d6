"""What a reply says: thoughts taken off, and every way of saying nothing told apart."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.tools.chat.reply import ChatReply, is_of, read_reply
from orchestra.tools.failures import ReplyError, Unusable
from orchestra.types import Usage
from tests.support.endpoint import answer

CALL = [{"type": "function", "function": {"name": "search", "arguments": "{}"}}]


def finished(reason: str | None, content: Any, **message: Any) -> dict[str, Any]:
    said = answer(content, **message)
    said["choices"][0]["finish_reason"] = reason
    return said


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("  Kelmar \n", "Kelmar"),
        ("<think>\nTesk? no.\n</think>\n\nKelmar", "Kelmar"),
        ("Tesk? no.\n</think>Kelmar", "Kelmar"),
        ("a <think> tag needs a </think> tag", "a <think> tag needs a </think> tag"),
        ([{"type": "text", "text": "Kel"}, {"type": "image"}, {"type": "text", "text": "mar"}], "Kelmar"),
    ],
)
def test_the_answer_is_what_follows_the_thoughts(content: Any, text: str) -> None:
    reply = read_reply(answer(content), "x")
    assert (reply.text, reply.cut, reply.counted) == (text, False, True)
    assert reply.usage == Usage(input_tokens=100, cached_input_tokens=40, output_tokens=7)


@pytest.mark.parametrize(
    ("raw", "unusable"),
    [
        (finished("stop", None), Unusable.EMPTY),
        (finished("abort", ""), Unusable.EMPTY),
        (finished("stop", "<think>hm</think>"), Unusable.EMPTY),
        (finished("length", None, reasoning_content="so then"), Unusable.TRUNCATED),
        (finished("length", "<think>so then"), Unusable.TRUNCATED),
        (finished("stop", "<think>so then"), Unusable.TRUNCATED),
        (finished("tool_calls", None, tool_calls=CALL), Unusable.TOOL_CALLS),
        (finished("stop", None, refusal="I cannot help"), Unusable.REFUSED),
        (finished("content_filter", ""), Unusable.REFUSED),
        (finished("content_filter", "The first step is"), Unusable.REFUSED),
        ({"error": {"message": "overloaded"}}, Unusable.SHAPE),
        ({"choices": [{"message": {"content": 5}}]}, Unusable.SHAPE),
        ({**answer(), "usage": {"prompt_tokens": -4}}, Unusable.SHAPE),
        (None, Unusable.SHAPE),
    ],
)
def test_a_reply_without_an_answer_says_which_kind_it_is(raw: Any, unusable: Unusable) -> None:
    with pytest.raises(ReplyError) as error:
        read_reply(raw, "x")
    assert error.value.unusable is unusable and str(error.value).startswith("x: ")
    assert (error.value.usage is not None) == (unusable is not Unusable.SHAPE), "what came is charged for what it says"


def test_an_answer_that_the_limit_cut_is_marked() -> None:
    assert read_reply(finished("length", "Kel"), "x").cut


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"completion_tokens": 7},
        {"prompt_tokens": 7, "total_tokens": 7},
        {"prompt_tokens": 10**22, "completion_tokens": 7},
        {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 10**22},
    ],
)
def test_usage_that_is_not_said_is_not_counted(usage: Any) -> None:
    assert not read_reply({**answer(), "usage": usage}, "x").counted


@pytest.mark.parametrize(("total", "written"), [(107, 7), (5107, 5007), (None, 7), (0, 7), ("5107", 7)])
def test_thoughts_that_only_the_total_counts_are_billed(total: Any, written: int) -> None:
    said = answer()
    said["usage"]["total_tokens"] = total
    assert read_reply(said, "x").usage == Usage(input_tokens=100, cached_input_tokens=40, output_tokens=written)


@pytest.mark.parametrize("reason", ["error", "stop"])
def test_a_reply_that_an_error_ended_is_no_answer(reason: str) -> None:
    said = finished(reason, "The answer is")
    if reason == "stop":
        said["choices"][0]["error"] = {"code": 502, "message": "upstream"}
    with pytest.raises(ReplyError, match="a reply that an error ended") as error:
        read_reply(said, "x")
    assert error.value.usage is not None, "it is charged for what it says"


@pytest.mark.parametrize(
    ("answered", "asked", "same"),
    [
        ("gpt-5-2025-08-07", "gpt-5", True),
        ("mistral-large-2411", "mistral-large-latest", True),
        ("Qwen3-32B", "Qwen/Qwen3-32B", True),
        ("gpt-4o-mini", "gpt-4o", False),
        ("gpt-4.1", "gpt-4", False),
        ("llama-3-8b", "llama-3-70b", False),
    ],
)
def test_a_models_name_may_have_a_date(answered: str, asked: str, same: bool) -> None:
    assert is_of(answered, asked) is same


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4)
keys = st.sampled_from(["content", "tool_calls", "refusal", "finish_reason", "message", "usage", "prompt_tokens"])
messages = st.dictionaries(keys, json_values)
shaped = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"message": messages | json_values}), max_size=2)},
    optional={"usage": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), json_values)},
)


@settings(max_examples=60, deadline=None)
@given(json_values | shaped)
def test_garbage_is_an_error_of_its_type_or_text(raw: Any) -> None:
    try:
        reply = read_reply(raw, "x")
    except ReplyError as error:
        assert "\n" not in str(error)
    else:
        assert reply.text.strip() and ChatReply.model_validate_json(reply.model_dump_json()) == reply
