"""Arguments against schemas, also those of strangers: refusals in words, nothing fetched, nothing runs for ever."""

import urllib.request
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import ToolError
from orchestra.tools.arguments import checker, refusal
from orchestra.types import ToolSpec
from tests.support.worlds import catalogue


def spec(properties: dict[str, Any], **more: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, **more}
    return catalogue().spec("search").model_copy(update={"name": "t", "parameters": parameters})


def said(tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
    problem = checker(tool)(arguments)
    return None if problem is None else str(refusal(tool, problem))


ITEM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "string"}, None, "t: x must be a string, not null; it takes x (string, may be left out)"),
        ({"type": "string"}, True, "t: x must be a string, not true"),
        ({"type": ["integer", "null"]}, "a", 't: x must be an integer or null, not "a"; it takes x (integer or null'),
        ({"type": "string"}, {"a": [None]}, 't: x must be a string, not {"a": [null]}'),
        ({"type": "string"}, ["long"] * 99, 't: x must be a string, not ["long", "long"'),
        ({"enum": ["a", 1, None]}, "b", 't: x must be one of "a", 1, null, not "b"'),
        ({"const": "a"}, "b", 't: x must be "a", not "b"'),
        ({"type": "string", "maxLength": 3}, "abcd", 't: x must have no more characters than 3, not "abcd"'),
        ({"type": "integer", "minimum": 1}, 0, "t: x must be at least 1, not 0"),
        ({"type": "array", "items": ITEM}, [{"n": 1}, {"n": 0}], "t: x.1.n must be at least 1, not 0"),
        ({"type": "array", "items": ITEM}, [{}], "t: x.0 needs n"),
        ({"anyOf": [{"type": "string"}, ITEM]}, 1, "t: x 1 does not fit anyOf [{"),
        ({"type": "array", "uniqueItems": True}, [1, 1], "t: x [1, 1] does not fit uniqueItems true"),
        ({"multipleOf": 0.5}, 10**300, None),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_write(schema: Any, value: Any, words: str | None) -> None:
    found = said(spec({"x": schema}), {"x": value})
    if words is None:
        assert found is None
    else:
        assert found is not None and found.startswith(words) and len(found) < 250


PLAIN = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array"])},
    optional={"maxLength": st.integers(0, 3), "description": st.just("d"), "minimum": st.integers(0, 2)},
)
VALUES = st.one_of(st.text(max_size=5), st.integers(-2, 2), st.floats(), st.booleans(), st.none(), st.lists(st.none()))
NAMES = st.sampled_from(["x", "y", "z"])


@given(
    properties=st.dictionaries(NAMES, PLAIN, max_size=3),
    more=st.fixed_dictionaries(
        {},
        optional={
            "required": st.lists(NAMES, unique=True),
            "additionalProperties": st.booleans(),
            "maxProperties": st.integers(0, 2),
        },
    ),
    arguments=st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_the_short_way_passes_only_what_jsonschema_passes(
    properties: dict[str, Any], more: dict[str, Any], arguments: dict[str, Any]
) -> None:
    tool = spec(properties, **more)
    fits = jsonschema.Draft202012Validator(tool.parameters).is_valid(arguments)
    assert (checker(tool)(arguments) is None) == fits


def test_the_short_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    check = checker(spec({"x": {"type": "string", "maxLength": 9}}, required=["x"], additionalProperties=False))
    with monkeypatch.context() as patch:
        patch.setattr(jsonschema.exceptions, "best_match", None)
        assert check({"x": "short"}) is None
    assert check({"x": "much too long"}) is not None


def test_a_long_account_of_a_tool_is_cut() -> None:
    found = said(spec({f"argument_{n}": {"type": "string"} for n in range(99)}, required=["argument_7"]), {})
    assert found is not None and found.startswith("t: needs argument_7; it takes argument_0 (string, may")
    assert found.endswith("…") and len(found) < 400


def test_no_schema_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: Any, **__: Any) -> None:
        raise AssertionError("a schema sent us somewhere")

    monkeypatch.setattr(urllib.request, "urlopen", fetched)
    for address in ("http://127.0.0.1:9/schema.json", "file:///etc/passwd", "#/$defs/nowhere"):
        with pytest.raises(ToolError, match="cannot be followed"):
            said(spec({"x": {"$ref": address}}), {"x": 1})


def test_references_inside_a_schema_are_followed() -> None:
    found = said(spec({"x": {"$ref": "#/$defs/item"}}, **{"$defs": {"item": ITEM}}), {"x": {}})
    assert found is not None and found.startswith("t: x needs n")


@pytest.mark.timeout(60)
def test_no_stranger_s_expression_is_run() -> None:
    """`(a+)+$` takes longer than anybody's life; the server that wrote it may try."""
    evil = {"x": {"type": "string", "pattern": "(a+)+$"}}
    assert said(spec(evil, patternProperties={"(b+)+$": {}}, additionalProperties=False), {"x": "a" * 50 + "!"}) is None
    assert said(spec(evil, unevaluatedProperties=False), {"x": "a" * 50 + "!", "b" * 50 + "!": 1}) is None
    # An argument of that name is checked like any other.
    assert said(spec({"pattern": {"type": "string"}}), {"pattern": 1}) is not None


@pytest.mark.parametrize("broken", [{"type": "strng"}, {"allOf": 3}, {"required": "x"}])
def test_what_is_no_schema_is_the_tool_s_fault(broken: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="its schema is none"):
        said(spec({}, **broken), {})


def test_a_schema_that_never_ends_is_the_tool_s_fault() -> None:
    with pytest.raises(ToolError, match="cannot be followed"):
        said(spec({"x": {"$ref": "#/properties/x"}}), {"x": 1})
