"""Names of schedules that would replace what `orchestra retraining on` or another workspace deploys, and their end."""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows import notify, retraining, schedule
from flows.schedule import add, deployments, listed, own_deployments, remove
from flows.server.mail import email
from orchestra.errors import ConfigError, ServiceError
from orchestra.system import servers
from orchestra.system.processes import alive, running, start_service, started_at, stop_services
from orchestra.system.runs import RunRecord, save
from orchestra.text import digest
from tests.flows.workspace import make
from tests.support.waiting import soon

CRON = "0 3 * * *"


@pytest.mark.parametrize(("name", "flow"), [("asked", "retrain"), ("asked", "monitor"), ("watch", "retrain")])
def test_the_names_of_automatic_retraining_are_refused(tmp_path: Path, name: str, flow: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a deployment of `orchestra retraining on` — write another name"):
        add(tmp_path, name, flow, CRON, "UTC", [])


def test_a_monitor_may_be_called_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(schedule, "effective", reached)
    with pytest.raises(InterruptedError):
        add(tmp_path, "watch", "monitor", CRON, "UTC", [])


@pytest.mark.parametrize("cron", ["0 0 3 * * *", "@hourly", "0 0 31 2 *", "0 22-2 * * *", "0 3 * *", "every day", ""])
def test_what_is_not_five_fields_or_never_comes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cron: str
) -> None:
    monkeypatch.setattr(schedule, "effective", lambda *_: None)
    monkeypatch.setattr(servers, "start", lambda *_, **__: pytest.fail("nothing starts for a wrong argument"))
    with pytest.raises(ConfigError) as caught:
        add(tmp_path, "nightly", "retrain", cron, "UTC", [])
    assert str(caught.value) == f'--cron: {cron!r} is no schedule — write five fields, such as "0 3 * * *"'
    with pytest.raises(ConfigError, match="'Mars' is no time zone"):
        add(tmp_path, "nightly", "retrain", CRON, "Mars", [])


def test_a_run_asks_the_server_of_its_worker_wherever_that_is_now() -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.workers.process import ProcessJobConfiguration

    moved = "http://127.0.0.1:4300/api"
    job = ProcessJobConfiguration(env=dict(schedule._environment()))
    with temporary_settings({PREFECT_API_URL: moved}):
        job.prepare_for_flow_run(FlowRun(flow_id=uuid4()))
    assert job.env["PREFECT_API_URL"] == moved and job.env["DO_NOT_TRACK"] == "true"


