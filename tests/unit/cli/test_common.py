"""How a command hands its options over."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestra.cli.common import tell_beside_run, words
from orchestra.system.workspace import locked


def test_options_are_written_as_a_command_line_has_them() -> None:
    assert words(cap_usd="1.50", from_="sft", limit=0) == ["--cap-usd=1.50", "--from=sft", "--limit=0"]
    assert words(force=["sft", "grpo"], data=[Path("a")]) == ["--force=sft", "--force=grpo", "--data=a"]
    assert words(remove=True, test=False, url=None, set_=[], why="") == ["--remove", "--why="]
    assert words(why="-slow", canary=12.3456789) == ["--why=-slow", "--canary=12.3456789"]


def test_what_would_end_a_run_is_told_before_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra, other = tmp_path / "data/extra/own.jsonl", tmp_path / "own.jsonl"
    tell_beside_run(tmp_path, extra)
    with locked(tmp_path):
        tell_beside_run(tmp_path, extra)  # The run itself.
        assert capsys.readouterr().err == ""
        code = "import sys; from pathlib import Path; from orchestra.cli.common import tell_beside_run as tell"
        for file, told in ((extra, "data/extra/own.jsonl is an input of its stages: it ends"), (other, "")):
            line = f"{code}; tell(Path({str(tmp_path)!r}), Path({str(file)!r}))"
            said = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True).stderr
            assert told in said and bool(said) == bool(told)
