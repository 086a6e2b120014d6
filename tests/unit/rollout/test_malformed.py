"""10,000 malformed calls, of every kind that models write: each is refused, in words that the model can act on."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.rollout.parse import MAX_TEXT, format_call, parse_turn
from orchestra.tools.session import ToolSession
from orchestra.types import ToolCall, Turn
from tests.support.worlds import catalogue, example, toolkit

COUNT = 10_000
VALID = [
    ToolCall(name="calculator", arguments={"expression": "37*24"}),
    ToolCall(name="search", arguments={"query": "Norvik"}),
    ToolCall(name="gpt-5", arguments={"question": "who wrote Opal?"}),
    ToolCall(name="python", arguments={"code": "print('<tool_call>')\nx = {1: [2]}"}),
    ToolCall(name="get_book", arguments={"book": 12}),
    ToolCall(name="lend_book", arguments={"book": 12, "reader": "Mirel"}),
]
ALIKE = str.maketrans("aceopxy", "\u0430\u0441\u0435\u043e\u0440\u0445\u0443")
"""Latin letters to the Cyrillic ones that look the same."""
QUOTES = str.maketrans('"', "”")
WRONG: list[Any] = [None, True, 5, -1, 10**40, 1.5, "", "x" * 5000, "\x1b[2J", [], ["a"], {}, {"a": {"b": [1]}}]
Change = Callable[[random.Random, ToolCall], str]


def written(body: object) -> str:
    return f"<tool_call>\n{body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def _arguments(change: Callable[[random.Random, dict[str, Any]], object]) -> Change:
    """A change of the arguments alone."""

    def changed(rng: random.Random, call: ToolCall) -> str:
        arguments: dict[str, Any] = dict(call.arguments)
        made = change(rng, arguments)
        return written({"name": call.name, "arguments": arguments if made is None else made})

    return changed


def _text(change: Callable[[random.Random, str], str]) -> Change:
    """A change of the turn's text."""
    return lambda rng, call: change(rng, format_call(call, rng.choice(["", "hm"])))


def _value(spelled: str) -> Change:
    """A value in a spelling that JSON lacks, or that no record holds."""
    return lambda rng, call: written(f'{{"name": "{call.name}", "arguments": {{"x": {spelled}}}}}')


def _key(rng: random.Random, arguments: dict[str, Any]) -> str:
    return rng.choice(list(arguments))


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randint(text.index("<tool_call>") + 5, len(text) - 1)]


def _spliced(rng: random.Random, text: str) -> str:
    at, pieces = rng.randint(0, len(text)), ["<think>", "</tool_call>", "<tool_call>", *'{}[":,\\', "NaN", "\\ud800"]
    return text[:at] + "".join(rng.choices(pieces, k=rng.randint(1, 4))) + text[at + rng.choice([0, 1, 5]) :]


