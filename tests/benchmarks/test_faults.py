"""How a fault's end is judged: what a person should not see, and what must be as without a fault."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import fault_cases
from benchmarks.fault_cases import PROCESSES, FaultOutcome, Reference, last, line_of, orphans, part, plain, strays
from benchmarks.fault_page import Case, Page, rows
from benchmarks.fault_states import negative
from benchmarks.fault_store import FaultyStore, Mode
from benchmarks.faults import KILLS, cases, commit
from orchestra.config.storage import Storage
from orchestra.system.artifacts import filesystem
from orchestra.system.processes import alive, started_at
from orchestra.system.runs import RunJournal
from tests.flows.workspace import Workspace
from tests.support.stores import BUCKET, KEYS, s3_server


def test_the_error_is_what_is_told() -> None:
    said = "sft: running\nerror: disk is full: /tmp/x/w/models/sft — free some space\n"
    assert last(said) == "error: disk is full: sft — free some space"
    assert last("error: http://STORE/b: x/y is no /a/.venv/python") == "error: http://STORE/b: x/y is no python"
    assert last("one\ntwo\n\n") == "two" and last("") == "nothing"


@pytest.mark.parametrize(
    ("said", "problems"),
    [
        ("error: one", []),
        ("Traceback (most recent call last):\n  File x\nA: b\nerror: one", ["a traceback is printed: A: b"]),
        ("error: one\nerror: two", ["2 error lines"]),
        ("ERROR: failed to transfer 'a'\nerror: two", ["2 error lines"]),
    ],
)
def test_what_a_person_should_not_see(said: str, problems: list[str]) -> None:
    assert plain(said) == problems


def test_a_process_that_outlives_its_run_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_cases, "ORPHANS_S", 0.2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    family = [(child.pid, started_at(child.pid))]
    try:
        deadline = time.monotonic() + 10
        while b"sleep" not in line_of(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert b"time.sleep(60)" in line_of(child.pid)
        assert orphans(family, Workspace(tmp_path)) == ["1 processes left over"]
    finally:
        child.kill()
        child.wait()
    assert orphans(family, Workspace(tmp_path)) == [] and line_of(child.pid) == b""


def test_another_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "runs", lambda self: [])
    reference = Reference(1.0, {"models/sft": "a"}, {"grpo.accuracy": 1.0})
    (tmp_path / ".train.jsonl.1.partial").touch()
    found = reference.differences(Workspace(tmp_path))
    assert found == ["models/sft differs", "0 promotions", "half-written: .train.jsonl.1.partial"]


def named(name: str, missing: str = "") -> Case:
    return Case(name, lambda template, folder, reference: FaultOutcome(name, "sft"), missing)


def test_the_page_keeps_each_row_until_its_case_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "faults.md"
    every = [named("a"), named("b"), named("c", "no root"), named("d")]
    Page(every, 50.0, "2026-11-24 1111111", file).add(every[0], FaultOutcome("a", "sft"))
    later = Page(every, 61.4, "2026-11-25 2222222", file)
    later.add(every[1], FaultOutcome("b", "sft", "x | y", problems=["it hangs", "one\nmore /a/b/c.txt"]))
    text = file.read_text(encoding="utf-8")
    assert "1 of 2 ended as they should; 2 not run." in text and "took 61 seconds" in text
    assert [line for line in text.splitlines() if line.startswith("| ")][2:] == [
        "| a | a | sft | — | none needed | as without a fault | 2026-11-24 1111111 |",
        "| b | b | sft | x y | none needed | it hangs; one more c.txt | 2026-11-25 2222222 |",
        "| c | — | — | — | — | not run: no root | — |",
        "| d | — | — | — | — | not run | — |",
    ]
    later.add(every[1], FaultOutcome("b", "grpo"))
    assert "2 of 2 ended as they should" in file.read_text(encoding="utf-8")
    assert "it hangs" not in file.read_text(encoding="utf-8")


def test_rows_of_a_table_without_commits_are_not_taken_for_todays(tmp_path: Path) -> None:
    assert rows("| kill | evaluate | — | none needed | as without a fault |\n") == {}


def test_the_names_of_the_cases_are_one_each_and_every_stage_is_struck() -> None:
    names = [case.name for case in cases(0)]
    assert len(set(names)) == len(names) and sum(name.startswith("kill-") for name in names) >= 20
    assert {f"kill-stage-{stage}" for stage in KILLS["stage"]} <= set(names)
    assert {f"kill-flow-{stage}" for stage in (*KILLS["stage"], "promote", "deploy")} <= set(names)
    assert set(KILLS) == set(PROCESSES)


def test_what_a_case_leaves_running_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_cases, "ORPHANS_S", 0.2)
    folder = tmp_path / "case-a"
    left: list[subprocess.Popen[bytes]] = []

    def strike(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
        folder.mkdir()
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder))
        folder.rmdir()
        raise ValueError("no luck")

    outcome = commit(Case("a", strike), tmp_path, folder, Reference(1.0, {}, {}))
    assert outcome.problems[0] == "ValueError: no luck"
    assert outcome.problems[1].startswith("left running: ") and len(outcome.problems) == 2
    assert not alive(left[0].pid) and strays(folder) == {}


@pytest.mark.parametrize(
    "mode", ["down", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("403", "503", "cut"))]
)
def test_a_faulty_store_takes_nothing_and_is_well_again(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    place = f"{BUCKET}/{mode}/a"
    with s3_server() as behind:
        store = FaultyStore(behind)
        try:
            storage = Storage(url=f"s3://{BUCKET}/{mode}", endpoint=store.url)
            store.strike(mode)
            with pytest.raises(Exception, match=r"connect|AccessDenied|SlowDown|closed"):
                filesystem(storage).pipe_file(place, b"1" * 200_000)
            store.heal()
            assert store.struck and not filesystem(storage).exists(place)
            filesystem(storage).pipe_file(place, b"1" * 200_000)
            assert len(filesystem(storage).cat_file(place)) == 200_000
        finally:
            store.close()


def test_only_lengths_of_time_are_found_negative() -> None:
    shown = "retrain calm-cat ran -3600 s, then -2 min; 2026-11-25 s, step-3 d, 3.5-4 s, -40"
    assert negative(shown) == ["-3600 s", "-2 min"]


def test_a_part_of_a_run_is_named_only_while_its_stage_runs(tmp_path: Path) -> None:
    journal = RunJournal.begin(tmp_path, "r", "calm-cat", "retrain")
    command = [sys.executable, "-c", "import time; time.sleep(60)", "tasks.sft"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with journal.stage("sft"):
            assert (
                part("flow", run, Workspace(tmp_path), "sft")
                == run.pid
                == part("stage", run, Workspace(tmp_path), "sft")
            )
            assert part("flow", run, Workspace(tmp_path), "validate") is None, "another stage runs by now"
    finally:
        run.kill()
        run.communicate()
    assert part("flow", run, Workspace(tmp_path), "sft") is None
