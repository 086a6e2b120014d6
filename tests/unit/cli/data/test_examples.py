"""`orchestra data`: what a person types, and the files and lines that come of it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.config.synthesis import MAX_OUTPUT_TOKENS
from orchestra.errors import DataError, OrchestraError
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT, printed

THOUGHTS = ROOT / "tests/unit/synthesis/imports/data/general_thought.parquet"
TOOLSCALE = ROOT / "tests/unit/synthesis/imports/data/toolscale.parquet"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copy(ROOT / "data/licences.yaml", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def orchestra(*arguments: str) -> str:
    """What `orchestra data …` prints."""
    return printed("data", *arguments)


def test_import_card_export_and_back(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(THOUGHTS, workspace / "thoughts.parquet")
    (workspace / "data/protected").mkdir()
    hle = {"question": "A tram covers 90 km in 45 minutes. What is its mean speed in km/h?"}
    (workspace / "data/protected/hle.jsonl").write_text(json.dumps(hle), encoding="utf-8")
    monkeypatch.chdir(workspace / "data")
    said = orchestra("import", "../thoughts.parquet", "--format", "general-thought", "--to", "imported/gt.jsonl")
    assert "examples: 1" in said and "it overlaps hle: GeneralThought-430K/Invented/Sums 1" in said
    assert "the licence unknown is not on the list: GeneralThought-430K 1" in said and "asked before" in said
    monkeypatch.chdir(workspace)
    refused = (workspace / "data/imported/gt.refused.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(refused) == 6 and json.loads(refused[0])["where"] == "thoughts.parquet:1"
    card = json.loads(orchestra("card", "data/imported/gt.jsonl", "--json"))
    assert card["sources"] == {"GeneralThought-430K/Invented/Science": 1} and card["licences"] == {"Apache-2.0": 1}
    assert orchestra("export", "data/imported/gt.jsonl", "out.parquet") == "1 examples in out.parquet\n"
    orchestra("import", "out.parquet", "--format", "toolscale", "--to", "back.jsonl")
    assert (workspace / "back.jsonl").read_bytes() == (workspace / "data/imported/gt.jsonl").read_bytes()


def test_what_simulated_experts_know_is_written_beside_and_judged_rows_are_told(workspace: Path) -> None:
    shutil.copy(THOUGHTS, workspace / "thoughts.parquet")
    said = orchestra("import", "thoughts.parquet", "--format", "general-thought", "--to", "gt.jsonl", "--judged")
    assert "1 of them only a judge can check, and none is configured" in said
    rows = [json.loads(line) for line in (workspace / "gt.answers.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {row["answer"]: row for row in rows}
    long = "Because the land is higher in the south than in the north, and water runs down"
    assert set(known) == {"120", "Gravity", long} and known["120"]["topic"] == "math"
    assert all(len(row["wrong"]) == 3 and row["answer"] not in row["wrong"] for row in rows)


def test_a_question_that_validate_would_refuse_is_refused_at_once(workspace: Path) -> None:
    rows = [f"what is {'x' * 2000}?,1", "what is y?,2", "x,3"]
    (workspace / "q.csv").write_text("\n".join(["question,answer", *rows]), encoding="utf-8")
    said = orchestra("import", "q.csv", "--format", "questions", "--source", "q", "--licence", "MIT", "--to", "x.jsonl")
    assert "examples: 1" in said and "the instruction has fewer than 3 or more than 2,000 characters: q 2" in said


def test_preferences_are_written_and_drawn_from(workspace: Path) -> None:
    said = orchestra("preferences", "--count", "50", "--out", "data/extra/p.jsonl")
    assert said == "50 preferences in data/extra/p.jsonl\n"
    edit = (
        (workspace / "params.yaml")
        .read_text(encoding="utf-8")
        .replace("  preferences: null\n", "  preferences: data/extra/p.jsonl\n")
    )
    (workspace / "params.yaml").write_text(edit, encoding="utf-8")
    rows = "".join(json.dumps({"question": f"what is {n} and {n}?", "answer": str(2 * n)}) + "\n" for n in range(30))
    (workspace / "q.jsonl").write_text(rows, encoding="utf-8")
    command = ("import", "q.jsonl", "--format", "questions", "--source", "q", "--licence", "MIT", "--to", "x.jsonl")
    orchestra(*command)
    done = CliRunner().invoke(app, ["data", "preferences", "--count", "4", "--out", "p.jsonl"])
    assert done.exit_code == 2 and not (workspace / "p.jsonl").exists(), "none of four would be held out"
    wishes = [json.loads(line)["words"] for line in (workspace / "data/extra/p.jsonl").read_text().splitlines()]
    made = [json.loads(line)["preference"]["words"] for line in (workspace / "x.jsonl").read_text().splitlines()]
    assert len(set(made) & set(wishes)) > 3
    with pytest.raises(OrchestraError, match="--price"):
        orchestra("preferences", "--model", "m", "--out", "p.jsonl")


def test_the_most_tokens_of_a_reply_are_those_that_were_typed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*more: str) -> int:
        with serving([(200, answer("no JSON"), 0)]) as double:
            monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
            made = ("preferences", "--count", "5", "--out", "p.jsonl", "--version", f"v{len(more)}")
            assert "dropped" in orchestra(*made, "--model", "m", "--price", "openai/gpt-5-mini", *more)
            (tokens,) = {request["max_completion_tokens"] for request in double.asked}
            return int(tokens)

    assert (asked(), asked("--max-output-tokens", "9000")) == (MAX_OUTPUT_TOKENS, 9_000)


def test_toolscale_must_be_accepted_first(workspace: Path) -> None:
    shutil.copy(TOOLSCALE, workspace / "toolscale.parquet")
    command = ("import", "toolscale.parquet", "--format", "toolscale", "--to", "ts.jsonl")
    done = CliRunner().invoke(app, ["data", *command])
    assert "the licence other is not on the list: nvidia/ToolScale 2" in done.stdout
    said = r"toolscale.parquet: none of \d+ rows became an example — see ts.refused.jsonl for the reasons"
    assert isinstance(done.exception, DataError) and re.fullmatch(said, str(done.exception)), done.exception
    with (workspace / "data/licences.yaml").open("a", encoding="utf-8") as file:
        file.write("  - {id: other, sources: [nvidia/ToolScale]}\n")
    assert "examples: 2" in orchestra(*command)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "none.jsonl", "--format", "general-thought", "--to", "x.jsonl"], r"none.jsonl: no such file"),
        (
            ["import", "q.jsonl", "--format", "questions", "--to", "x.jsonl"],
            r"--source: the data set has no name — --format questions needs it",
        ),
        (
            ["import", "q.jsonl", "--format", "questions", "--source", "q", "--to", "x.jsonl"],
            r"q.jsonl:1: field question",
        ),
        (["import", "q.jsonl", "--format", "corpus", "--to", "x.parquet"], r"examples are JSON lines"),
        (["card", "q.jsonl"], r"q.jsonl:1: field id: Field required"),
        (["export", "q.jsonl", "x.txt"], r"x.txt: no such format"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(workspace: Path, arguments: list[str], said: str) -> None:
    (workspace / "q.jsonl").write_text('{"text": "?"}\n', encoding="utf-8")
    with pytest.raises(OrchestraError, match=said) as error:
        orchestra(*arguments)
    assert "\n" not in str(error.value) and " — " in str(error.value)
    assert not list(workspace.glob("x.*"))
