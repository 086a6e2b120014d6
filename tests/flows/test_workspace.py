"""The flow's surroundings: its lock, its screen, its Prefect API."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows._workspace import prefect_api
from orchestra.errors import ServiceError
from orchestra.system.processes import alive, descendants, started_at
from orchestra.system.workspace import Screen, locked

HOLD = """
import sys
from pathlib import Path
from orchestra.system.workspace import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_flow_at_a_time_and_a_killed_one_frees_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(ServiceError, match=f"a run with pid {holder.pid} works in this workspace"), locked(tmp_path):
        pass
    holder.kill()
    holder.communicate()
    with locked(tmp_path), locked(tmp_path):
        assert (tmp_path / ".state" / "flow.lock").read_text() == str(os.getpid())


def test_progress_is_thinned_out_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(every_s=1000)
    for percent in range(0, 101, 10):
        screen(f"sft: steps {percent}/100 ({percent}%)")
    screen("sft: done")
    assert capsys.readouterr().out.splitlines() == ["sft: steps 0/100 (0%)", "sft: steps 100/100 (100%)", "sft: done"]


def test_an_api_that_is_set_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example/api")
    before = descendants(os.getpid())
    with prefect_api(tmp_path) as ready:
        assert ready() == "http://prefect.example/api" and descendants(os.getpid()) == before


def test_an_api_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "/proc/nowhere")
    before = descendants(os.getpid())
    with pytest.raises(ServiceError, match="Prefect's API does not start"), prefect_api(tmp_path) as ready:
        ready()
    assert not [pid for pid in descendants(os.getpid()) if pid not in before and alive(pid)]


def test_runs_of_a_killed_flow_are_crashed(prefect: None, tmp_path: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    from flows._runs import RUNS, crash_stale

    @flow(name="stale-demo")
    def demo() -> None:
        return None

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, mine = socket.gethostname(), {"pid": os.getpid(), "started": started_at(os.getpid())}
    records = {
        "killed": {"host": here, "pid": ended.pid, "started": "1"},
        "its pid was reused": {"host": here, "pid": os.getpid(), "started": "1"},
        "runs": {"host": here, **mine},
        "elsewhere": {"host": "another", "pid": ended.pid, "started": "1"},
        "own, retried": {"host": here, "pid": ended.pid, "started": "1"},
        "ended well": {"host": here, "pid": ended.pid, "started": "1"},
    }
    (tmp_path / RUNS).mkdir(parents=True)
    (tmp_path / RUNS / "half.json").write_text("{")
    (tmp_path / RUNS / f"{uuid4()}.json").write_text(json.dumps(records["killed"]))
    with get_client(sync_client=True) as client:
        ids = {
            name: client.create_flow_run(demo, state=Completed() if name == "ended well" else Running()).id
            for name in records
        }
        for name, record in records.items():
            (tmp_path / RUNS / f"{ids[name]}.json").write_text(json.dumps(record))
        assert crash_stale(tmp_path, ids["own, retried"]) == 2
        states: dict[str, Any] = {name: client.read_flow_run(run_id).state for name, run_id in ids.items()}
    assert {name for name, state in states.items() if state.is_crashed()} == {"killed", "its pid was reused"}
    assert states["killed"].message == "its process was killed"
    assert {file.stem for file in (tmp_path / RUNS).iterdir()} == {str(ids["runs"]), str(ids["elsewhere"])}


def test_a_run_is_on_record_while_it_is_under_way(prefect: None, tmp_path: Path) -> None:
    from prefect import flow

    from flows._runs import RUNS, under_way

    @flow(name="under-way-demo")
    def demo() -> list[str]:
        with under_way(tmp_path, alone=True) as run:
            return [*(file.stem for file in (tmp_path / RUNS).iterdir()), str(run.id)]

    recorded, run_id = demo()
    assert recorded == run_id and not list((tmp_path / RUNS).iterdir())


def test_monitor_fails_by_name_when_nothing_was_released(
    prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.monitor import monitor

    text = (Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    state: Any = monitor(return_state=True)
    assert state.is_failed()
    with pytest.raises(ServiceError, match="nothing was released"):
        state.result()
