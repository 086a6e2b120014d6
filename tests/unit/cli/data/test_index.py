"""`orchestra index`: what a person types, and the lines that come of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import OrchestraError


def orchestra(*arguments: str, typed: str | None = None) -> str:
    """What `orchestra index …` prints."""
    done = CliRunner().invoke(app, ["index", *arguments], input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_build_query_and_build_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"key": n, "head": f"Book {n}", "body": f"Book {n} is of {whom}."} for n, whom in enumerate(["Ovel", "Mirel"])
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    build = ["build", "rows.jsonl", "--out", "made/index", "--id", "key", "--title", "head", "--text", "body"]
    said = orchestra(*build)
    assert said.startswith("built: 2 passages in made/index, version ")
    assert orchestra(*build) == said.replace("built", "unchanged")
    assert orchestra("query", "made/index", "mirel").splitlines()[0] == "mirel: 1 found"
    lines = orchestra("query", "made/index", "--top", "1", "--json", typed="ovel\n\nquark\n").splitlines()
    found = [json.loads(line)["found"] for line in lines]
    assert [[each["passage"]["id"] for each in one] for one in found] == [["0"], []]


def test_a_document_steers_no_terminal_and_forges_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = "Norvik \x1b]0;owned\x07 \x9b31m \u202egnp\n   9.999  2  forged"
    row = {"id": f"1{hostile}", "title": hostile, "text": hostile}
    Path("rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
    orchestra("build", "rows.jsonl", "--out", "index")
    shown = orchestra("query", "index", "norvik \x1b[2J")
    assert len(shown.splitlines()) == 3 and shown.replace("\n", "").isprintable() and "\\x1b]0;owned" in shown
    line = orchestra("query", "index", "norvik", "--json")
    assert line.isascii() and len(line.splitlines()) == 1 and "\x1b" not in line
    assert json.loads(line)["found"][0]["passage"]["title"] == hostile


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", "nowhere", "x"], "nowhere: no index here"),
        (["query", "nowhere", "x", "--by", "luck"], "no search by luck — one of: bm25, dense, hybrid"),
        (["build", "none.jsonl", "--out", "index"], r"none\.jsonl: no such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OrchestraError, match=said):
        orchestra(*arguments)
