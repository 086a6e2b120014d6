"""Who logs in at which server of Prefect."""

import asyncio
import base64
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from orchestra.errors import ServiceError
from orchestra.system import servers
from orchestra.system.processes import (
    PAUSE_S,
    Service,
    descendants,
    free_port,
    remember,
    running,
    start_service,
    started_at,
    stop_services,
)
from orchestra.system.runs import RunRecord, save
from orchestra.system.servers import (
    PREFECT_GUARD,
    PREFECT_KEY,
    PREFECT_LOGIN,
    PREFECT_URL,
    USUAL_PORTS,
    VACUUM,
    Played,
    _commands,
    _wait,
    last_ports,
    played,
    prefect_client,
    prefect_login,
)
from orchestra.system.storage import MLFLOW
from tests.support.real_gateway import listening
from tests.support.waiting import soon

OWN, TEAM = "http://127.0.0.1:4200", "https://prefect.example/api"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PREFECT_URL, raising=False)
    monkeypatch.delenv(PREFECT_LOGIN, raising=False)
    return tmp_path


def runs(root: Path) -> None:
    """A server of `orchestra up`, as its pid file tells."""
    remember(root, Service("prefect", os.getpid(), started_at(os.getpid()) or "", 4200, OWN, ""))


def test_our_own_server_asks_for_a_login_that_its_user_alone_can_read(root: Path) -> None:
    _, _, env = _commands(root, 4200, 5000, 9464)["prefect"]
    login = prefect_login(root)
    assert env[PREFECT_GUARD] == login and len(login) > 40 and ":" in login
    assert (root / PREFECT_KEY).stat().st_mode & 0o777 == 0o600 and (root / ".state").stat().st_mode & 0o077 == 0
    assert prefect_client(root) == {}, "it does not run yet"
    runs(root)
    assert prefect_client(root) == {PREFECT_URL: f"{OWN}/api", PREFECT_LOGIN: login}


