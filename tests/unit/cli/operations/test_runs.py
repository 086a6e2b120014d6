"""What the person on call reads and types: the list of runs, the cause with the runbook's entry, and a rerun."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from flows.__main__ import AHEAD
from orchestra.cli.operations.runs import FLOWS, moment, took
from orchestra.errors import ConfigError
from orchestra.system.processes import started_at
from orchestra.system.runs import (
    CAPPED,
    FAILED,
    KEPT,
    RUNS,
    RunFailure,
    RunJournal,
    RunRecord,
    StageRecord,
    find,
    in_short,
    runs,
    save,
)
from orchestra.system.workspace import LOCK
from tests.support.worlds import ROOT

NOW = datetime.now(UTC)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("params.yaml", "dvc.yaml", "monitoring"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def record(name: str, minutes: int, **more: Any) -> RunRecord:
    began = NOW - timedelta(minutes=minutes)
    told = {"id": f"id-{name}", "flow": "retrain", "ended": began + timedelta(minutes=1), "state": "Completed", **more}
    return RunRecord(name=name, began=began, **told)


def failed(name: str = "sad-fox", minutes: int = 5) -> RunRecord:
    failure = RunFailure(kind="DataError", what="row 3 is no JSON", where="a.jsonl", fix="make it again", stage="sft")
    stages = {
        "validate": StageRecord(state="ran", began=NOW, why=("params.yaml: validate.max_quarantined modified",)),
        "sft": StageRecord(state="Failed", began=NOW, why=("it has not run yet",)),
    }
    return record(name, minutes, state=FAILED, failure=failure, stages=stages, mlflow_run="m1")


def orchestra(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "orchestra.cli.main", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_flow_that_there_is_not_is_refused(workspace: Path) -> None:
    assert "no flow 'nope'" in (said := orchestra(workspace, "runs", "--flow", "nope", code=2)) and "release" in said
    assert set(FLOWS) == set(AHEAD)


PRINTS = "from tasks.platform.commands import run_command; run_command(lambda _: print('x', flush=True))"


@pytest.mark.parametrize("command", [("-m", "flows", "again", "sad-fox"), ("-c", PRINTS)])
def test_a_reader_that_goes_ends_a_command_without_a_word(workspace: Path, command: tuple[str, ...]) -> None:
    save(workspace, failed())
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, *command]
    done = subprocess.run(
        words, cwd=workspace, env=env, stdout=writing, stderr=subprocess.PIPE, timeout=120, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(("why", "told"), [("a", "a"), ("abc", "a; b; c"), ("abcde", "a; b; c and 2 more")])
def test_the_first_reasons_are_told_and_how_many_more(why: str, told: str) -> None:
    assert in_short(tuple(why)) == told


def test_a_clock_that_was_set_back_makes_no_time_negative(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = NOW

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now

    monkeypatch.setattr("orchestra.system.runs.datetime", Clock)
    journal = RunJournal.begin(workspace, "r1", "calm-cat", "retrain")
    with journal.stage("sft") as note:
        now = NOW - timedelta(days=40)
        note("ran")
    journal.end("Completed")
    kept = journal.record
    assert kept.ended == kept.began and kept.stages["sft"].ended == kept.stages["sft"].began
    still = record("odd-owl", 0).model_copy(update={"began": datetime.now(UTC) + timedelta(days=40), "ended": None})
    assert took(kept) == took(still) == "0 s"
    assert moment(still.began).endswith(" UTC (in 40 d)") and moment(NOW - timedelta(days=3)).endswith("(3 d ago)")


def test_why_tells_the_cause_the_runbooks_entry_and_the_command(workspace: Path) -> None:
    for one in (record("good-cat", 9), failed()):
        save(workspace, one)
    text = orchestra(workspace, "why")
    assert "Cause: DataError: a.jsonl: row 3 is no JSON — make it again" in text
    assert "Meaning: a file of data is missing" in text and text.endswith("Next: orchestra rerun sad-fox\n")
    assert "validate    ran (params.yaml: validate.max_quarantined modified)" in text
    assert "Cause" not in orchestra(workspace, "why", "good-cat")


def test_runs_are_listed_newest_first_with_the_cause(workspace: Path) -> None:
    for one in (record("old-owl", 60, flow="release"), failed(), record("good-cat", 1)):
        save(workspace, one)
    (workspace / RUNS / "half.json").write_text("{")
    lines = orchestra(workspace, "runs").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["good-cat", "sad-fox", "old-owl"]
    assert "sft: DataError: row 3 is no JSON" in lines[2]
    assert [one["name"] for one in json.loads(orchestra(workspace, "runs", "--flow", "release", "--json"))] == [
        "old-owl"
    ]
    assert "no run nope" in orchestra(workspace, "why", "nope", code=2)


def test_nothing_on_record(workspace: Path) -> None:
    assert "orchestra run" in orchestra(workspace, "runs") and "no run is on record" in orchestra(
        workspace, "why", code=2
    )


def test_a_run_that_lives_is_not_run_again(workspace: Path) -> None:
    journal = RunJournal.begin(workspace, "id", "busy-bee", "retrain")
    assert f"kill {os.getpid()}" in orchestra(workspace, "rerun", "busy-bee", code=2)
    journal.end("Completed")
    save(workspace, record("watch", 1, flow="monitor"))
    assert "no stages to begin at" in orchestra(workspace, "rerun", "watch", "--from", "sft", code=2)
    assert "promote and deploy run each time" in orchestra(workspace, "rerun", "busy-bee", "--from", "promote", code=2)
    assert "no stage foo" in orchestra(workspace, "rerun", "busy-bee", "--from", "foo", code=2)


def test_without_a_name_only_a_failure_that_no_later_run_of_its_flow_followed_is_meant() -> None:
    old = failed("old-owl", 90).model_copy(update={"flow": "release"})
    released, capped = record("good-cat", 60, flow="release"), record("rich-rat", 30, state=CAPPED)
    assert find([released, failed(minutes=70), old], None).name == "sad-fox"
    assert find([capped, released, old], None) is capped and find([old], None) is old
    with pytest.raises(ConfigError, match="name a run"):
        find([record("calm-cow", 1), released, failed(minutes=70), old], None)


def test_a_rerun_takes_the_options_of_the_run_and_forces_only_what_it_had_not_run(workspace: Path) -> None:
    from flows.__main__ import _again

    options = {"until": "evaluate", "force": ["validate", "sft", "grpo"]}
    save(workspace, failed().model_copy(update={"parameters": options}))
    assert _again(workspace, "sad-fox", None) == ("retrain", {"until": "evaluate", "force": ["sft", "grpo"]})
    assert _again(workspace, "sad-fox", "grpo") == ("retrain", {"until": "evaluate", "force": ["grpo"]})


def test_a_record_of_others_sets_no_other_variable_and_leads_nowhere_else(workspace: Path) -> None:
    """A backup may hold any record: a rerun would run a module that PYTHONPATH names."""
    carried = {"ORCHESTRA_TASK_RUNNER": "threads:2"}
    save(workspace, failed())
    (file,) = (workspace / RUNS).iterdir()
    written = json.loads(file.read_text()) | {"environment": {"PYTHONPATH": "evil", **carried}}
    file.write_text(json.dumps(written))
    (workspace / RUNS / "x.json").write_text(json.dumps(written | {"id": "../../x"}))
    assert [(one.id, one.environment) for one in runs(workspace)] == [("id-sad-fox", carried)]


def test_a_killed_process_shows_at_once_and_another_machines_run_while_the_lock_is_free(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stages = {"grpo": StageRecord(state="Running", began=NOW)}
    mine = {"ended": None, "state": "Running", "pid": ended.pid, "started": "1", "stages": stages}
    save(tmp_path, record("dead", 3, host=socket.gethostname(), **mine))
    save(tmp_path, record("far", 2, host="another", **mine))
    save(tmp_path, record("watch", 1, host="another", flow="monitor", alone=False, **mine))
    with (tmp_path / LOCK).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        watch, far, dead = runs(tmp_path)
    assert (dead.state, dead.stage, dead.failure and dead.failure.kind) == ("Killed", "grpo", "Killed")
    assert far.lives and far.stage == "grpo" and find([dead], None) is dead
    assert find([far, dead], "id-f") is far and watch.lives
    assert [one.state for one in runs(tmp_path)] == ["Running", "Killed", "Killed"]


def test_a_monitor_of_a_container_that_is_gone_is_killed_an_hour_after_its_last_sign(tmp_path: Path) -> None:
    far: dict[str, Any] = {"flow": "monitor", "alone": False, "ended": None, "state": "Running", "pid": 7}
    save(tmp_path, record("lost", 100, host="another", **far))
    save(tmp_path, record("young", 20, host="another", **far))
    stages = {"look": StageRecord(state="Running", began=NOW - timedelta(minutes=30))}
    save(tmp_path, record("slow", 300, host="another", stages=stages, **far))
    mine = {"host": socket.gethostname(), "started": started_at(os.getpid()), "pid": os.getpid()}
    save(tmp_path, record("here", 400, **{**far, **mine}))
    found = {one.name: one for one in runs(tmp_path)}
    states = {name: one.state for name, one in found.items()}
    assert states == {"lost": "Killed", "young": "Running", "slow": "Running", "here": "Running"}
    assert found["lost"].ended == found["lost"].began and not found["lost"].lives


def test_a_rerun_of_what_works_on_another_machine_names_it(workspace: Path) -> None:
    mine = {"host": socket.gethostname(), "started": started_at(os.getpid()), "pid": os.getpid()}
    for name, where, end in (
        ("here", mine, f"kill {os.getpid()}"),
        ("far", {"host": "another", "pid": 7}, "it is process 7 of the machine another"),
    ):
        save(workspace, record(name, 1, flow="monitor", alone=False, ended=None, state="Running", **where))
        said = orchestra(workspace, "rerun", name, code=2)
        assert said == f"error: {name}: it still runs — wait for it, or end it: {end}\n"


def test_a_killed_run_ended_when_its_stage_last_wrote(tmp_path: Path) -> None:
    began, moved, wrote = (NOW - timedelta(minutes=minutes) for minutes in (300, 290, 60))
    stages = {
        "sft": StageRecord(state="ran", began=began, ended=moved),
        "grpo": StageRecord(state="Running", began=moved),
    }
    save(tmp_path, record("dead", 300, ended=None, state="Running", host=socket.gethostname(), stages=stages))
    assert runs(tmp_path)[0].ended == moved, "without a log it is the last that is known"
    log = tmp_path / ".state/logs/grpo.log"
    log.parent.mkdir(parents=True)
    log.write_text("grpo: step 1\n")
    for at, end in ((wrote, wrote), (began, moved)):  # A log of before the stage says nothing.
        os.utime(log, (at.timestamp(), at.timestamp()))
        assert runs(tmp_path)[0].ended == end


def test_old_records_go_and_other_flows_keep_theirs(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        save(tmp_path, record(f"n{number}", 100 - number))
    save(tmp_path, record("kept", 1000, flow="release"))
    RunJournal.begin(tmp_path, "new", "new", "retrain")
    names = {one.name for one in runs(tmp_path)}
    assert len(names) == KEPT + 2 and {"kept", "new", "n3"} <= names and "n2" not in names


def test_what_no_error_of_ours_says_is_a_bug_and_a_limit_of_time_a_limit() -> None:
    assert RunFailure.of(ZeroDivisionError("x\ny")).line == "ZeroDivisionError: x y"
    kinds = [RunFailure.of(error).kind for error in (KeyError(1), TimeoutError())]
    assert kinds == ["Bug", "TimeLimit"]


def test_a_person_stops_a_run_by_the_keyboard_or_by_kill() -> None:
    stopped = [RunFailure.of(error).kind for error in (KeyboardInterrupt(), TerminationSignal(signal.SIGTERM))]
    assert stopped == ["Stopped", "Stopped"]