@pytest.fixture
def two(prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two workspaces on one server of Prefect, which starts nothing of theirs."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    @contextlib.contextmanager
    def connected(_root: Path) -> Iterator[str]:
        yield str(PREFECT_API_URL.value())

    for module in (schedule, retraining, notify):
        monkeypatch.setattr(module, "connected", connected)
    monkeypatch.setattr(servers, "start", lambda *_, **__: iter(()))
    yield [make(tmp_path / name).root for name in ("shop", "bank")]
    with get_client(sync_client=True) as client:
        for one in client.read_deployments():
            client.delete_deployment(one.id)
        for automation in client.read_automations():
            client.delete_automation(automation.id)


def test_a_schedule_of_another_workspace_is_not_replaced(two: list[Path]) -> None:
    shop, bank = two
    add(shop, "nightly", "retrain", CRON, "UTC", [])
    fix = "another workspace has retrain/nightly on this Prefect server — write another name, such as nightly-bank"
    with pytest.raises(ConfigError, match=fix):
        add(bank, "nightly", "retrain", "0 4 * * *", "UTC", [])
    add(bank, "nightly", "monitor", CRON, "UTC", [])  # Of another flow, it is another one.
    add(bank, "nightly-bank", "retrain", CRON, "UTC", [])
    add(shop, "nightly", "retrain", "0 5 * * *", "UTC", [])  # Its own is replaced.
    assert [one.schedules[0].schedule.cron for one in deployments(shop)] == ["0 5 * * *"]
    assert [one.name for one in deployments(bank)] == ["nightly", "nightly-bank"]
    remove(shop, "nightly")
    add(bank, "nightly", "retrain", CRON, "UTC", [])


def test_a_name_is_of_one_schedule_whatever_its_flow(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, bank = two
    add(bank, "nightly-bank", "retrain", CRON, "UTC", [])
    add(shop, "nightly", "monitor", CRON, "UTC", [])
    assert (shop / servers.MONITORED).is_file()
    add(shop, "nightly", "retrain", CRON, "UTC", [])
    assert "nightly: it takes the place of the schedule of monitor\n" in capsys.readouterr().out
    assert [one.entrypoint for one in deployments(shop)] == [schedule.ENTRYPOINTS["retrain"]]
    assert not (shop / servers.MONITORED).exists() and len(deployments(bank)) == 1
    # Two of an older version are both removed, and the worker ends with them.
    schedule.deploy(shop, "nightly", "monitor", description="made before")
    assert len(deployments(shop)) == 2
    monkeypatch.setattr(servers, "forget_worker", lambda _root: True)
    capsys.readouterr()
    remove(shop, "nightly")
    assert deployments(shop) == []
    assert capsys.readouterr().out == "nightly: removed\nworker: ended, since no schedule is left\n"


@pytest.mark.slow
def test_a_restored_workspace_makes_its_schedules_again_on_its_own_server(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL

    old, restored = two
    add(old, "weekly", "retrain", CRON, "UTC", [])
    list(retraining.switch_on(old))
    url = str(PREFECT_API_URL.value()).removesuffix("/api")
    monkeypatch.setattr(servers, "address", lambda root, _name: url if root == restored else None)
    old.rename(old.with_name("gone"))
    add(restored, "weekly", "retrain", "0 4 * * *", "UTC", [])
    list(retraining.switch_on(restored))
    assert [one.name for one in deployments(restored)] == ["asked", "watch", "weekly"]
    assert own_deployments(restored) == deployments(restored), "nothing of the folder that is gone"
    assert list(retraining.switch_off(restored)) == ["automation orchestra-retraining: removed"]
    remove(restored, "watch")


@pytest.mark.slow
def test_on_its_own_server_a_workspace_leaves_alone_what_another_one_made(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL

    host, guest = two
    url = str(PREFECT_API_URL.value()).removesuffix("/api")
    monkeypatch.setattr(servers, "address", lambda root, _name: url if root == host else None)
    add(guest, "nightly", "retrain", CRON, "UTC", [])
    list(retraining.switch_on(guest))
    notify.add(guest, ["http://127.0.0.1:1/x"])
    theirs = own_deployments(guest)

    monkeypatch.setattr(retraining, "hindrance", lambda *_, **__: "")
    assert retraining.announce(host) == "a retraining is due: orchestra retraining start, or on"
    with pytest.raises(ConfigError, match="this workspace deployed no retraining"):
        list(retraining.switch_off(host))
    with pytest.raises(ConfigError, match="another workspace has retrain/nightly"):
        add(host, "nightly", "retrain", CRON, "UTC", [])
    asked, watch = (line.partition(":")[0] for line in list(retraining.switch_on(host))[:2])
    assert asked.startswith("asked-") and watch.startswith("watch-")
    notify.add(host, ["http://127.0.0.1:1/y"])
    assert notify.remove(host) == 6 and list(retraining.switch_off(host)) == []
    assert own_deployments(guest) == theirs and len(addresses()) == 1

    seen = [(line.split()[0], line.endswith("of another workspace")) for line in listed(host)]
    assert seen == [("asked", True), ("nightly", True), ("watch", True), (watch, False)]
    add(host, "nightly", "monitor", CRON, "UTC", [])
    remove(host, "nightly")  # Its own is first.
    assert own_deployments(guest) == theirs
    remove(host, "nightly")
    assert [one.name for one in deployments(guest)] == ["asked", "watch"] and notify.remove(guest) == 6


@pytest.mark.slow
def test_the_addresses_of_notices_go_with_them(two: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shop, bank = two
    with monkeypatch.context() as before:
        before.setattr(schedule, "workspace_id", lambda root: digest(str(root.resolve())))
        notify.add(shop, ["http://127.0.0.1:1/x", "http://127.0.0.1:1/y"])
        mail = email("mailto:a@example.org", "smtps://b@example.org@mail.example.org", None)
        mail.save(f"{schedule.workspace_tag(shop)}-mail-2")
    notify.add(bank, ["http://127.0.0.1:1/z"])
    assert len(addresses()) == 4
    notify.add(shop, ["http://127.0.0.1:1/x"])
    assert addresses() == sorted(f"{schedule.workspace_tag(root)}-webhook-0" for root in two)
    notify.remove(shop)
    assert addresses() == [f"{schedule.workspace_tag(bank)}-webhook-0"]
    notify.remove(bank)


def addresses() -> list[str]:
    """Names of the blocks that keep them."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return sorted(str(one.name) for one in client.read_block_documents() if str(one.name).startswith("orchestra-"))


def test_the_same_path_of_two_machines_is_two_workspaces(two: list[Path]) -> None:
    root, _ = two
    add(root, "nightly", "retrain", CRON, "UTC", [])
    assert len(notify.add(root, ["http://127.0.0.1:1/x"])) == 6
    theirs = root.rename(root.with_name("theirs"))
    make(root)  # The other machine's.
    assert not deployments(root)
    with pytest.raises(ConfigError, match="another workspace has retrain/nightly"):
        add(root, "nightly", "retrain", CRON, "UTC", [])
    assert notify.remove(root) == 0
    shutil.rmtree(root)
    theirs.rename(root)
    assert [one.name for one in deployments(root)] == ["nightly"] and notify.remove(root) == 6


@pytest.mark.slow
def test_what_an_older_version_scheduled_is_replaced(two: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shop, bank = two
    list(retraining.switch_on(shop))
    with monkeypatch.context() as before:
        before.setattr(schedule, "workspace_id", lambda root: digest(str(root.resolve())))
        list(retraining.switch_on(bank))
        add(bank, "nightly", "retrain", CRON, "UTC", [])
        notify.add(bank, ["http://127.0.0.1:1/x"])
    names = [one.name for one in deployments(bank)]
    assert len(names) == 3 and "nightly" in names
    list(retraining.switch_on(bank))
    add(bank, "nightly", "retrain", "0 4 * * *", "UTC", [])
    notify.add(bank, ["http://127.0.0.1:1/x"])
    assert [one.name for one in deployments(bank)] == names and notify.remove(bank) == 6


@pytest.mark.slow
def test_automatic_retraining_of_two_workspaces_has_two_deployments(two: list[Path]) -> None:
    shop, bank = two
    list(retraining.switch_on(shop))
    list(retraining.switch_on(bank))
    again = list(retraining.switch_on(bank))
    assert [one.name for one in deployments(shop)] == ["asked", "watch"]
    asked, watch = (one.name for one in deployments(bank))
    assert asked.startswith("asked-") and watch.startswith("watch-") and again[0].startswith(f"{asked}: ")
    assert list(retraining.switch_off(bank)) == [], "the automation is also of the other one"
    assert [one.name for one in deployments(bank)] == [watch]
    assert list(retraining.switch_off(shop)) == ["automation orchestra-retraining: removed"]


def test_the_last_schedule_stays_while_its_worker_plays_a_run(two: list[Path]) -> None:
    root = two[0]
    add(root, "last", "retrain", CRON, "UTC", [])
    add(root, "first", "retrain", CRON, "UTC", [])
    start_service(root, "worker", ["sh", "-c", "sleep 600 & echo $! > child; wait"], port=0, url="")
    try:
        assert soon(lambda: (root / "child").is_file() and (root / "child").read_text().endswith("\n"), 60)
        pid = int((root / "child").read_text())
        where = {"host": socket.gethostname(), "pid": pid, "started": started_at(pid)}
        save(root, RunRecord(id="a", name="sad-fox", flow="retrain", began=datetime.now(UTC), **where))
        remove(root, "first")
        with pytest.raises(ServiceError, match=f"the run sad-fox — wait for it, or end it: kill {pid}"):
            remove(root, "last")
        assert [one.name for one in deployments(root)] == ["last"] and running(root, "worker")
        os.kill(pid, signal.SIGKILL)
        assert soon(lambda: not alive(pid), 60)
        remove(root, "last")
        assert running(root, "worker") is None
    finally:
        stop_services(root)


def test_the_columns_of_the_list_stand_apart(two: list[Path]) -> None:
    root = two[0]
    add(root, "every-half-hour-on-weekdays", "retrain", "*/30 8-18 * * 1-5", "America/Argentina/Buenos_Aires", [])
    add(root, "last", "monitor", CRON, "UTC", [])
    assert listed(root) == [
        "every-half-hour-on-weekdays  retrain  '*/30 8-18 * * 1-5' America/Argentina/Buenos_Aires",
        "last                         monitor  '0 3 * * *' UTC",
    ]


@pytest.mark.slow
def test_what_a_person_changed_in_prefect_is_listed_and_retraining_on_brings_the_monitor_back(two: list[Path]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.schedules import IntervalSchedule, RRuleSchedule
    from prefect.states import Cancelled

    root, monitored = two[0], two[0] / servers.MONITORED
    assert list(retraining.switch_on(root))[1] == "watch: monitor at '*/5 * * * *' UTC" and monitored.is_file()
    assert not [line for line in retraining.switch_on(root) if "monitor" in line], "it looks already"
    watch = next(one for one in deployments(root) if one.name == "watch")
    with get_client(sync_client=True) as client:
        client.update_deployment_schedule(watch.id, watch.schedules[0].id, active=False)
        hourly = IntervalSchedule(interval=timedelta(hours=1), timezone="UTC")
        more: list[Any] = [(hourly, False), (RRuleSchedule(rrule="FREQ=DAILY", timezone="UTC"), False)]
        client.create_deployment_schedules(watch.id, more)
        client.pause_deployment(watch.id)
        busy: Any = Cancelled(message="Deployment concurrency limit reached.")
        client.create_flow_run_from_deployment(watch.id, state=busy)
    (line,) = (line for line in listed(root) if line.startswith("watch"))
    for said in ("'*/5 * * * *' UTC off", "every 1:00:00 off", " FREQ=DAILY' UTC off", "  paused"):
        assert said in line
    assert line.endswith("  newest run cancelled: Deployment concurrency limit reached.")

    assert "watch: monitor, on again" in list(retraining.switch_on(root))
    (line,) = (line for line in listed(root) if line.startswith("watch"))
    assert " off" not in line and "paused" not in line
    remove(root, "watch")
    assert not monitored.exists()
    add(root, "often", "monitor", "* * * * *", "UTC", [])
    monitored.unlink()
    schedule.catch_up(root)
    assert monitored.is_file(), "a monitor that an older version scheduled is missed, too"
