"""Schemas are looked over before a tool joins the catalogue; the shipped tools are functions in OpenAI's sense."""

import random
from decimal import Decimal
from typing import Any

import pytest

from orchestra.domains.spec import ToolsFile, read_yaml
from orchestra.errors import ToolError
from orchestra.rollout.render import tool_dict
from orchestra.tools.arguments import checker
from orchestra.tools.catalogue.schema import schema_problem
from orchestra.types import Price, ToolKind, ToolSpec
from tests.support.generated import seeds
from tests.support.worlds import ROOT, catalogue

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


LOOP = {"$ref": "#/$defs/b"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "string"}},
        {"type": "object", "required": ["a"], "patternProperties": {"a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {}},
    ],
)
def test_schemas_that_servers_write(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "not of type object"),
        ({"type": "array"}, "not of type object"),
        ({"type": "object", "$schema": 3}, "not of type object"),
        ({"type": "object", "properties": 5}, "properties: 5 is not of type 'object'"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "no JSON schema: properties.a.type"),
        ({"type": "object", "properties": {"a": {"$ref": "https://x.org/s"}}}, "another document, https://x.org/s"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "what it does not hold, #/$defs/b"),
        ({"type": "object", "allOf": [{"$ref": "#"}]}, "refers to itself without end"),
        (
            {"type": "object", "properties": {"a": LOOP}, "$defs": {"b": {"$ref": "#/$defs/a"}, "a": LOOP}},
            "refers to itself without end",
        ),
        (
            {"type": "object", "properties": {"a": LOOP}, "$defs": {"b": {"anyOf": [{"type": "null"}, LOOP]}}},
            "refers to itself without end",
        ),
        ({"type": "object", "x": 5, "$ref": "#/x"}, "5 is not of type 'object', 'boolean'"),
        ({"type": "object", "x": {"required": 5}, "properties": {"a": {"$ref": "#/x"}}}, "no JSON schema: required"),
        ({"type": "object", "x": {"$ref": "#/y"}, "y": {"allOf": 5}, "$ref": "#/x"}, "5 is not of type 'array'"),
        ({"type": "object", "required": ["txt"], "additionalProperties": False}, "it requires txt, which is none"),
    ],
)
def test_what_no_call_should_be_the_first_to_find_out(schema: dict[str, Any], said: str) -> None:
    problem = schema_problem(schema)
    assert problem is not None and said in problem


def test_every_shipped_tool_is_a_function() -> None:
    shipped = catalogue()
    for spec in (shipped.spec(name) for name in shipped.entries):
        written = tool_dict(spec)
        assert written["type"] == "function" and set(written["function"]) == {"name", "description", "parameters"}
        assert schema_problem(spec.parameters) is None and spec.description


def test_every_domain_tool_is_one() -> None:
    files = sorted((ROOT / "data/domains").glob("*/tools.yaml"))
    tools = [tool for file in files for tool in read_yaml(file, ToolsFile).tools]
    assert len(tools) > 20 and [tool.name for tool in tools if schema_problem(tool.schema_object)] == []


def bomb(depth: int, word: str, rng: random.Random) -> dict[str, Any]:
    """A schema of `depth` lines whose check takes two to that power of steps."""
    lines = {
        f"a{number}": {word: [{"$ref": f"#/$defs/a{number + 1}"}, {"$ref": f"#/$defs/a{number + 1}"}]}
        for number in range(depth)
    }
    last = {"type": "object"} if word != "oneOf" else {"type": rng.choice(["object", "string"])}
    return {"type": "object", "$defs": {**lines, f"a{depth}": last}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize("seed", seeds(40, 3))
def test_no_schema_takes_long_to_look_over(seed: int) -> None:
    """The gateway looks over what callers send, and an import what a foreign server says."""
    rng = random.Random(seed)
    schema = bomb(rng.randint(30, 60), rng.choice(["allOf", "oneOf"]), rng)
    assert "takes more than 2000 steps" in (schema_problem(schema) or "")


def test_the_problems_that_a_schema_tells_are_bounded_too() -> None:
    """Few rules can tell of many names each, at once or in a call."""
    schema = bomb(10, "allOf", random.Random(0))
    schema["$defs"]["a10"] = {"required": [f"n{number}" for number in range(300)]}
    assert "takes more than 2000 steps" in (schema_problem(schema) or "")
    schema["properties"] = {"a": {"$ref": schema.pop("$ref")}}
    assert schema_problem(schema) is None
    with pytest.raises(ToolError, match="its schema cannot be followed"):
        checker(tool(schema))({"a": {}})


@pytest.mark.parametrize("seed", range(40))
def test_a_dialect_within_a_schema_brings_no_rule_back(seed: int) -> None:
    """A regular expression that never ends, under the name of another draft: the process would stand still."""
    rng = random.Random(seed)
    evil: dict[str, Any] = {
        "$schema": f"http://json-schema.org/draft-0{rng.choice('4673')}/schema#",
        "pattern": "^(a+)+$",
    }
    for _ in range(rng.randint(0, 4)):
        evil = rng.choice([{"properties": {"a": evil}}, {"allOf": [evil]}, {"anyOf": [evil]}, {"items": evil}])
    parameters = {"type": "object", "properties": {"a": evil}}
    assert schema_problem(parameters) is None
    value: Any = "a" * 60 + "!"
    check = checker(tool(parameters))
    for shape in (value, [value], {"a": value}, {"a": {"a": [value]}}, {"a": {"a": {"a": value}}}):
        assert check({"a": shape}) is None


def test_arguments_that_make_a_schema_repeat_itself_end_in_an_error() -> None:
    twice = {"properties": {"a": {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}}
    check = checker(tool({"type": "object", "$defs": {"n": twice}, "$ref": "#/$defs/n"}))
    arguments: dict[str, Any] = {}
    for _ in range(60):
        arguments = {"a": arguments}
    with pytest.raises(ToolError, match="its schema cannot be followed"):
        check(arguments)


def tool(parameters: dict[str, Any]) -> ToolSpec:
    return ToolSpec(
        name="t", tool="t", kind=ToolKind.BASIC, description="", parameters=parameters, price=Price(),
        call_usd=Decimal(0), latency_s=1.0,
    )  # fmt: skip
