"""The gate: what is refused, why, and what its report says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ConfigError, DataError
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.imports.importer import Outside
from orchestra.synthesis.imports.intake import take
from orchestra.types import Example, Provenance
from orchestra.validation.gate.decontamination import NOTHING, Gate, report
from orchestra.validation.gate.licences import Licences
from tests.support.worlds import ROOT, example

HLE = "Consider the invented group G of order twelve: how many of its elements commute with every other element of G?"
FRAMES = "In which year was the founder of the firm that makes the amber lamp called Borvane born?"
TAU = "You want to exchange the blue lamp of order 17 for a green one, and pay the difference by gift card."


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one question of each benchmark, in its published schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "data/protected"
    (folder / "tau2/retail").mkdir(parents=True)
    (tmp_path / "data/licences.yaml").write_bytes((ROOT / "data/licences.yaml").read_bytes())
    hle = {"id": "h1", "question": HLE, "image": "", "answer": "2", "answer_type": "exactMatch", "category": "Math"}
    pq.write_table(pa.Table.from_pylist([hle]), folder / "hle.parquet")
    (folder / "frames.tsv").write_text(f"Prompt\tAnswer\treasoning_types\n{FRAMES}\t1911\tmulti\n", encoding="utf-8")
    told = {"task_instructions": TAU, "domain": "retail", "reason_for_call": "Exchange.", "known_info": None}
    task = {"id": "0", "user_scenario": {"instructions": told}, "evaluation_criteria": {"actions": []}}
    (folder / "tau2/retail/tasks.json").write_text(json.dumps([task]), encoding="utf-8")
    (folder / "tau2/retail/split_tasks.json").write_text('{"train": ["0"]}', encoding="utf-8")
    (folder / "README.md").write_text("# no questions", encoding="utf-8")
    return tmp_path


def of(instruction: str, name: str = "e1", licence: str = "Apache-2.0", source: str = "synthetic") -> Example:
    provenance = Provenance(source=source, licence=licence, generator="x", seed=0, parent=f"{name}-parent")
    return example(name, instruction=instruction).model_copy(update={"provenance": provenance})


def test_rows_that_overlap_a_benchmark_are_refused(workspace: Path) -> None:
    gate = Gate.open(workspace)
    assert gate.checked_against == {"frames": 1, "hle": 1, "tau2": 1}
    assert gate.note == "checked against the questions of frames (1), hle (1), tau2 (1)"
    asked = [
        of(HLE.upper()),
        of(f"Quick: {FRAMES[:-6]} — I wonder"),
        of(TAU.replace(",", "").replace(" ", "\n")),
        of("how many elements has the invented group of order twelve?"),
    ]
    assert gate.refuse(asked) == ["it overlaps hle", "it overlaps frames", "it overlaps tau2", None]


def test_licences_are_read_in_any_spelling_and_by_source(tmp_path: Path) -> None:
    path = tmp_path / "licences.yaml"
    text = (ROOT / "data/licences.yaml").read_text(encoding="utf-8")
    path.write_text(text + "  - {id: other, sources: [elsewhere, nvidia/ToolScale]}\n", encoding="utf-8")
    licences = Licences.load(path)
    for name in ("Apache-2.0", "apache 2.0", "Apache License 2.0", "MIT License", "cc_by_4.0", "CC BY 4.0", "CC0"):
        assert licences.refuse(name, "any") is None, name
    for name in ("CC-BY-NC-4.0", "unknown", "", "licence", "GPL-3.0", "CC-BY-SA-4.0"):
        assert (licences.refuse(name, "any") or "").endswith("is not on the list"), name
    assert (
        licences.refuse("other", "nvidia/ToolScale") is None and licences.refuse("other", "nvidia/ToolScale/x") is None
    )
    assert licences.refuse("other", "nvidia/ToolScale2") == "the licence other is on the list for other sources only"


def judged(gate: Gate, rows: list[Example]) -> dict[str, Any]:
    refused = zip(rows, gate.refuse(rows), strict=True)
    return report(gate, ((why, row.provenance.source, row.id) for row, why in refused if why is not None))


def test_the_report_counts_and_names_by_reason_and_source_and_quotes_no_benchmark(workspace: Path) -> None:
    rows = [of(HLE, "a"), of(FRAMES, "b"), of(HLE, "c", source="book"), of("fine?", "d"), of("x", "e", "CC-BY-NC-4.0")]
    told = judged(Gate.open(workspace), rows)
    licence = "the licence CC-BY-NC-4.0 is not on the list"
    assert told["ids"] == {"it overlaps hle": ["a", "c"], "it overlaps frames": ["b"], licence: ["e"]}
    assert told["refused"] == {
        "it overlaps frames": {"synthetic": 1},
        "it overlaps hle": {"book": 1, "synthetic": 1},
        licence: {"synthetic": 1},
    }
    assert "commute" not in json.dumps(told)


def test_without_protected_files_the_report_says_so(workspace: Path) -> None:
    gate = Gate.open(workspace, protected=Path("data/none"))
    assert judged(gate, [of(HLE)]) == {"checked_against": {}, "note": NOTHING, "refused": {}, "ids": {}}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hle.jsonl", '{"text": "?"}', r"hle.jsonl:1: no field question, Prompt, instruction or user_scenario"),
        ("hle.jsonl", '{"question": "?"', r"hle.jsonl:1: not JSON"),
        (
            "tau2.json",
            '[{"id": 1, "user_scenario": {}}]',
            r"tau2.json:1: field user_scenario.instructions: Field required",
        ),
        ("hle.parquet", "PAR1", r"not a whole Parquet file"),
    ],
)
def test_a_gate_that_cannot_check_does_not_open(workspace: Path, name: str, text: str, said: str) -> None:
    (workspace / "data/protected" / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        Gate.open(workspace)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file"),
        ("licences: [{name: MIT}]", r"field licences.0.id: Field required"),
        ("licences: [", "not YAML"),
        ("licences: 2020-99-99", "month must be"),
    ],
)
def test_a_bad_list_of_licences_is_one_line(workspace: Path, text: str | None, said: str) -> None:
    path = workspace / "data/licences.yaml"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as error:
        Gate.open(workspace)
    assert "\n" not in str(error.value)


def test_what_is_taken_in_goes_through_the_gate(workspace: Path) -> None:
    rows: list[Outside] = [
        ("a.jsonl:1", of("who leads Fenra?", "a")),
        ("a.jsonl:2", of(HLE, "b")),
        ("a.jsonl:3", Refused("c", "synthetic", "no answer")),
    ]
    card = take(rows, Gate.open(workspace), workspace / "in/x.jsonl")
    assert card["examples"] == 1 and card["licences"] == {"Apache-2.0": 1} and card["generators"] == {"x, seed 0": 1}
    assert card["refused"] == {"it overlaps hle": {"synthetic": 1}, "no answer": {"synthetic": 1}}
    assert json.loads((workspace / "in/x.card.json").read_text(encoding="utf-8")) == card
    lines = (workspace / "in/x.refused.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"where": "a.jsonl:2", "row": "b-parent", "source": "synthetic", "reason": "it overlaps hle"},
        {"where": "a.jsonl:3", "row": "c", "source": "synthetic", "reason": "no answer"},
    ]
    assert Example.model_validate_json((workspace / "in/x.jsonl").read_text(encoding="utf-8")).id == "a"


def test_an_intake_that_breaks_off_leaves_nothing(workspace: Path) -> None:
    def rows() -> Iterator[Outside]:
        yield "a.jsonl:1", of("who leads Fenra?")
        raise DataError("broken", where="a.jsonl:2")

    with pytest.raises(DataError, match="broken"):
        take(rows(), Gate.open(workspace), workspace / "in/x.jsonl")
    assert list((workspace / "in").iterdir()) == []
    with pytest.raises(ConfigError, match="examples are JSON lines"):
        take([], Gate.open(workspace), workspace / "in/x.json")
