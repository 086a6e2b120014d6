"""Facts of a workspace for Prometheus, read from its real records; a part that fails hides no other."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orchestra.files.checkpoint import hash_dir
from orchestra.serving.releases.state import Serving, write
from orchestra.system.processes import LOCALHOST, Service, free_port, kill_tree, remember, spawn, started_at
from orchestra.system.retraining import RetrainReason, ask, close, take
from orchestra.system.runs import CAPPED, RunFailure, RunJournal, RunRecord, save
from orchestra.system.servers import MONITORED, answers
from tasks.platform.registry import CHAMPION, Registry
from tasks.records.judged import FIGURES, JUDGED, SpendingFigures
from tasks.records.metrics import PARTS, WorkspaceMetrics
from tasks.records.shared import KNOWN
from tests.support.databases import make_database
from tests.support.stores import KEYS, s3_server
from tests.support.waiting import soon
from tests.support.worlds import ROOT, change


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "data").mkdir()
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


def facts(root: Path) -> dict[str, float]:
    """Every fact by name and labels."""
    registry = CollectorRegistry()
    registry.register(WorkspaceMetrics(root))
    return read(generate_latest(registry).decode())


def read(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(one.labels.items()))
            found[one.name.removeprefix("orchestra_") + (f"{{{labels}}}" if labels else "")] = one.value
    return found


def test_an_empty_workspace_has_nothing_to_alert(root: Path) -> None:
    found = facts(root)
    assert {found[f"unread{{part={part}}}"] for part in PARTS} == {0.0}
    assert found["disk_free_bytes"] > 0 and found["disk_size_bytes"] >= found["disk_free_bytes"]
    assert not [name for name in found if name.startswith(("run_", "server_", "champion_", "store_", "alias_"))]


def test_runs_that_failed_that_ended_and_that_say_nothing(root: Path) -> None:
    failed = RunJournal.begin(root, "a" * 8, "one", "monitor")
    failed.end("Failed", "no", RunFailure(kind="ServiceError", what="no"))
    RunJournal.begin(root, "b" * 8, "two", "release").end("Completed")
    silent = RunJournal.begin(root, "c" * 8, "three", "retrain")
    with silent.stage("sft"):
        log = root / ".state/logs/sft.log"
        log.parent.mkdir(parents=True)
        log.write_text("sft: step 1\n")
        hours_ago = time.time() - 7200
        for file in (log, root / ".state/runs" / f"{'c' * 8}.json"):
            os.utime(file, (hours_ago, hours_ago))
        found = facts(root)
        assert found["run_failed{flow=monitor}"] == 1 and found["run_failed{flow=release}"] == 0
        assert abs(found["run_ended_timestamp_seconds{flow=release}"] - time.time()) < 600
        assert 7200 <= found["run_silent_seconds{flow=retrain}"] < 7800
        assert "run_failed{flow=retrain}" not in found
        log.write_text("sft: step 2\n")
        assert facts(root)["run_silent_seconds{flow=retrain}"] < 600
    # Its process is gone: killed, as `orchestra status` says.
    save(root, silent.record.model_copy(update={"pid": 2**22 - 1, "started": "1"}))
    assert facts(root)["run_failed{flow=retrain}"] == 1


def test_a_failure_stays_told_while_the_next_run_of_its_flow_works(root: Path) -> None:
    failure = RunFailure(kind="ServiceError", what="no")
    RunJournal.begin(root, "a" * 8, "one", "monitor", alone=False).end("Failed", "no", failure)
    second = RunJournal.begin(root, "b" * 8, "two", "monitor", alone=False)
    assert facts(root)["run_failed{flow=monitor}"] == 1
    second.end("Completed")
    assert facts(root)["run_failed{flow=monitor}"] == 0


@pytest.mark.parametrize(
    ("flow", "stage"), [("sweep", "grpo.seed=1"), ("retrain", "push"), ("benchmark", ""), ("synthesize", "")]
)
def test_what_keeps_no_log_is_not_silent(root: Path, flow: str, stage: str) -> None:
    journal = RunJournal.begin(root, "a" * 8, "one", flow)
    with journal.stage(stage) if stage else contextlib.nullcontext():
        hours_ago = time.time() - 7200
        os.utime(root / ".state/runs" / f"{'a' * 8}.json", (hours_ago, hours_ago))
        assert not [name for name in facts(root) if name.startswith("run_silent")]


def test_a_monitor_is_late_only_where_one_is_scheduled_and_by_its_own_schedule(root: Path) -> None:
    now = datetime.now(UTC)

    def late(*minutes_ago: int, asked_by: str = "schedule watch") -> float:
        for number, ago in enumerate(minutes_ago):
            began = now - timedelta(minutes=ago)
            save(
                root, RunRecord(id=f"m{number}", name="m", flow="monitor", began=began, ended=began, asked_by=asked_by)
            )
        return facts(root)["monitor_late_seconds"] / 60

    def plan(noted_minutes_ago: int, *plans: Mapping[str, object]) -> None:
        (root / MONITORED).write_text(json.dumps(plans))
        noted = (now - timedelta(minutes=noted_minutes_ago)).timestamp()
        os.utime(root / MONITORED, (noted, noted))

    with pytest.raises(KeyError):
        late(40, 45)
    plan(0, {"every_s": 300.0})
    assert late() == 0, "it was scheduled just now"
    plan(600, {"every_s": 300.0})
    assert late(40, 45, 50) == pytest.approx(35, abs=1)
    assert late(0, asked_by="") == pytest.approx(40, abs=1), "a person's own look is no run of the schedule"
    past = now - timedelta(hours=1)
    daily = {"cron": f"{past.minute} {past.hour} * * *", "timezone": "UTC"}
    plan(30, daily)
    assert late() == 0, "a day's run is due in 23 hours, though none is on record"
    plan(600, daily)
    assert late(600, 601, 602) == pytest.approx(60, abs=1.1)
    plan(600, daily, {"every_s": 7200.0})
    assert late() == pytest.approx(480, abs=1.1), "the one that was due first"
    plan(600)
    with pytest.raises(KeyError):
        late()


def test_servers_that_answer_and_that_are_down(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.system.servers.ASK_TIMEOUT_S", 30.0)  # The cores may be busy.
    port = free_port()
    page = spawn([sys.executable, "-m", "http.server", str(port), "--bind", LOCALHOST], cwd=root, env=os.environ)
    try:
        (root / "health").write_text("ok")
        assert soon(lambda: answers(f"http://{LOCALHOST}:{port}/health"), 60)
        url = f"http://{LOCALHOST}:{port}"
        remember(root, Service("mlflow", page.pid, started_at(page.pid) or "", port, url, "log"))
        remember(root, Service("worker", 2**22 - 1, "1", 0, "", "log"))
        monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
        found = facts(root)
        assert found["server_up{server=mlflow}"] == 1 and found["server_up{server=worker}"] == 0
        assert found["server_up{server=prefect}"] == 0, "the team's server has no such page"
    finally:
        kill_tree(page.pid, grace_s=3)
    assert facts(root)["server_up{server=mlflow}"] == 0


def test_the_champion_its_age_and_whether_it_serves(root: Path) -> None:
    make_database(root)
    registry = Registry(root, "orchestrator")
    checkpoint = root / "models/grpo"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("x")
    registry.point(CHAMPION, registry.add(checkpoint, hash_dir(checkpoint), {}, None))
    found = facts(root)
    assert found["alias_version{alias=champion}"] == 1 and "champion_served" not in found
    assert abs(found["champion_made_timestamp_seconds"] - time.time()) < 600
    for version, served in (("2", 0.0), ("1", 1.0)):
        serving = Serving(
            version=version, checkpoint="x", checkpoint_hash="x", engine="vllm", params={}, fingerprint="x", code="x"
        )
        write(root, serving)
        assert facts(root)["champion_served"] == served


def test_prices_that_nobody_checked(root: Path) -> None:
    change(root, retraining={"stale_price_days": 36500})
    assert facts(root)["prices_stale"] == 0
    change(root, retraining={"stale_price_days": 1}, world={"price_date": "2025-11-15"})
    found = facts(root)
    assert found["prices_stale"] > 3 and found["tools_retired"] == 0
    assert found["price_date_timestamp_seconds"] == datetime(2025, 11, 15, tzinfo=UTC).timestamp()


def test_requests_of_retraining_and_their_dollars(root: Path) -> None:
    change(root, retraining={"monthly_usd": 12.5})
    reasons = [RetrainReason("drift", "a", "dollars"), RetrainReason("price", "b", "stale", "look them up")]
    ask(root, reasons, {"drift", "price"}, "monitor one")
    found = facts(root)
    assert found["retraining_requests{cause=drift,waits_for=run}"] == 1
    assert found["retraining_requests{cause=price,waits_for=person}"] == 1
    assert found["retraining_month_cap_usd"] == 12.5 and found["retraining_month_usd"] == 0
    assert found["retraining_month_over"] == 0
    taken = take(root, "r1", "r1", 1)
    close(root, taken, CAPPED, Decimal("12.4999"), answered=False, month_usd=Decimal("12.5"))
    over = facts(root)
    assert over["retraining_month_over"] == 1 and over["retraining_month_usd"] == 12.4999
    day_ago = (datetime.now(UTC) - timedelta(days=1)).timestamp()
    assert found["retraining_oldest_timestamp_seconds"] > day_ago


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as address:
        yield address


def test_the_store_and_the_last_push(root: Path, endpoint: str) -> None:
    change(root, storage={"url": "s3://team-models/x", "endpoint": endpoint})
    assert facts(root)["store_up"] == 1
    (root / KNOWN).parent.mkdir(exist_ok=True)
    (root / KNOWN).write_text("x")
    assert abs(facts(root)["store_pushed_timestamp_seconds"] - time.time()) < 600
    change(root, storage={"url": "s3://team-models/x", "endpoint": f"http://{LOCALHOST}:{free_port()}"})
    assert facts(root)["store_up"] == 0


def test_a_part_that_cannot_be_read_hides_no_other(root: Path) -> None:
    (root / "params.yaml").write_text("world: [")
    found = facts(root)
    assert found["unread{part=prices}"] == found["unread{part=store}"] == 1
    assert found["unread{part=disk}"] == 0 and found["disk_free_bytes"] > 0


def test_the_server_answers_and_ends_with_sigterm(root: Path) -> None:
    import httpx

    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen([sys.executable, "-m", "tasks.records.metrics", "--port", str(port)], cwd=root, env=env)
    try:
        assert soon(lambda: answers(f"http://{LOCALHOST}:{port}/favicon.ico"), 120)
        text = httpx.get(f"http://{LOCALHOST}:{port}/metrics", timeout=60, trust_env=False).text
        assert read(text)["unread{part=runs}"] == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_what_a_solved_request_costs_and_what_experts_charge(root: Path) -> None:
    assert not [name for name in facts(root) if name.startswith(("usd_per_solved", "price_ratio", "judged"))]
    serving = Serving(
        version="1", checkpoint="x", checkpoint_hash="x", engine="vllm", params={}, fingerprint="x", code="x"
    )
    write(root, serving)
    kept = SpendingFigures(
        fingerprint="x",
        by="rule",
        verdicts=70,
        evaluated_usd_per_solved=0.02,
        rose=True,
        price_ratios={"gpt-5": 1.5, "free": None},
    )
    (root / JUDGED).mkdir(parents=True)
    (root / JUDGED / FIGURES).write_text(kept.model_dump_json())
    found = facts(root)
    assert found["judged_answers"] == 70 and found["usd_per_solved_rose"] == 1
    assert found["usd_per_solved{side=served}"] == float("inf") and found["usd_per_solved{side=evaluated}"] == 0.02
    assert found["price_ratio{tool=gpt-5}"] == 1.5 and found["price_ratio{tool=free}"] == float("inf")
    write(root, serving.model_copy(update={"fingerprint": "y"}))
    assert "usd_per_solved_rose" not in facts(root), "figures of another release say nothing"
