"""Schemas are looked over before a tool joins the catalogue; the shipped tools are functions in OpenAI's sense."""

from typing import Any

import pytest

from orchestra.domains.spec import ToolsFile, read_yaml
from orchestra.rollout.render import tool_dict
from orchestra.tools.catalogue.schema import schema_problem
from tests.support.worlds import ROOT, catalogue

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
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
