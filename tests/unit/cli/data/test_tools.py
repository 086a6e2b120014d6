"""`orchestra tools`: what a person types, and the catalogue that comes of it."""

import asyncio
import fcntl
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError, DataError, OrchestraError, ServiceError, ToolError
from orchestra.system import progress
from orchestra.tools.reports import describe as describing
from orchestra.types import Category, Verifier
from tests.support.worlds import ROOT, example, printed, toolkit

FAKE = (sys.executable, str(ROOT / "tests/support/mcp_fake.py"))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    raw["world"]["domains"] = ["mock"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copytree(ROOT / "data/domains/mock", tmp_path / "data/domains/mock")
    (tmp_path / "data/generated").mkdir()
    toolkit(tmp_path / "data/generated")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tools(*arguments: str) -> str:
    """What `orchestra tools …` prints."""
    return printed("tools", *arguments)


def test_import_then_list(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUM_KEY", "s3cret")
    said = tools("import-mcp", "sums", "--env", "SUM_KEY", "--tool", "add", "--per-call", "0.003", "--", *FAKE)
    assert "add: added" in said and "price mcp/sums: 0.003 USD a call" in said
    text = (workspace / "data/catalogue/tools.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["mcp_servers"]["sums"]["env"] == {"SUM_KEY": "${SUM_KEY}"} and "s3cret" not in text
    assert tools("import-mcp", "sums") == "sums: unchanged\n"
    found = json.loads(tools("list", "--json", "--as-of", "2026-01-01"))
    rows = {row["name"]: row for row in found["tools"]}
    assert found["as_of"] == "2026-01-01" and {"calculator", "gpt-5", "add", "domain:mock"} <= set(rows)
    assert rows["add"]["available"] and rows["add"]["call_usd"] == "0.003" and rows["add"]["provider"] == "mcp"
    monkeypatch.delenv("SUM_KEY")
    (line,) = [line for line in tools("list").splitlines() if line.startswith("add ")]
    assert "NO: MCP server sums: SUM_KEY is not set — export SUM_KEY=…" in line


AT_NINE = ("import-mcp", "sums", "--url", "http://127.0.0.1:9/mcp")


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (["import-mcp", "sums"], ConfigError, "no address and no program"),
        (["import-mcp", "sums", "--url", "http://127.0.0.1:9/mcp", "--env", "A"], ConfigError, "env belongs"),
        ([*AT_NINE], ToolError, "cannot be opened.* — check its command"),
        ([*AT_NINE, "--header", "authorization: Bearer x"], ConfigError, "a --header has no = — write NAME=VALUE"),
        ([*AT_NINE, "--header", "authorization: Bearer x="], ConfigError, "a header's name has other signs than"),
        (["import-mcp", "sums", "--per-call", "nan", "--", *FAKE], ConfigError, "'nan' is not an amount"),
        (["import-mcp", "sums", "--per-call", "1e400", "--", *FAKE], ConfigError, "'1e400' is not an amount"),
        (["list", "--as-of", "soon"], ConfigError, "'soon' is not a date"),
    ],
)
def test_what_a_person_gets_wrong(workspace: Path, arguments: list[str], kind: type[Exception], said: str) -> None:
    before = (workspace / "data/catalogue/tools.yaml").read_bytes()
    with pytest.raises(kind, match=said):
        tools(*arguments)
    assert (workspace / "data/catalogue/tools.yaml").read_bytes() == before


def described(workspace: Path, monkeypatch: pytest.MonkeyPatch, *experts: str) -> str:
    """What `describe --write` prints, from a subfolder, of an example that is there."""
    monkeypatch.setenv("ORCHESTRA_CASSETTE", f"auto:{workspace / 'cassette.jsonl'}")
    asked = example(instruction="who wrote Opal?", answer="Tesk", category=Category.TOPIC)
    (workspace / "docs").mkdir()
    (workspace / "docs/some.jsonl").write_text(asked.model_dump_json() + "\n", encoding="utf-8")
    monkeypatch.chdir(workspace / "docs")
    return tools("describe", *experts, "--data", "some.jsonl", "--write")


def test_describe_reads_data_from_where_we_are_and_knows_entries_with_an_anchor(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = workspace / "data/catalogue/tools.yaml"
    text = file.read_text(encoding="utf-8").replace("  gpt-5-mini:\n", "  gpt-5-mini: &small\n")
    file.write_text(text, encoding="utf-8")
    said = described(workspace, monkeypatch, "gpt-5", "gpt-5-mini")
    assert said.endswith("descriptions written to data/catalogue/tools.yaml\n")
    assert set(yaml.safe_load(file.with_name("tools.measured.yaml").read_text())) == {"gpt-5", "gpt-5-mini"}
    assert (workspace / "work/describe/gpt-5.jsonl").is_file()


def test_a_description_that_cannot_be_written_leaves_the_others_and_keeps_what_was_measured(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = workspace / "data/catalogue/tools.yaml"
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    flow = f"  spare: {json.dumps(raw['tools']['gpt-5-mini'])}\n"
    text = file.read_text(encoding="utf-8").replace("  gpt-5-mini:\n", f"{flow}  gpt-5-mini:\n")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="no line with a description of spare"):
        described(workspace, monkeypatch, "gpt-5", "spare")
    assert file.read_text(encoding="utf-8") == text
    assert set(yaml.safe_load(file.with_name("tools.measured.yaml").read_text())) == {"gpt-5", "spare"}


def test_describe_says_how_far_it_is(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = example(instruction="who wrote Opal?", answer="Tesk", category=Category.TOPIC), describing._try
    (workspace / "some.jsonl").write_text(asked.model_dump_json() + "\n", encoding="utf-8")

    async def slow(expert: str, *rest: Any) -> describing.Tried:
        await asyncio.sleep(0.5 if expert == "gpt-5" else 0)
        return await ask(expert, *rest)

    monkeypatch.setenv("ORCHESTRA_CASSETTE", f"auto:{workspace / 'cassette.jsonl'}")
    monkeypatch.setattr(describing, "_try", slow)
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.05)
    done = CliRunner().invoke(app, ["tools", "describe", "gpt-5", "gpt-5-mini", "--data", "some.jsonl"])
    assert done.exit_code == 0 and "1 of at most 2 calls have ended (0 s)\n" in done.stderr


def test_describe_asks_each_expert_once_and_nothing_that_only_a_judge_can_check(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = example(instruction="who wrote Opal?", answer="Tesk", category=Category.TOPIC)
    judged = short.model_copy(
        update={
            "id": "long",
            "instruction": "why Opal?",
            "verifier": Verifier(kind="judge", answer="For many reasons."),
        }
    )
    file = workspace / "some.jsonl"
    file.write_text(f"{short.model_dump_json()}\n{judged.model_dump_json()}\n", encoding="utf-8")
    monkeypatch.setenv("ORCHESTRA_CASSETTE", f"auto:{workspace / 'cassette.jsonl'}")
    tools("describe", "gpt-5", "gpt-5", "--data", "some.jsonl")
    for kept in ("gpt-5", "ledger"):
        assert len((workspace / f"work/describe/{kept}.jsonl").read_text().splitlines()) == 1
    with pytest.raises(ConfigError, match="--all takes every expert"):
        tools("describe", "gpt-5", "--all", "--data", "some.jsonl")
    file.write_text(judged.model_dump_json() + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="only a judge can check the answers"):
        tools("describe", "gpt-5", "--data", "some.jsonl")


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("work/describe", "tools describe gpt-5 --data some.jsonl"),
        ("data/versions/default", "domains write shop --subject customers,orders --model m --price openai/gpt-5"),
    ],
)
def test_two_commands_do_not_spend_from_one_ledger_at_once(workspace: Path, folder: str, command: str) -> None:
    """Each would go up to the cap, and both would write one cassette."""
    (workspace / folder).mkdir(parents=True)
    with (workspace / folder / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("123")
        other.flush()
        with pytest.raises(ServiceError, match=f"{folder}: a run with pid 123 works with its ledger — wait for it"):
            printed(*command.split())
    with pytest.raises(OrchestraError, match=r"some.jsonl|ORCHESTRA_WRITER_URL"):
        printed(*command.split())
