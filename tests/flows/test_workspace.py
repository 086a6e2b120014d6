"""The flow's surroundings: its lock, its screen, its Prefect API."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flows.__main__ import _assign, main
from flows._workspace import PREFECT_SETTINGS, prefect_api, settings
from orchestra.config.overrides import in_force
from orchestra.config.schema import load_params
from orchestra.errors import DataError, OrchestraError, ServiceError
from orchestra.system.processes import alive, descendants, started_at
from orchestra.system.runs import RUNS, RunRecord, find, runs, save
from orchestra.system.servers import PREFECT_LOGIN, PREFECT_URL, prefect_login
from orchestra.system.storage import PREFECT
from orchestra.system.workspace import LOCK, Screen, locked, locked_elsewhere
from tests.support.endpoint import idle_proxy
from tests.support.worlds import ROOT

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
    assert locked_elsewhere(tmp_path)
    holder.kill()
    holder.communicate()
    assert not locked_elsewhere(tmp_path)
    with locked(tmp_path), locked(tmp_path):
        assert not locked_elsewhere(tmp_path)
        assert (tmp_path / ".state" / "flow.lock").read_text() == str(os.getpid())


def test_the_lock_takes_back_what_a_killed_run_left_in_force(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / ".state").mkdir()
    before = (tmp_path / "params.yaml").read_text()
    killed = in_force(tmp_path, ["budget.run_usd=0.37", "promote.model_name=scratch"])
    killed.__enter__()
    with locked(tmp_path):
        assert (tmp_path / "params.yaml").read_text() == before
        with in_force(tmp_path, ["grpo.steps=8"]), locked(tmp_path):
            # Who has the lock already is in the middle of a run.
            assert load_params(tmp_path / "params.yaml").grpo.steps == 8


def test_a_wrong_name_leaves_the_profile_as_it_was(tmp_path: Path) -> None:
    for name in ("params.yaml", "data", "models", "dvc.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "params.yaml").unlink()
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before, said = (tmp_path / "params.yaml").read_text(), list[str]()
    with pytest.raises(OrchestraError, match="nobody"):
        _assign(tmp_path, "qwen3-0.6b", ["world.domains=[nobody]"], said.append, promotes=True)
    assert (tmp_path / "params.yaml").read_text() == before and not said
    assert not (tmp_path / "params").exists()


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


@pytest.fixture
def before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run sets in the environment is as a user has it, and ends with the test."""
    for name in (PREFECT_URL, PREFECT_LOGIN, "no_proxy", "NO_PROXY", "PREFECT_LOGGING_LEVEL", *PREFECT_SETTINGS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "elsewhere"))


@pytest.mark.usefixtures("before_a_run")
def test_a_run_asks_no_proxy_and_keeps_its_history_in_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's login would pass through a proxy in clear, and `orchestra up` reads this workspace's database."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[str, str]] = []

    def api(_: Path) -> NoReturn:
        seen.append((os.environ["no_proxy"], os.environ["PREFECT_HOME"]))
        raise ServiceError("no API")

    monkeypatch.setattr("flows.__main__.prefect_api", api)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["monitor"]) == 2
    assert seen == [("127.0.0.1,localhost,::1", str((tmp_path / PREFECT).parent))]


def test_prefect_is_loaded_once_its_surroundings_are_set(tmp_path: Path) -> None:
    """It reads them as it is imported."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    program = """
import sys
import flows.__main__ as module
from orchestra.errors import ServiceError

def api(root):
    raise ServiceError("loaded" if "prefect" in sys.modules else "not loaded")

