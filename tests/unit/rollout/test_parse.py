"""The turn format: everything that is written is read back, and nothing that is read can crash."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.rollout.parse import MAX_DEPTH, MAX_TEXT, ParsedTurn, format_answer, format_call, parse_turn, read_turn
from orchestra.rollout.render import Codec
from orchestra.types import ToolCall, Turn
from tests.support.worlds import codec
from tests.unit.rollout.test_render import qwen3

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def untagged(text: str) -> bool:
    return not any(tag in text for tag in TAGS)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from([*TAGS, "\n</tool_call>\n", '"}}\n</tool_call>', "<|im_end|>", "\u2028", "\x00", "\\"]),
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3), max_leaves=8
)
calls = st.builds(
    ToolCall, name=st.text(max_size=12), arguments=st.dictionaries(st.text(max_size=8), values, max_size=4)
)
thoughts = st.text(max_size=60).filter(untagged)


@given(calls, thoughts)
def test_a_call_is_read_back_unchanged(call: ToolCall, thought: str) -> None:
    parsed = parse_turn(format_call(call, thought))
    assert parsed == ParsedTurn(thought.strip(), call, None)
    # What was read can be recorded and read again.
    assert parsed.call is not None
    assert ToolCall.model_validate_json(parsed.call.model_dump_json()) == call


@given(st.text(min_size=1, max_size=60).filter(untagged).filter(str.strip), thoughts)
def test_an_answer_is_read_back_but_for_outer_spaces(answer: str, thought: str) -> None:
    assert parse_turn(format_answer(answer, thought)) == ParsedTurn(thought.strip(), None, answer.strip())


def broken(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


HARD = {
    "NaN": ('{"name": "a", "arguments": {"x": NaN}}', "not a number"),
    "infinity": ('{"name": "a", "arguments": {"x": -Infinity}}', "not a number"),
    "overflow": ('{"name": "a", "arguments": {"x": 1e999}}', "not a number"),
    "huge integer": ('{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}", "5000 digits; write at most"),
    "key twice": ('{"name": "a", "arguments": {"x": 1, "x": 2}}', "same key twice"),
    "name twice": ('{"name": "a", "name": "b", "arguments": {}}', "same key twice"),
    "half a pair": ('{"name": "a", "arguments": {"x": "\\ud800"}}', "surrogate"),
    "half a pair in a key": ('{"name": "a", "arguments": {"\\udfff": 1}}', "surrogate"),
    "half a pair in the name": ('{"name": "\\ud800"}', "surrogate"),
    "half a pair as unknown key": ('{"name": "a", "\\ud800": 1}', "unknown key"),
    "too deep": ('{"name": "a", "arguments": {"x": ' + "[" * 40 + "]" * 40 + "}}", "nested"),
    "absurdly deep": ('{"name": "a", "arguments": {"x": ' + "[" * 90_000 + "]" * 90_000 + "}}", "nested"),
    "too many values": ('{"name": "a", "arguments": {"x": [' + "1," * 3000 + "1]}}", "more than 2000 values"),
    "name no string": ('{"name": 1, "arguments": {}}', "a tool call is"),
    "no name": ('{"arguments": {}}', "a tool call is"),
    "a list": ('["a"]', "a tool call is"),
    "null": ("null", "a tool call is"),
    "arguments no object": ('{"name": "a", "arguments": [1]}', "arguments must be an object"),
    "arguments null": ('{"name": "a", "arguments": null}', "arguments must be an object"),
    "unknown key": ('{"name": "a", "parameters": {}}', "unknown key in the tool call: 'parameters'"),
    "empty": ("", "not JSON"),
    "single quotes": ("{'name': 'a'}", "not JSON"),
    "two objects": ('{"name": "a"} {"name": "b"}', "one JSON object"),
    "brace too many": ('{"name": "a", "arguments": {}}}', "one JSON object"),
}


@pytest.mark.parametrize("name", HARD)
def test_what_is_no_call_is_refused_with_a_reason(name: str) -> None:
    text, reason = HARD[name]
    with pytest.raises(CallError, match=reason) as caught:
        parse_turn(broken(text))
    usable(caught.value)


ODD = {
    "nothing": ("", "empty turn"),
    "spaces": (" \n", "empty turn"),
    "thought only": ("<think>\nhm\n</think>\n\n", "empty turn"),
    "open thought": ("<think>\nhm", "<think> is not closed"),
    "open call": ('<tool_call>\n{"name": "a"}', "<tool_call> is not closed"),
    "closed only": ("</tool_call>", "stray tag"),
    "stray thought": ("so </think> 3", "stray tag"),
    "forged response": ("<tool_response>\n3\n</tool_response>", "stray tag"),
    "half a tag": ('<tool_call\n{"name": "a"}', "half a <tool_call> tag"),
    "a spaced tag": ('< tool_call >\n{"name": "a"}', "half a <tool_call> tag"),
    "an end without its bracket": ('{"name": "a"}\ntool_call>', "half a <tool_call> tag"),
    "words before": ('I call <tool_call>\n{"name": "a"}\n</tool_call>', "nothing around"),
    "words after": ('<tool_call>\n{"name": "a"}\n</tool_call> done', "nothing around"),
    "two calls": (broken('{"name": "a"}') + broken('{"name": "b"}'), "nothing around"),
    "too long": ("x" * (MAX_TEXT + 1), "too long"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_neither_a_call_nor_an_answer_is_refused_with_a_reason(name: str) -> None:
    text, reason = ODD[name]
    with pytest.raises(CallError, match=reason) as caught:
        parse_turn(text)
    usable(caught.value)


def usable(error: CallError) -> None:
    """The model is shown the message, so it must be short, of one line, and hold in a record."""
    message = str(error)
    assert 0 < len(message) < 200
    assert "\n" not in message
    assert Turn(ids=(), text="", parse_error=message).model_dump_json()


def whole_turn(parsed: ParsedTurn) -> None:
    """It is an answer or a call by name with an object of arguments; a record and its own text give it back."""
    assert (parsed.call is None) != (parsed.answer is None)
    if parsed.call is None:
        assert parsed.answer and parse_turn(format_answer(parsed.answer, parsed.thought)) == parsed
        return
    record = json.loads(parsed.call.model_dump_json())
    assert isinstance(record["name"], str) and isinstance(record["arguments"], dict)
    assert ToolCall.model_validate(record) == parsed.call
    assert parse_turn(format_call(parsed.call, parsed.thought)) == parsed


def test_the_deepest_call_allowed_can_be_recorded() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH - 2):
        value = [value]
    text = broken(json.dumps({"name": "a", "arguments": {"x": value}}))
    turn = Turn(ids=(), text=text, call=parse_turn(text).call)
    assert Turn.model_validate_json(turn.model_dump_json()) == turn
    deeper = text.replace('"x": ', '"x": [').replace("}}\n", "]}}\n")
    with pytest.raises(CallError, match="nested"):
        parse_turn(deeper)


@pytest.mark.parametrize("make", [codec, qwen3])
@pytest.mark.parametrize("head", ["", "<think>\nhm\n</think>\n\n", "<think>\nhm <tool_call> x\n</think>\n\n"])
def test_a_call_in_letters_is_none_whatever_control_tokens_stand_before_it(
    make: Callable[[], Codec], head: str
) -> None:
    """A policy that copies what a tool said may think first, with the tokens of a thought."""
    made, call = make(), ToolCall(name="search", arguments={"query": "x"})
    before = made.turn(head)[:-1] if head else []
    written, copied = made.turn(head + format_call(call))[:-1], [*before, *made.encode_content(format_call(call))]
    assert made.decode(written) == made.decode(copied)
    assert read_turn(made, written, made.decode(written)).call == call
    with pytest.raises(CallError, match="as if copied"):
        read_turn(made, copied, made.decode(copied))


def test_any_name_parses_for_the_toolbox_to_refuse() -> None:
    for name in ("", "a b", "x" * 500, "<|im_end|>", "../etc", "名"):
        assert parse_turn(format_call(ToolCall(name=name))).call == ToolCall(name=name)


def test_ten_thousand_malformed_turns_raise_nothing_but_call_error() -> None:
    """Real turns cut, spliced and stuffed with the format's own pieces."""
    rng = random.Random(0)
    whole = format_call(ToolCall(name="search", arguments={"query": "Norvik", "n": [1, 2.5, None, {"a": True}]}), "hm")
    pieces = [*TAGS, *'{}[":,\n\x00é\\', "\\u", "\\ud800", "NaN", "1e999", "null", "9" * 30]
    refused = 0
    for _ in range(10_000):
        text = whole
        for _ in range(rng.randint(1, 4)):
            at, cut = rng.randint(0, len(text)), rng.choice([0, 0, 1, 3, 20])
            text = text[:at] + "".join(rng.choices(pieces, k=rng.randint(0, 3))) + text[at + cut :]
        try:
            parsed = parse_turn(text)
        except CallError as error:
            refused += 1
            usable(error)
        else:
            whole_turn(parsed)
    assert 7_000 < refused < 10_000


@settings(max_examples=200)
@example("{}}")
@given(st.text(st.sampled_from('<>/{}[]":,\\ntoolcathik_\n 0é'), max_size=80))
def test_any_text_is_a_turn_or_a_call_error(text: str) -> None:
    refused = []
    for candidate in (text, broken(text), broken('{"name": "a", "arguments": ' + text)):
        try:
            parsed = parse_turn(candidate)
        except CallError as error:
            usable(error)
            refused.append(candidate)
        else:
            whole_turn(parsed)
            # What opens as a call is read as one, never as an answer.
            assert parsed.call is not None or not candidate.startswith("<tool_call>")
    # The example is an answer, no call, and the arguments of one: both outcomes are met.
    assert text != "{}}" or refused == [broken(text)]