CHANGES: dict[str, Change] = {
    "cut": _text(_cut),
    "doubled": _text(lambda rng, text: text * rng.randint(2, 4)),
    "spliced": _text(_spliced),
    "a word left out": _text(
        lambda rng, text: text.replace(rng.choice(['"name"', '"arguments"', ":", "}", "{"]), "", 1)
    ),
    "words around": _text(lambda rng, text: rng.choice([f"I call {text}", f"{text} now", f"{text}\n{text}"])),
    "half tags": _text(
        lambda rng, text: text.replace(*rng.choice([("<tool_call>", "<tool_call"), ("</tool_call>", "")]))
    ),
    "wrong order": lambda rng, call: f"</tool_call>\n{json.dumps(call.model_dump())}\n<tool_call>",
    "look-alike quotes": lambda rng, call: written(json.dumps(call.model_dump()).translate(QUOTES)),
    "single quotes": lambda rng, call: written(str(call.model_dump())),
    "trailing comma": lambda rng, call: written(json.dumps(call.model_dump())[:-1] + ",}"),
    "comment": lambda rng, call: written(json.dumps(call.model_dump())[:-1] + "} // done"),
    "brace too many": lambda rng, call: written(json.dumps(call.model_dump()) + "}" * rng.randint(1, 3)),
    "two objects": lambda rng, call: written(json.dumps(call.model_dump()) * 2),
    "code fence": lambda rng, call: written(f"```json\n{json.dumps(call.model_dump())}\n```"),
    "a list": lambda rng, call: written([call.model_dump()]),
    "wrapped": lambda rng, call: written({"function": call.model_dump()}),
    "other keys": lambda rng, call: written({"name": call.name, rng.choice(["parameters", "input", "id"]): {}}),
    "no name": lambda rng, call: written({"arguments": call.arguments}),
    "name of another type": lambda rng, call: written({"name": rng.choice([None, 1, [], {}]), "arguments": {}}),
    "key twice": lambda rng, call: written(f'{{"name": "{call.name}", "name": "{call.name}"}}'),
    "argument twice": lambda rng, call: written(
        f'{{"name": "{call.name}", "arguments": {{"x": 1, "x": {rng.random()}}}}}'
    ),
    "not a number": _value("NaN"),
    "infinite": _value("-Infinity"),
    "overflowing": _value("1e999"),
    "huge": lambda rng, call: _value("1" * rng.randint(301, 9000))(rng, call),
    "deep": lambda rng, call: _value("[" * (n := rng.choice([25, 900, 60_000])) + "]" * n)(rng, call),
    "deep objects": lambda rng, call: _value('{"a":' * (n := rng.choice([25, 900])) + "1" + "}" * n)(rng, call),
    "half a surrogate pair": _value(r'"\ud800"'),
    "raw half of a pair": _value('"\udfff"'),
    "bad escape": _value(r'"\x41"'),
    "raw control character": _value('"a\nb"'),
    "many values": lambda rng, call: _value("[" + "1," * 2500 + "1]")(rng, call),
    "unknown name": lambda rng, call: written({"name": rng.choice(["", "x" * 900, "a\nb", "gpt-9", "../etc", "名"])}),
    "look-alike name": lambda rng, call: written({"name": call.name.translate(ALIKE), "arguments": call.arguments}),
    "name in capitals": lambda rng, call: written({"name": call.name.upper(), "arguments": call.arguments}),
    "name with spaces": lambda rng, call: written({"name": f" {call.name} ", "arguments": call.arguments}),
    "arguments as text": lambda rng, call: written({"name": call.name, "arguments": json.dumps(call.arguments)}),
    "arguments of another type": _arguments(lambda rng, _: rng.choice([[], "x", 1, True, [1, {}]])),
    "argument left out": lambda rng, call: written({"name": "lend_book", "arguments": rng.choice([{}, {"book": 1}])}),
    "argument too many": _arguments(lambda rng, args: args.update({rng.choice(["k", "a\nb", "x" * 700]): 1})),
    "argument of another type": _arguments(lambda rng, args: args.update({k: rng.choice(WRONG) for k in args})),
    "look-alike argument": _arguments(lambda rng, args: {key.translate(ALIKE): value for key, value in args.items()}),
    "argument inside a list": _arguments(lambda rng, args: {key: [value] for key, value in args.items()}),
    "argument renamed": _arguments(lambda rng, args: args.update({_key(rng, args) + "_": 1})),
}
PYTHON = re.compile(
    r"Traceback|\w+Error\b|Exception|NoneType|\bNone\b|\bTrue\b|\bFalse\b|<class|object at|sys\.|recursion|jsonschema"
)
ADVICE = re.compile(
    r"write|it takes|there are|it has|must be|a tool call is|is not closed|with nothing|call one tool|call with|"
    r"tool call is not JSON: \w+"
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolSession]:
    kit = toolkit(tmp_path_factory.mktemp("world"))
    specs = [catalogue().spec(name) for name in ("calculator", "search", "gpt-5", "python")]
    specs += [catalogue().domain_spec("mock", tool) for tool in kit.domain("mock").tools.values()]
    opened = ToolSession(kit, example(toolbox=specs, domain="mock"))
    yield opened
    opened.close()


