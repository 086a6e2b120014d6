"""Questions from files: GeneralThought in its published schema, any other, and the offline corpus."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from orchestra.errors import DataError
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.filters.filters import Duplicates
from orchestra.synthesis.imports.corpus import corpus_questions
from orchestra.synthesis.imports.importer import ExampleImporter
from orchestra.synthesis.imports.questions import GENERAL_THOUGHT, Fields, Questions
from orchestra.types import Category, Example, ToolKind
from orchestra.validation.gate.licences import Licences
from orchestra.validation.replay import replay
from tests.support.worlds import ROOT, toolkit

DATA = Path(__file__).parent / "data"
THOUGHTS = Questions(GENERAL_THOUGHT, "GeneralThought-430K")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_general_thought_in_its_published_schema(importer: ExampleImporter, suffix: str) -> None:
    path = DATA / f"general_thought.{suffix}"
    rows = list(THOUGHTS.load([path], importer))
    assert [where for where, _ in rows] == [f"{path}:{number}" for number in range(1, 8)]
    taken = {row.provenance.parent: row for _, row in rows if isinstance(row, Example)}
    assert list(taken) == ["2501", "2502", "2505"]
    sums, science, unknown = taken.values()
    assert sums.id == "GeneralThought-430K-2501" and sums.category is Category.TOPIC and sums.topic == "math"
    assert (sums.verifier.kind, sums.verifier.answer) == ("numeric", "120")
    assert (science.verifier.kind, science.verifier.answer, science.topic) == ("exact", "Gravity", "physics")
    assert sums.provenance.source == "GeneralThought-430K/Invented/Sums" and sums.provenance.licence == "MIT"
    assert unknown.provenance.licence == "unknown" and unknown.topic is None
    assert all(any(spec.kind is ToolKind.EXPERT for spec in row.toolbox) for row in taken.values())
    assert {row.row: row.reason for _, row in rows if isinstance(row, Refused)} == {
        "2501": "asked before",
        "2503": "no rule can check the answer",
        "2504": "it depends on earlier messages",
        "2506": "no answer",
    }


def test_both_formats_give_the_same_examples(importer: ExampleImporter) -> None:
    one, other = (
        [row for _, row in THOUGHTS.load([DATA / f"general_thought.{suffix}"], importer)]
        for suffix in ("jsonl", "parquet")
    )
    assert one == other


def test_a_judge_can_take_what_no_rule_checks(importer: ExampleImporter) -> None:
    judged = Questions(GENERAL_THOUGHT, "GeneralThought-430K", judged=True)
    rows = [row for _, row in judged.load([DATA / "general_thought.jsonl"], importer) if isinstance(row, Example)]
    assert [row.provenance.parent for row in rows if row.verifier.kind == "judge"] == ["2503"]


def test_any_file_of_questions_with_its_own_field_names(tmp_path: Path, importer: ExampleImporter) -> None:
    rows = [{"q": "How many legs has a Fenra?", "a": 6, "n": 1, "terms": "MIT", "ours": [1]}, {"q": "Who?", "a": None}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    loader = Questions(Fields(question="q", answer="a", id="n", licence="terms"), "own", licence="CC0-1.0")
    (_, first), (_, second) = loader.load([tmp_path / "own.jsonl"], importer)
    assert isinstance(first, Example) and first.id == "own-1" and first.verifier.answer == "6"
    assert first.provenance.licence == "MIT"
    assert isinstance(second, Refused) and second.reason == "no answer" and second.row == "own-2"


def test_an_example_depends_on_its_own_row_only(tmp_path: Path, importer: ExampleImporter) -> None:
    text = (DATA / "general_thought.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "turned.jsonl").write_text("\n".join(reversed(text)), encoding="utf-8")
    one, other = (
        {row.id: row for _, row in THOUGHTS.load([path], importer) if isinstance(row, Example)}
        for path in (DATA / "general_thought.jsonl", tmp_path / "turned.jsonl")
    )
    assert one == other and len(one) == 3


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "Who?"}, r"own.jsonl:2: field question: missing — name it with --question \(there are: text\)"),
        ({"question": ["Who?"], "answer": "x"}, r"own.jsonl:2: field question: not a text but list"),
        ({"question": "Who?", "answer": True}, r"own.jsonl:2: field answer: not a text but bool"),
    ],
)
def test_a_row_that_cannot_be_read_names_file_line_and_field(
    tmp_path: Path, importer: ExampleImporter, row: dict[str, object], said: str
) -> None:
    good = {"question": "Who leads Fenra?", "answer": "Tesk"}
    (tmp_path / "own.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        list(Questions(Fields(), "own").load([tmp_path / "own.jsonl"], importer))
    rows = [row for _, row in Questions(Fields(), "own", lenient=True).load([tmp_path / "own.jsonl"], importer)]
    assert isinstance(rows[0], Example) and isinstance(rows[1], Refused) and "cannot be read: field" in rows[1].reason


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("named", "option"), [("licence", "--licence-field"), ("topic", "--topic"), ("id", "--id")])
def test_a_named_field_that_is_not_there_is_an_error(
    tmp_path: Path, importer: ExampleImporter, suffix: str, named: str, option: str
) -> None:
    path = tmp_path / f"own.{suffix}"
    table = pd.DataFrame([{"question": "Who leads Fenra?", "answer": "Tesk", "license": "proprietary"}])
    if suffix == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        getattr(table, f"to_{suffix}")(path, index=False)

    def loaded(field: str) -> Example | Refused:
        fields = replace(Fields(), **{named: field})  # type: ignore[arg-type]  # A name each.
        return next(row for _, row in Questions(fields, "own", licence="MIT").load([path], importer))

    with pytest.raises(
        DataError, match=rf"own\.{suffix}:\d: field terms: missing — name it with {option} \(there are:"
    ):
        loaded("terms")
    there = loaded("license")
    assert isinstance(there, Example)
    assert there.provenance.licence == ("proprietary" if named == "licence" else "MIT")


def test_a_wrong_field_of_parquet_is_told_all_columns(tmp_path: Path, importer: ExampleImporter) -> None:
    pd.DataFrame([{"prompt": "Who?", "answer": "Tesk", "n": 1}]).to_parquet(tmp_path / "own.parquet", index=False)
    with pytest.raises(DataError, match=r"with --question \(there are: prompt, answer, n\)"):
        list(Questions(Fields(), "own").load([tmp_path / "own.parquet"], importer))


def test_files_of_one_name_need_a_field_of_ids(tmp_path: Path, importer: ExampleImporter) -> None:
    paths = [tmp_path / folder / "part.csv" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        row = f"Who leads {path.parent.name}?,Tesk,{path.parent.name}1"
        path.write_text(f"question,answer,n\n{row}\n", encoding="utf-8")
    with pytest.raises(DataError, match="two files are called part, which begins the ids of their rows — rename one"):
        list(Questions(Fields(), "own").load(paths, importer))
    rows = Questions(Fields(id="n"), "own").load(paths, importer)
    assert [row.id for _, row in rows if isinstance(row, Example)] == ["own-a1", "own-b1"]


def test_a_row_whose_licence_is_empty_has_that_of_the_data_set(tmp_path: Path, importer: ExampleImporter) -> None:
    (tmp_path / "own.csv").write_text("question,answer,terms\nWho leads Fenra?,Tesk,\n", encoding="utf-8")
    loader = Questions(Fields(licence="terms"), "own", licence="MIT")
    ((_, row),) = loader.load([tmp_path / "own.csv"], importer)
    assert isinstance(row, Example) and row.provenance.licence == "MIT"


DIFFERENT = [
    *("What is 5+3?", "What is 5-3?", "What is 5*3?", "What is -5+3?", "What is (5 + 3) * 2?", "What is 5 + (3 * 2)?"),
    *("What is .5 + 1?", "What is 5 + 1?", "What is 5² + 1?", "What is 52 + 1?", "Is 3 < 5?", "Is 3 > 5?"),
    *("Who created C?", "Who created C++?", "Who created C#?", "What does 😀 mean?", "What does 😢 mean?"),
    *("दिन का अर्थ क्या है?", "दान का अर्थ क्या है?"),
]


def test_only_what_asks_the_same_was_asked_before(tmp_path: Path, importer: ExampleImporter) -> None:
    again = [
        "what is 5\N{MINUS SIGN}3",
        "  WHO created   C# ?",
        "\N{FULLWIDTH LATIN CAPITAL LETTER W}hat does 😀 mean.",
        "What is: 5+3?!",
    ]
    rows = [{"question": question, "answer": "Tesk"} for question in DIFFERENT + again]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = [row for _, row in Questions(Fields(), "own").load([tmp_path / "own.jsonl"], importer)]
    kept, refused = found[: len(DIFFERENT)], found[len(DIFFERENT) :]
    assert [row.instruction for row in kept if isinstance(row, Example)] == DIFFERENT
    assert [row.reason for row in refused if isinstance(row, Refused)] == ["asked before"] * len(again)
    # The filters of a set say the same of what an import kept.
    duplicates = Duplicates()
    assert {duplicates.why(row) for row in kept if isinstance(row, Example)} == {None}


def test_a_row_without_an_accepted_licence_leaves_its_question_to_a_later_one(
    tmp_path: Path, importer: ExampleImporter
) -> None:
    rows = "Who leads Fenra?,Tesk,proprietary\nWho leads Fenra?,Tesk,MIT\nWho leads Fenra?,Tesk,MIT\n"
    (tmp_path / "own.csv").write_text(f"question,answer,terms\n{rows}", encoding="utf-8")
    loader = Questions(Fields(licence="terms"), "own", licences=Licences.load(ROOT / "data/licences.yaml"))
    _, good, again = (row for _, row in loader.load([tmp_path / "own.csv"], importer))
    assert isinstance(good, Example) and good.provenance.licence == "MIT"
    assert isinstance(again, Refused) and again.reason == "asked before"


def test_the_offline_corpus_gives_questions_that_one_search_answers(tmp_path: Path, importer: ExampleImporter) -> None:
    records = [
        {"id": "1", "title": "Norvik year", "text": "The year of Norvik is 1911."},
        {"id": "2", "title": "Norvik", "text": "Norvik is a nice place."},
    ]
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (_, made), (_, refused) = corpus_questions([path], importer, "corpus", "Apache-2.0")
    assert isinstance(made, Example) and "Norvik" in made.instruction and made.verifier.answer == "1911"
    assert isinstance(refused, Refused) and refused.row == "2"
    kit = toolkit(tmp_path)
    (tmp_path / "corpus.jsonl").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert asyncio.run(replay(made, kit)) is None

    def answered(answer: str) -> str | None:
        verifier = made.verifier.model_copy(update={"answer": answer})
        return asyncio.run(replay(made.model_copy(update={"verifier": verifier}), kit))

    assert answered("the year of Norvik") is None, "it may have several words"
    assert answered("191") == answered("a year") == answered("") == "the answer is not in the last observation"
    path.write_text('{"id": "1", "title": "Norvik"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"facts.jsonl:1: field text: Field required"):
        list(corpus_questions([path], importer, "corpus", "Apache-2.0"))


def test_a_number_of_json_is_read_as_people_write_it(tmp_path: Path, importer: ExampleImporter) -> None:
    path, loader = tmp_path / "a.jsonl", Questions(Fields(), "own")
    path.write_text('{"question": "how small?", "answer": 1e-7}\n{"question": "how many?", "answer": 1e22}\n')
    verifiers = [row.verifier for _, row in loader.load([path], importer) if isinstance(row, Example)]
    assert [(one.kind, one.answer) for one in verifiers] == [("numeric", "0.0000001"), ("numeric", "1" + 22 * "0")]
    path.write_text('{"question": "how much?", "answer": 1e400}\n')
    with pytest.raises(DataError, match="field answer: not a text but inf"):
        list(loader.load([path], importer))