def test_prefect_s_server_deletes_flow_runs_of_90_days_ago_unless_told_otherwise(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

    def vacuum() -> ServerServicesDBVacuumSettings:
        _, _, env = _commands(root, 4200, 5000, 9464)["prefect"]
        with monkeypatch.context() as patch:
            for name in VACUUM:
                patch.setenv(name, env[name])
            return ServerServicesDBVacuumSettings()

    assert {"events", "flow_runs"} <= vacuum().enabled_vacuum_types
    assert vacuum().retention_period == timedelta(days=90)
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD", "86400")
    assert vacuum().retention_period == timedelta(days=1)


def test_prefect_s_server_knows_after_a_restart_which_run_has_a_schedule_s_place(root: Path) -> None:
    from prefect.server.concurrency.lease_storage import get_concurrency_lease_storage
    from prefect.settings import PREFECT_HOME, PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE, temporary_settings

    _, _, env = _commands(root, 4200, 5000, 9464)["prefect"]
    there = env["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]
    with temporary_settings({PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE: there, PREFECT_HOME: root}):
        made = asyncio.run(get_concurrency_lease_storage().create_lease([uuid4()], timedelta(seconds=60)))
        again = asyncio.run(get_concurrency_lease_storage().read_lease(made.id))
    assert again == made and (root / "concurrency_leases" / f"{made.id}.json").is_file()


def test_a_server_that_the_user_names_gets_no_login_of_ours(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(root)
    monkeypatch.setenv(PREFECT_URL, TEAM)
    assert prefect_client(root) == {PREFECT_URL: TEAM}
    assert "prefect" not in _commands(root, 4200, 5000, 9464)
    login = prefect_login(root)
    for ours in (f"{OWN}/api", f"{OWN}/api/", f"{OWN.replace('127.0.0.1', 'localhost')}/api"):
        monkeypatch.setenv(PREFECT_URL, ours)
        assert prefect_client(root) == {PREFECT_URL: ours, PREFECT_LOGIN: login}, "it is ours"


@pytest.fixture
def started(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """The commands of what `start` starts: sleeping processes, which count as ready at once."""
    found: dict[str, list[str]] = {}

    def sleeps(root: Path, name: str, command: list[str], *, port: int, url: str, env: Any) -> Service:
        found[name] = [*command, env.get(PREFECT_URL, "")]
        return start_service(root, name, ["sleep", "600"], port=port, url=url)

    monkeypatch.setattr(servers, "start_service", sleeps)
    monkeypatch.setattr(servers, "_wait", lambda *_: None)
    monkeypatch.setattr(servers, "adapt_places", lambda _: None)
    monkeypatch.setattr(servers, "_refuses", lambda *_: False)
    yield found
    stop_services(root)


def test_the_next_start_has_the_ports_of_the_last_one(root: Path, started: dict[str, list[str]]) -> None:
    assert last_ports(root) == USUAL_PORTS
    first, second = free_port(), free_port()
    list(servers.start(root, prefect_port=first, mlflow_port=second, metrics_port=free_port()))
    stop_services(root)
    started.clear()
    list(servers.start(root, mlflow_port=(third := free_port())))
    assert str(first) in started["prefect"] and str(third) in started["mlflow"]
    list(servers.start(root, prefect_port=free_port()))
    assert last_ports(root)["prefect"] == first, "it runs, and stays where it is"


def test_two_servers_on_one_port_are_refused_before_either_starts(root: Path, started: dict[str, list[str]]) -> None:
    port = free_port()
    with pytest.raises(
        ServiceError, match=rf"^mlflow: port {port} is that of prefect too — .* --mlflow-port {port + 1}"
    ):
        list(servers.start(root, prefect_port=port, mlflow_port=port, metrics_port=free_port()))
    assert not started


def test_a_worker_asks_the_server_that_there_is_now_unless_it_plays_a_run(
    root: Path, started: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [free_port() for _ in range(3)]
    list(servers.start(root, prefect_port=ports[0], mlflow_port=ports[1], metrics_port=ports[2], worker="local"))
    worker, last = running(root, "worker"), started["worker"][-1]
    assert worker is not None and last == f"http://127.0.0.1:{ports[0]}/api"
    list(servers.start(root))
    assert running(root, "worker") == worker, "it asks the right one"
    stop_services(root, "prefect")
    with monkeypatch.context() as patch:
        patch.setattr(servers, "played", lambda _root: Played("the run sad-fox", 1))
        assert "plays the run sad-fox" in list(servers.start(root, prefect_port=(moved := free_port())))[-1]
    assert running(root, "worker") == worker
    list(servers.start(root))
    assert started["worker"][-1] == f"http://127.0.0.1:{moved}/api" and not worker.running


def test_a_run_that_has_no_record_yet_is_played_too(root: Path) -> None:
    assert played(root) is None
    service = start_service(root, "worker", ["sh", "-c", "sleep 600 & wait"], port=0, url=OWN)
    assert soon(lambda: played(root) is not None, 60)
    (child,) = descendants(service.pid)
    assert played(root) == Played(f"process {child}", child)
    record = RunRecord(id="a", name="sad-fox", flow="retrain", began=datetime.now(UTC), pid=child)
    save(root, record.model_copy(update={"host": socket.gethostname(), "started": started_at(child) or ""}))
    assert played(root) == Played("the run sad-fox", child)


def test_only_the_database_of_a_server_that_is_started_is_read(
    root: Path, started: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(servers, "check_database", lambda _root, name, **_: read.append(name))
    start_service(root, "prefect", ["sleep", "600"], port=4200, url=OWN)
    list(servers.start(root, mlflow_port=free_port(), metrics_port=free_port()))
    assert read == [MLFLOW], "nobody could write to that of a server that runs"


def test_a_server_that_is_not_ready_yet_is_asked_after_a_pause(root: Path) -> None:
    left = [503, 503, 503, 200]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": left.pop(0), "headers": []})
        await send({"type": "http.response.body", "body": b""})

    runs(root)
    with listening(app) as port:
        began = time.monotonic()
        _wait(root, "prefect", f"http://127.0.0.1:{port}/api/health")
    assert not left and time.monotonic() - began >= 3 * PAUSE_S


def test_a_server_with_another_login_is_one_line(root: Path) -> None:
    logins: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        logins.append(dict(scope["headers"])[b"authorization"])
        status = 200 if len(logins) == 1 else 401
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        remember(root, Service("prefect", os.getpid(), started_at(os.getpid()) or "", port, url, ""))
        assert prefect_client(root) == {PREFECT_URL: f"{url}/api"}, "one of before logins"
        login = prefect_login(root)
        with pytest.raises(ServiceError, match="another login — orchestra stop prefect worker, then orchestra up"):
            prefect_client(root)
    assert logins[-1] == b"Basic " + base64.b64encode(login.encode())
