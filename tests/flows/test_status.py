"""`orchestra status` beside servers that accept and never answer, or a byte at a time, and a DVC that is busy."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows import status
from orchestra.config.overrides import in_force
from orchestra.system.processes import LOCALHOST, Service, remember, started_at
from orchestra.system.runs import RunRecord, StageRecord
from orchestra.system.workspace import LOCK
from tests.flows.workspace import ROOT

SILENT, SLOW = "silent", "a byte at a time"


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """Two servers that accept: one never says a word, the other never comes to the end of its first line."""
    ended, listeners = threading.Event(), {name: socket.create_server((LOCALHOST, 0)) for name in (SILENT, SLOW)}
    held: list[socket.socket] = []

    def accept(name: str) -> None:
        while not ended.is_set():
            try:
                taken, _ = listeners[name].accept()
            except OSError:
                return
            held.append(taken)
            if name == SLOW:
                threading.Thread(target=drip, args=(taken,), daemon=True).start()

    def drip(taken: socket.socket) -> None:
        while not ended.wait(0.2):
            try:
                taken.sendall(b"H")
            except OSError:
                return

    for name in listeners:
        threading.Thread(target=accept, args=(name,), daemon=True).start()
    yield {name: f"http://{LOCALHOST}:{one.getsockname()[1]}" for name, one in listeners.items()}
    ended.set()
    for one in (*listeners.values(), *held):
        one.close()


@pytest.fixture
def workspace(tmp_path: Path, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    for number, name in enumerate((SILENT, SILENT, SLOW, SLOW)):
        me = os.getpid()
        remember(tmp_path, Service(f"mlflow-{number}", me, started_at(me) or "", 0, addresses[name], f"log{number}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", addresses[SLOW])
    return tmp_path


def test_no_server_registry_or_dvc_holds_status_back(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "SERVERS_S", 1.0)
    monkeypatch.setattr(status, "REGISTRY_S", 1.0)
    monkeypatch.setattr(status, "STAGES_S", 1.0)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda root: time.sleep(60))
    began = time.monotonic()
    status.main()
    took = time.monotonic() - began
    said = capsys.readouterr().out
    assert took < 10, f"{took:.1f} s: one after another, or none of them bounded"
    for number in range(4):
        (line,) = (line for line in said.splitlines() if line.startswith(f"  mlflow-{number} "))
        assert "does not answer within" in line and f"see log{number}" in line
    assert "Registry\n  does not answer within 1 s" in said
    assert "Stages\n  not known within 1 s" in said and "deploy      did not run yet" in said


def test_a_persons_answer_takes_the_place_of_the_gates_decision(tmp_path: Path) -> None:
    """A monitor asks the served model in a stage of the same name."""

    def record(flow: str, minute: int, **stages: str) -> RunRecord:
        at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
        made = {name: StageRecord(state=state, began=at, ended=at) for name, state in stages.items()}
        return RunRecord(id=str(minute), name=flow, flow=flow, began=at, stages=made)

    monitor = record("monitor", 4, answer="as at its release")
    late = record("answer", 3, answer="Failed")
    given = record("answer", 2, answer="version 2 approved", deploy="version 2 released")
    ran = record("retrain", 1, promote="version 2 waiting", deploy="version 1 unchanged")
    promote, deploy = status.release_lines(tmp_path, [monitor, late, given, ran])
    assert "promote     version 2 approved, " in promote and "deploy      version 2 released, " in deploy
    promote, _ = status.release_lines(tmp_path, [monitor, late, ran])
    assert "version 2 waiting" in promote


def test_values_that_a_killed_run_left_are_named(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    assert status.leftover_lines(tmp_path) == []
    killed = in_force(tmp_path, ["sft.seed=17"])
    killed.__enter__()
    (line,) = status.leftover_lines(tmp_path)
    assert "(sft.seed): orchestra plan takes them out" in line
    with (tmp_path / LOCK).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert status.leftover_lines(tmp_path) == [], "a run works with them"


def test_the_process_ends_though_a_part_still_waits(workspace: Path) -> None:
    program = (
        "import time; from flows import status; status.STAGES_S = 0.5; "
        "status.dvc.stages = lambda root: time.sleep(60); status.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=workspace, env=environment, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0 and "not known within 0.5 s" in done.stdout and not done.stderr, done.stderr
    assert time.monotonic() - began < 50