def refused(session: ToolSession, text: str) -> str | None:
    """Why a turn is no call, in the words that the model reads; None for a call that can run, or an answer."""
    try:
        call = parse_turn(text).call
        if call is not None:
            session.offered(call)
    except CallError as error:
        return str(error)
    return None


def usable(message: str) -> None:
    assert 0 < len(message) < 600
    assert "\n" not in message and not PYTHON.search(message), message
    assert ADVICE.search(message), message
    assert Turn(ids=(), text="", parse_error=message).model_dump_json()


def test_what_is_changed_here_could_run(session: ToolSession) -> None:
    assert [refused(session, format_call(call)) for call in VALID] == [None] * len(VALID)


def test_ten_thousand_malformed_calls_are_refused_in_words(session: ToolSession) -> None:
    rng, kinds, passed = random.Random(5), Counter[str](), Counter[str]()
    while kinds.total() < COUNT:
        kind = rng.choice(list(CHANGES))
        text = CHANGES[kind](rng, rng.choice(VALID))
        message = refused(session, text)
        if message is None:
            passed[kind] += 1  # the change happened to be harmless, or left an answer
        else:
            kinds[kind] += 1
            usable(message)
    assert set(kinds) == set(CHANGES) and passed.total() < COUNT / 5, passed
    assert set(passed) <= {
        "cut",
        "spliced",
        "a word left out",
        "half tags",
        "argument of another type",
        "argument inside a list",
    }


SLOW = {
    "brackets": "<" * MAX_TEXT,
    "tags": ("<tool_call>" * MAX_TEXT)[:MAX_TEXT],
    "spaced tags": ("< / " * MAX_TEXT)[:MAX_TEXT],
    "thoughts": ("<think>" * MAX_TEXT)[:MAX_TEXT],
    "spaces": "<tool_call>" + " " * (MAX_TEXT - 30) + "</tool_call>",
    "lists": written("[" * (MAX_TEXT - 30)),
    "objects": written(('{"a":' * MAX_TEXT)[: MAX_TEXT - 30]),
    "escapes": written(('"' + "\\u0041" * MAX_TEXT)[: MAX_TEXT - 30]),
    "the same key": written("{" + ",".join(['"a":1'] * 30_000) + "}"),
    "other keys": written("{" + ",".join(f'"{n}":1' for n in range(15_000)) + "}"),
    "many extra arguments": written({"name": "search", "arguments": {str(n): n for n in range(900)}}),
    "many wrong values": written({"name": "search", "arguments": {"query": [0.5] * 1900}}),
}


@pytest.mark.timeout(60)  # what grows with the square of a text's length takes minutes
@pytest.mark.parametrize("name", SLOW)
def test_no_text_is_endless_work(name: str, session: ToolSession) -> None:
    assert len(SLOW[name]) <= MAX_TEXT
    message = refused(session, SLOW[name])
    if message is not None:
        usable(message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from([call.name for call in VALID])
keys = st.sampled_from([key for call in VALID for key in call.arguments]) | st.text(max_size=8)


@settings(max_examples=200)
@given(name=names | st.text(max_size=80), arguments=st.dictionaries(keys, json_values, max_size=4))
def test_any_call_can_run_or_is_refused_in_words(session: ToolSession, name: str, arguments: dict[str, Any]) -> None:
    try:
        session.offered(ToolCall(name=name, arguments=arguments))
    except CallError as error:
        message = str(error)
        assert len(message) < 700 and "\n" not in message and message.encode()


def test_the_session_runs_nothing_that_it_refuses(session: ToolSession, tmp_path: Path) -> None:
    assert session.domain is not None
    before = session.domain.contents()
    for text in (
        CHANGES["argument left out"](random.Random(0), VALID[5]),
        CHANGES["doubled"](random.Random(0), VALID[5]),
    ):
        assert refused(session, text)
    assert session.domain.contents() == before
