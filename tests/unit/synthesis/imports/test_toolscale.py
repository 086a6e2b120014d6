"""ToolScale: published records load, ours go out and come back as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import ConfigError, DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.imports.export import export, record
from orchestra.synthesis.imports.importer import ExampleImporter
from orchestra.synthesis.imports.toolscale import ToolScale, read_tools
from orchestra.types import Category, Example, Preference, Provenance, ToolCall, ToolKind
from tests.support.worlds import example

DATA = Path(__file__).parent / "data"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["city", "amount", "x.y", ""])
"""Few, so that calls give one parameter values of different types."""
CALLS = st.builds(
    ToolCall, name=st.sampled_from(["search", "pay"]), arguments=st.dictionaries(NAMES | TEXT, JSON, max_size=3)
)


@st.composite
def examples(draw: st.DrawFn, number: int = 0) -> Example:
    wish = Preference(kind=draw(TEXT), words=draw(TEXT), outcome=1, compute=draw(st.floats(0, 1)), latency=0.05)
    base = example(
        f"e{number}-{draw(st.integers(0, 9))}",
        instruction=draw(TEXT),
        answer=draw(st.none() | TEXT),
        category=draw(st.sampled_from(Category)),
        preference=wish,
        golden_calls=tuple(draw(st.lists(CALLS, max_size=3))),
        communicate=tuple(draw(st.lists(TEXT, max_size=2))),
    )
    provenance = Provenance(source=draw(TEXT), licence="MIT", generator="x", seed=3, parent=draw(st.none() | TEXT))
    more = {"domain": draw(st.none() | TEXT), "entities": (draw(TEXT),), "provenance": provenance}
    return base.model_copy(update=more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round")


@settings(max_examples=60)
@given(st.lists(examples(), max_size=4))
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_ours_go_out_and_come_back_without_loss(
    folder: Path, importer: ExampleImporter, suffix: str, made: list[Example]
) -> None:
    write_jsonl(folder / "ours.jsonl", made)
    assert export(folder / "ours.jsonl", folder / f"out.{suffix}") == len(made)
    back = [row for _, row in ToolScale().load([folder / f"out.{suffix}"], importer)]
    assert [one.model_dump_json() for one in back if isinstance(one, Example)] == [
        one.model_dump_json() for one in made
    ]


def test_what_has_a_place_in_the_published_schema_stands_there_and_nowhere_else() -> None:
    calls = (ToolCall(name="pay", arguments={"amount": 3}),)
    made = example("e1", instruction="pay 3", domain="mock", golden_calls=calls, communicate=("paid",))
    row = record(made)
    assert row["id"] == "e1" and row["user_scenario"]["instructions"]["task_instructions"] == "pay 3"
    assert row["evaluation_criteria"]["communicate_info"] == ["paid"]
    assert row["evaluation_criteria"]["actions"] == [{"arguments": {"amount": 3}, "name": "pay", "action_id": "e1_0"}]
    published = {"id", "description", "user_scenario", "initial_state", "evaluation_criteria"}
    assert set(row) == {*published, "orchestra"}
    held = json.loads(row["orchestra"])
    assert held["arguments"] == {} and not {"id", "instruction", "domain"} & set(held["example"])


def test_the_exported_parquet_has_the_published_columns(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    calls = (ToolCall(name="pay", arguments={"amount": 3}), ToolCall(name="see", arguments={"city": "Norvik"}))
    write_jsonl(tmp_path / "a.jsonl", [example("e1", golden_calls=calls)])
    export(tmp_path / "a.jsonl", tmp_path / "a.parquet")
    ours = pq.read_schema(tmp_path / "a.parquet")
    theirs = pq.read_schema(DATA / "toolscale.parquet")
    assert ours.names == [*theirs.names, "orchestra"]
    for name in ("id", "description", "user_scenario", "initial_state"):
        assert ours.field(name).type == theirs.field(name).type
    action = ours.field("evaluation_criteria").type["actions"].type.value_type
    assert [field.name for field in action] == ["arguments", "name", "action_id"]
    assert [field.name for field in action["arguments"].type] == ["amount", "city"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_published_records_load_as_they_are(importer: ExampleImporter, suffix: str) -> None:
    taken = [row for _, row in ToolScale().load([DATA / f"toolscale.{suffix}"], importer) if isinstance(row, Example)]
    weather, finance = taken
    assert weather.id == "toolscale-10315" and weather.domain == "toolscale-weather"
    assert weather.category is Category.LOOKUP and finance.category is Category.CHANGE
    assert "picnic is in Norvik" in weather.instruction and "The wind" not in weather.instruction
    # Of the wide struct only what is the call's own; dates are text again.
    assert weather.verifier.golden_calls[0].arguments == {"city": "Norvik", "start_date": "2025-03-01"}
    assert weather.verifier.communicate == ("14 mm",) and weather.verifier.kind == "database"
    assert finance.verifier.golden_calls[1].arguments == {
        "account_id": "A-7", "amount": 25.5, "urgent": True, "start_date": "2025-03-02T14:30:00",
        "tags": ["rent", "march"],
    }  # fmt: skip
    offered = {spec.name: spec for spec in finance.toolbox if spec.kind is ToolKind.DOMAIN}
    assert set(offered) == {"get_account", "schedule_transfer"}
    properties: Any = offered["schedule_transfer"].parameters["properties"]
    assert properties["amount"] == {"type": "number"} and properties["urgent"] == {"type": "boolean"}
    assert finance.provenance.parent == "77" and finance.provenance.licence == "other"


def test_what_cannot_be_checked_here_is_refused(importer: ExampleImporter) -> None:
    rows = [row for _, row in ToolScale().load([DATA / "toolscale.jsonl"], importer)]
    assert {row.row: row.reason for row in rows if isinstance(row, Refused)} == {
        "78": "no golden calls",
        "79": "it has assertions in words, which no rule can check",
        "80": "a golden call is the user's own",
        "81": "it starts from a state of its own",
    }


def test_the_tools_own_schema_says_which_null_is_an_argument(tmp_path: Path, importer: ExampleImporter) -> None:
    nullable = {"memo": {"type": ["string", "null"]}, "city": {"type": "string"}}
    tool = {"name": "get_account", "description": "One account.", "parameters": {"properties": nullable}}
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": tool}]), encoding="utf-8")
    loader = ToolScale(tools=read_tools(tmp_path / "tools.json"))
    finance = [row for _, row in loader.load([DATA / "toolscale.parquet"], importer)][1]
    assert isinstance(finance, Example)
    assert finance.verifier.golden_calls[0].arguments == {"account_id": "A-7", "memo": None}
    assert {spec.description for spec in finance.toolbox if spec.name == "get_account"} == {"One account."}


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "x"},
        {"name": ["a"], "parameters": {}},
        {"name": "a", "parameters": "x"},
        {"name": "a", "description": 5, "parameters": {}},
        {"function": "a"},
    ],
)
def test_what_is_no_function_is_named(tmp_path: Path, tool: dict[str, object]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([tool]), encoding="utf-8")
    with pytest.raises(DataError, match=r"tools.json:1: not a function — write \{name"):
        read_tools(tmp_path / "tools.json")


def test_a_row_that_cannot_be_read_names_file_line_and_field(tmp_path: Path, importer: ExampleImporter) -> None:
    first, second, *_ = (DATA / "toolscale.jsonl").read_text(encoding="utf-8").splitlines()
    broken = json.loads(second)
    broken["evaluation_criteria"]["actions"][1]["name"] = None
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{first}\n{json.dumps(broken)}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"bad.jsonl:2: field evaluation_criteria.actions.1.name: .*string"):
        list(ToolScale().load([path], importer))
    rows = [row for _, row in ToolScale(lenient=True).load([path], importer)]
    assert isinstance(rows[0], Example) and isinstance(rows[1], Refused)
    broken["evaluation_criteria"]["actions"][1]["name"] = "no tool's name"
    path.write_text(json.dumps(broken) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"bad.jsonl:1: field name: String should match"):
        list(ToolScale().load([path], importer))


@pytest.mark.parametrize(
    "held", ["", "{}", "[]", '{"example": {}, "arguments": {}}', '{"example": 3, "arguments": {}}']
)
def test_a_damaged_key_of_ours_is_one_line(tmp_path: Path, importer: ExampleImporter, held: str) -> None:
    row = record(example()) | {"orchestra": held}
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"bad.jsonl:1: field .* — export it again"):
        list(ToolScale().load([tmp_path / "bad.jsonl"], importer))


def test_only_examples_are_exported(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [example()])
    with pytest.raises(ConfigError, match=r"a.txt: no such format"):
        export(tmp_path / "a.jsonl", tmp_path / "a.txt")
    (tmp_path / "b.jsonl").write_text((tmp_path / "a.jsonl").read_text() + '{"id": "e2"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"b.jsonl:2: field kind: Field required"):
        export(tmp_path / "b.jsonl", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists() and read_examples(tmp_path / "a.jsonl") == [example()]
