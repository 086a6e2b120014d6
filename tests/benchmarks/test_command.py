"""How benchmarks are asked and end: one usage text, exit code 1 below a bar, an error in one line."""

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.bench import ROOT
from benchmarks.command import Row, judge, measured, run_benchmark, show
from orchestra.errors import DataError

BENCHMARKS = [file for file in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in file.read_text("utf-8")]


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_every_benchmark_has_one_usage_text(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(file), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr()
    assert ended.value.code == 0 and said.err == ""
    about = (ROOT / "benchmarks" / file.name).read_text("utf-8").split('"""')[1].split()
    assert said.out.startswith(f"usage: python -m benchmarks.{file.stem} ") and said.out.count("usage:") == 1
    assert " ".join(about[:5]) in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("bars", "code", "said"),
    [
        ({"speed": True, "memory": True}, 0, "bar: met\n"),
        ({"speed": False, "memory": True, "errors": False}, 1, "bar: missed (speed; errors)\n"),
        ({}, 0, ""),
    ],
)
def test_a_missed_bar_is_said_and_ends_with_exit_code_1(
    bars: dict[str, bool], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(bars) == code
    assert capsys.readouterr().out == said


def test_rows_without_a_bar_are_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a call", "3 ms"), Row("a start", "70 ms", "≤ 60 ms", False)]
    assert measured(lambda: rows[:1]) == 0 and "bar: m" not in capsys.readouterr().out
    assert show("About.", lambda: rows, []) == 1
    assert capsys.readouterr().out.endswith("| a start | 70 ms | ≤ 60 ms |\nbar: missed (a start)\n")


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def main(given: Sequence[str]) -> int:
        raise DataError("no such file", where=given[0], fix="make pipeline")

    monkeypatch.setattr(sys, "argv", ["rollout.py", "heldout.jsonl"])
    with pytest.raises(SystemExit) as ended:
        run_benchmark(main)
    assert ended.value.code == 2 and capsys.readouterr().err == "error: heldout.jsonl: no such file — make pipeline\n"


def test_a_process_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def main(given: Sequence[str]) -> None:
        subprocess.run(["sh", "-c", "exit 3"], check=True)

    monkeypatch.setattr(sys, "argv", ["rollout.py"])
    with pytest.raises(SystemExit) as ended:
        run_benchmark(main)
    said = "error: sh -c exit 3: a process of the benchmark ended with exit code 3 — see its message above\n"
    assert ended.value.code == 2 and capsys.readouterr().err == said
