"""The documented stage that keeps an index current, run by DVC."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestra.tools.search.index.local import LocalIndex
from tasks.platform.dvc import repro, stages
from tests.support.worlds import ROOT


def test_the_documented_stage_builds_the_index_and_follows_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = (
        (ROOT / "docs/reference/tools/search.md")
        .read_text(encoding="utf-8")
        .split("<!-- stage -->\n```yaml\n")[1]
        .split("```")[0]
    )
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": yaml.safe_load(block)}))
    (tmp_path / "orchestra").symlink_to(ROOT / "orchestra")
    (tmp_path / ".gitignore").write_text("data\n")
    (tmp_path / "data").mkdir()
    source = tmp_path / "data/passages.jsonl"
    source.write_text(json.dumps({"id": "1", "text": "Norvik was founded in 1911."}) + "\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    assert repro(tmp_path, "index", env={}, on_line=lambda _: None) == "ran"
    assert [each.passage.id for each in LocalIndex.open(tmp_path / "data/index").search("norvik")] == ["1"]
    assert stages(tmp_path) == {"index": []}
    source.write_text(json.dumps({"id": "2", "text": "Norvik has a harbour."}) + "\n")
    assert stages(tmp_path) == {"index": ["data/passages.jsonl modified"]}
    assert repro(tmp_path, "index", env={}, on_line=lambda _: None) == "ran"
    assert [each.passage.id for each in LocalIndex.open(tmp_path / "data/index").search("norvik")] == ["2"]