module.prefect_api = api
sys.exit(module.main(["monitor"]))
"""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and done.stderr == "error: not loaded\n"


def test_an_api_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "/proc/nowhere")
    before = descendants(os.getpid())
    with pytest.raises(ServiceError, match="Prefect's API does not start"), prefect_api(tmp_path) as ready:
        ready()
    assert not [pid for pid in descendants(os.getpid()) if pid not in before and alive(pid)]


@pytest.mark.usefixtures("before_a_run")
def test_the_api_of_a_run_does_nothing_for_who_does_not_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that the user visits, and other users of the machine, reach the port too; a pool runs commands."""
    asked = [
        ("POST", "/flows/", {"name": "x"}),
        ("POST", "/work_pools/", {"name": "x", "type": "process"}),
        ("POST", "/deployments/filter", {}),
        ("POST", "/block_documents/filter", {"include_secrets": True}),
        ("GET", "/admin/settings", None),
    ]
    sockets = ("/events/in", "/events/out", "/logs/out", "/work_pools/x/workers/connect")
    with idle_proxy() as proxies, monkeypatch.context() as proxied:
        for name, value in proxies.items():
            proxied.setenv(name, value)
        settings(tmp_path)
        with prefect_api(tmp_path) as ready:
            url = ready()
            assert os.environ[PREFECT_URL] == url and os.environ[PREFECT_LOGIN] == prefect_login(tmp_path)
            with httpx.Client(trust_env=False, timeout=60, headers={"Origin": "https://page.example"}) as page:
                for kind, path, body in asked:
                    for login in (None, ("orchestra", "wrong"), ("", "")):
                        assert page.request(kind, url + path, json=body, auth=login).status_code == 401, path
                user, _, password = prefect_login(tmp_path).partition(":")
                assert page.post(f"{url}/flows/", json={"name": "x"}, auth=(user, password)).status_code == 201
                assert page.get(f"{url}/health").status_code == 200
            for path in sockets:
                for protocols in (None, [Subprotocol("prefect")]):
                    with (
                        pytest.raises(WebSocketException),
                        connect(f"ws{url[4:]}{path}", subprotocols=protocols) as socket_,
                    ):
                        socket_.send('{"type": "auth", "token": "wrong"}')
                        socket_.recv(timeout=60)
    assert (tmp_path / PREFECT).is_file() and not (tmp_path / "elsewhere/prefect.db").exists()
    assert PREFECT_URL not in os.environ and PREFECT_LOGIN not in os.environ


