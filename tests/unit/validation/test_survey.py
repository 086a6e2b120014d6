"""Rows of the files: the same for any number of processes; what each row says."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.types import Category, Example, ToolCall, ToolKind
from orchestra.validation.rows import COLUMNS, PROBLEMS, Flattener, Row
from orchestra.validation.survey import cut, survey
from tests.support.worlds import ROOT, catalogue, example, toolkit

ABSENT = "not in world.domains: put its folder into data/domains and name it there"
SUM = (ToolCall(name="calculator", arguments={"expression": "37*24"}),)


def row(flattener: Flattener, made: Example) -> Row:
    return flattener.part("train", 1, [made.model_dump_json()]).rows[0]


def problems(folder: Path, made: Example) -> dict[str, str]:
    found = row(Flattener(toolkit(folder)), made)
    return {name: found[name] for name in PROBLEMS if found[name] is not None}


def domain_example(**changes: Any) -> Example:
    from orchestra.domains.engine import load_domain

    mock = load_domain(ROOT / "data/domains/mock")
    specs = [catalogue().domain_spec("mock", tool) for tool in mock.tools.values()]
    calls = (ToolCall(name="get_book", arguments={"book": 12}),)
    base = {
        "instruction": "what is book 12?",
        "kind": "database",
        "answer": None,
        "domain": "mock",
        "toolbox": specs,
        "golden_calls": calls,
    }
    return example(category=Category.LOOKUP, **(base | {"communicate": ("Basil",)} | changes))


def test_any_number_of_processes_finds_the_same(tmp_path: Path) -> None:
    sums = [example(f"e{n}", golden_calls=SUM).model_dump_json() for n in range(10)]
    (tmp_path / "train.jsonl").write_text("\n".join([*sums, "{", domain_example().model_dump_json()]) + "\n")
    (tmp_path / "heldout.jsonl").write_text("\n".join(sums[:4]))
    pieces = cut({split: tmp_path / f"{split}.jsonl" for split in ("train", "heldout")}, fix="", lines=3)
    done: list[int] = []
    one = survey(pieces, Flattener(toolkit(tmp_path)), on_progress=done.append)
    two = survey(pieces, Flattener(toolkit(tmp_path)), workers=2)
    assert one.table.equals(two.table) and one.uses == two.uses
    assert one.table.column_names == list(COLUMNS) and sum(done) == 16
    assert one.table["row"].to_pylist() == [f"train:{n}" for n in range(1, 13)] + [f"heldout:{n}" for n in range(1, 5)]
    assert one.table["leak"].to_pylist() == ["also held out: what is 37*24?"] * 10 + [None] * 6
    assert one.uses["train"].needed == {"calculator": 10, "domain:mock/get_book": 1}
    assert one.uses["heldout"].offered["gpt-5"] == 4


def test_the_gate_speaks_in_its_column(tmp_path: Path) -> None:
    flattener = Flattener(toolkit(tmp_path), gate=lambda made: [f"it overlaps {one.id}" for one in made])
    assert row(flattener, example(golden_calls=SUM))["gate_problem"] == "it overlaps e1"


def test_what_does_not_exist_is_a_reference_problem_and_is_not_called(tmp_path: Path) -> None:
    calculator = catalogue().spec("calculator")
    strange = calculator.model_copy(update={"tool": "abacus"})
    expert = calculator.model_copy(update={"kind": ToolKind.EXPERT})
    tool = domain_example().toolbox[0]
    cases = {
        "the catalogue has no basic tool abacus": example(toolbox=[strange], golden_calls=SUM),
        "the catalogue has no expert tool calculator": example(toolbox=[expert], golden_calls=SUM),
        f"the domain bank is {ABSENT}": domain_example(domain="bank"),
        f"{tool.tool} is not of the domain none": example(toolbox=[calculator, tool], golden_calls=SUM),
        "the domain mock has no tool fly": domain_example(
            toolbox=[*domain_example().toolbox, tool.model_copy(update={"name": "fly", "tool": "domain:mock/fly"})]
        ),
        "kind domain and domain none do not go together": domain_example().model_copy(update={"domain": None}),
    }
    for reason, made in cases.items():
        assert problems(tmp_path, made) == {"reference_problem": reason}


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        ("numeric", "nan", "is no number"),
        ("numeric", "1_000", "is no number"),
        ("numeric", "١٢", "is no number"),
        ("exact", "?", "nothing but punctuation"),
        ("exact", "€", "nothing but punctuation"),
    ],
)
def test_an_answer_that_decides_nothing_is_a_problem(tmp_path: Path, kind: str, answer: str, said: str) -> None:
    assert said in problems(tmp_path, example(kind=kind, answer=answer))["answer_problem"]


def test_a_number_with_commas_is_an_answer(tmp_path: Path) -> None:
    assert "answer_problem" not in problems(tmp_path, example(kind="numeric", answer="1,234"))


@pytest.mark.parametrize(("answer", "tolerance", "allowed"), [("5", 5, True), ("5", 5.1, False), ("0.2", 1, True)])
def test_a_tolerance_that_lets_any_number_pass_is_a_problem(
    tmp_path: Path, answer: str, tolerance: float, allowed: bool
) -> None:
    made = example(kind="numeric", answer=answer)
    made = made.model_copy(update={"verifier": made.verifier.model_copy(update={"tolerance": tolerance})})
    assert ("answer_problem" not in problems(tmp_path, made)) is allowed


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"type": "whole"}}}, "no JSON schema: properties.a.type: "),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "refers to what it does not hold"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/a"}}}, "refers to another document"),
        ({"type": "array"}, "not of type object"),
        ({"properties": {"a": {"type": "string"}}}, None),
        ({}, None),
    ],
)
def test_a_tool_whose_schema_describes_no_call_is_a_problem(
    tmp_path: Path, schema: dict[str, Any], said: str | None
) -> None:
    made = example(golden_calls=SUM)
    calculator, *others = made.toolbox
    tool = calculator.model_copy(update={"name": "broken", "parameters": schema})
    found = problems(tmp_path, made.model_copy(update={"toolbox": (calculator, *others, tool)}))
    assert found == {} if said is None else said in found["toolbox_problem"]


def test_golden_calls_are_executed(tmp_path: Path) -> None:
    assert problems(tmp_path, example(golden_calls=SUM)) == {} == problems(tmp_path, domain_example())
    lends = ToolCall(name="lend_book", arguments={"book": 12, "reader": "Mirel"})
    assert problems(tmp_path, domain_example(golden_calls=(lends,), communicate=())) == {}, "a change needs no answer"
    cases: dict[str, dict[str, Any]] = {
        "get_book refuses: error: there is no book 9999": {
            "golden_calls": (ToolCall(name="get_book", arguments={"book": 9999}),)
        },
        "the known solution does not solve it: the answer does not mention Basil": {"answer": "Tesk"},
        "it is solved by doing nothing": {"communicate": ()},
    }
    for reason, changes in cases.items():
        assert problems(tmp_path, domain_example(**changes)) == {"golden_problem": reason}


def test_a_line_that_cannot_be_read_says_only_that(tmp_path: Path) -> None:
    found = Flattener(toolkit(tmp_path)).part("train", 7, [json.dumps({"id": 1})]).rows[0]
    told = {name: value for name, value in found.items() if value is not None}
    assert set(told) == {"row", "split", "schema_problem"} and told["row"] == "train:7"
