"""`orchestra tools`: what a person types, and the catalogue that comes of it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestra.cli.main import app
from orchestra.errors import ConfigError, ToolError
from tests.support.worlds import ROOT, toolkit

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
    done = CliRunner().invoke(app, ["tools", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


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


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (["import-mcp", "sums"], ConfigError, "no address and no program"),
        (["import-mcp", "sums", "--url", "http://127.0.0.1:9/mcp", "--env", "A"], ConfigError, "env belongs"),
        (["import-mcp", "sums", "--url", "http://127.0.0.1:9/mcp"], ToolError, "cannot be opened"),
        (["import-mcp", "sums", "--per-call", "nan", "--", *FAKE], ConfigError, "'nan' is not an amount"),
        (["list", "--as-of", "soon"], ConfigError, "'soon' is not a date"),
    ],
)
def test_what_a_person_gets_wrong(workspace: Path, arguments: list[str], kind: type[Exception], said: str) -> None:
    before = (workspace / "data/catalogue/tools.yaml").read_bytes()
    with pytest.raises(kind, match=said):
        tools(*arguments)
    assert (workspace / "data/catalogue/tools.yaml").read_bytes() == before