def test_runs_of_a_killed_flow_are_crashed(prefect: None, tmp_path: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    from flows._runs import crash_stale

    @flow(name="stale-demo")
    def demo() -> None:
        return None

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = {"host": socket.gethostname(), "pid": ended.pid, "started": "1"}
    made: dict[str, dict[str, Any]] = {
        "killed": gone,
        "its pid was reused": gone | {"pid": os.getpid()},
        "runs": gone | {"pid": os.getpid(), "started": started_at(os.getpid())},
        "elsewhere": gone | {"host": "another"},
        "elsewhere, beside": gone | {"host": "another", "alone": False},
        "own, retried": gone,
        "ended well": gone,
    }
    (tmp_path / RUNS).mkdir(parents=True)
    (tmp_path / RUNS / "half.json").write_text("{")
    with get_client(sync_client=True) as client:
        ids = {
            name: client.create_flow_run(demo, state=Completed() if name == "ended well" else Running()).id
            for name in made
        }
        for name, told in {**made, "unknown to Prefect": gone}.items():
            run_id = str(ids.get(name, uuid4()))
            save(tmp_path, RunRecord(id=run_id, name=name, flow="stale-demo", began=datetime.now(UTC), **told))
        assert crash_stale(tmp_path, ids["own, retried"], alone=False) == 2
        assert crash_stale(tmp_path, ids["own, retried"], alone=False) == 0
        with locked(tmp_path):
            assert crash_stale(tmp_path, ids["own, retried"], alone=True) == 1, "a run elsewhere would have the lock"
        states: dict[str, Any] = {name: client.read_flow_run(run_id).state for name, run_id in ids.items()}
    crashed = {name for name, state in states.items() if state.is_crashed()}
    assert crashed == {"killed", "its pid was reused", "elsewhere"}
    assert states["killed"].message == "its process was killed"
    assert {one.name: one.state for one in runs(tmp_path) if one.ended is None} == dict.fromkeys(
        ("runs", "elsewhere, beside"), "Running"
    )


def test_a_run_whose_end_prefect_missed_ends_there_as_on_record(prefect: None, tmp_path: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from flows._runs import crash_stale

    @flow(name="missed-demo")
    def demo() -> None:
        return None

    gone, now = {"host": socket.gethostname(), "pid": 2**22, "started": "1"}, datetime.now(UTC)
    made: dict[str, dict[str, Any]] = {
        "done": gone | {"state": "Rejected", "message": "one limit is missed"},
        "failed": gone | {"state": "Failed", "message": "corrupt"},
        "killed": gone | {"state": "Killed"},
        "about to report": gone | {"pid": os.getpid(), "started": started_at(os.getpid()), "state": "Completed"},
        "retried": gone | {"state": "Failed", "ended": now - timedelta(hours=1)},
        "own": gone | {"state": "Failed"},
    }
    later = now + timedelta(minutes=1)
    with get_client(sync_client=True) as client:
        ids = {name: client.create_flow_run(demo, state=Running()).id for name in made}
        for name, told in made.items():
            fields: dict[str, Any] = {"began": now - timedelta(hours=2), "ended": later, **told}
            save(tmp_path, RunRecord(id=str(ids[name]), name=name, flow="missed-demo", **fields))
        assert crash_stale(tmp_path, ids["own"], alone=False) == 3
        assert crash_stale(tmp_path, ids["own"], alone=False) == 0
        states: dict[str, Any] = {name: client.read_flow_run(run_id).state for name, run_id in ids.items()}
    assert [(states[name].name, states[name].message) for name in ("done", "failed")] == [
        ("Rejected", "one limit is missed"),
        ("Failed", "corrupt"),
    ]
    assert states["done"].is_completed() and states["killed"].is_crashed()
    assert all(states[name].is_running() for name in ("about to report", "retried", "own"))


def test_a_run_is_on_record_with_how_it_ended(prefect: None, tmp_path: Path) -> None:
    from prefect import flow

    from flows._runs import under_way

    @flow(name="under-way-demo")
    def demo(bad: bool = False) -> str:
        with under_way(tmp_path, alone=True) as journal:
            assert [(one.state, one.lives) for one in runs(tmp_path) if one.ended is None] == [("Running", True)]
            with journal.stage("sft", ("it has not run yet",)) as note:
                if bad:
                    raise DataError("corrupt", where="a.jsonl", fix="make it again")
                note("ran")
            return journal.record.id

    recorded = demo()
    state: Any = demo(True, return_state=True)
    assert state.is_failed()
    failed, good = runs(tmp_path)
    assert (good.id, good.state, good.stages["sft"].state, good.failed) == (recorded, "Completed", "ran", False)
    assert good.alone
    assert (failed.state, failed.stage, failed.parameters) == ("Failed", "sft", {"bad": True})
    assert failed.failure is not None and failed.failure.kind == "DataError"
    assert failed.failure.line == "a.jsonl: corrupt — make it again"
    assert failed.stages["sft"].state == "Failed" and failed.stages["sft"].why == ("it has not run yet",)


@pytest.mark.parametrize("person", [False, True])
def test_a_run_that_is_due_while_another_works_is_skipped_by_name_and_a_persons_fails_on_record(
    prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], person: bool
) -> None:
    from prefect import Flow
    from prefect.flow_engine import run_flow

    from flows.release import release
    from flows.retrain import retrain

    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / LOCK).parent.mkdir()
    both: tuple[Flow[Any, Any], ...] = (retrain, release)
    with (tmp_path / LOCK).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        holder.write("123")
        holder.flush()
        for flow in both:
            run = _deployed(flow, person)
            state: Any = run_flow(flow, flow_run=run, return_type="state")
            said = capsys.readouterr().out.splitlines()
            why = "a run with pid 123 works in this workspace"
            if person:
                assert state.is_failed() and said[-1].startswith(f"{flow.name} {run.name} failed: {tmp_path}: {why}")
                assert find(runs(tmp_path), run.name).failed
            else:
                assert (state.is_completed(), state.name, state.message) == (True, "Skipped", why)
                assert said == [f"{flow.name} {run.name} skipped: {why}"] and runs(tmp_path) == []


def _deployed(flow: Any, person: bool) -> Any:
    """A run of a deployment that Prefect's schedule made, or a person."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.schedules import IntervalSchedule
    from prefect.states import Pending

    with get_client(sync_client=True) as client:
        nightly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=1)))
        deployment = client.create_deployment(client.create_flow(flow), f"nightly-{person}", schedules=[nightly])
        if person:
            return client.create_flow_run_from_deployment(deployment)
        client.request("POST", "/deployments/{id}/schedule", path_params={"id": deployment}, json={"max_runs": 1})
        of_it = FlowRunFilter.model_validate({"deployment_id": {"any_": [deployment]}})
        (run,) = client.read_flow_runs(flow_run_filter=of_it)
        client.set_flow_run_state(run.id, Pending(), force=True)
        return client.read_flow_run(run.id)


def test_monitor_fails_by_name_when_nothing_was_released(
    prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.monitor import monitor

    text = (Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    state: Any = monitor(return_state=True)
    assert state.is_failed()
    with pytest.raises(ServiceError, match="nothing was released"):
        state.result()
    assert [(one.state, one.alone) for one in runs(tmp_path)] == [("Failed", False)]
