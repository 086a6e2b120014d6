"""The servers of `make up` on 127.0.0.1: Prefect, MLflow, facts for Prometheus, and the worker of the schedules."""

import base64
import contextlib
import json
import os
import secrets
import ssl
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.system.artifacts import environment
from orchestra.system.backup import adapt_places
from orchestra.system.environment import quiet
from orchestra.system.processes import (
    LOCALHOST,
    Service,
    all_remembered,
    descendants,
    port_busy,
    running,
    services,
    start_service,
    stop_services,
    wait_until,
)
from orchestra.system.runs import runs
from orchestra.system.storage import ARTIFACTS, BESIDE, MLFLOW, PREFECT, blame_storage, check_database, check_storage
from orchestra.system.workspace import locked_elsewhere

START_TIMEOUT_S = 300.0
"""The first start imports and compiles everything, and may find the cores busy."""
ASK_TIMEOUT_S = 0.7
"""A server that takes longer to say that it is well is slow: status says so, and waits for no one."""
WORKER_POOL = ".state/worker_pool"
"""Names the pool of the schedules' worker; no file: nothing is scheduled."""
MONITORED = ".state/monitored"
"""No file: no monitor is scheduled, so none is missed."""
ORDERING = {"PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "flows.server.ordering"}
"""How the server of Prefect orders events."""
VACUUM = {
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(90 * 24 * 3600),
}
"""With it Prefect's server deletes what ended so many seconds ago: flow runs, with their tasks and logs."""
LEASES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}
"""Prefect's server keeps on disk which run has a schedule's place: in memory, a restart lost it, and the place stayed
taken for ever."""
METRICS_PORT = 9464
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000, "metrics": METRICS_PORT}
PORTS = ".state/ports.json"
"""Keeps the ports of the last start: a run of a schedule, a bookmark and Prometheus ask there."""
WEBHOOK_KEY = ".state/webhooks/key"
"""Under it MLflow keeps the secrets of webhooks. Without one each start of it makes its own, and cannot read them."""
ENCRYPTION_KEY = "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY"
"""MLflow's variable for that key."""
WEBHOOKS_KEPT_S = 1
"""So long MLflow's server may remember who wants an event; its own 60 s would miss what follows a registration."""
PREFECT_KEY = ".state/prefect.key"
"""Holds the user:password that this workspace's servers of Prefect ask for: whoever uses their API runs commands."""
PREFECT_URL = "PREFECT_API_URL"
PREFECT_GUARD, PREFECT_LOGIN = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""Prefect's variables for it: of a server, and of its clients."""
HEALTH = {
    "prefect": "/api/health",
    "mlflow": "/health",
    "metrics": "/favicon.ico",  # Any other page reads the workspace.
    "gateway": "/health",
    "vllm": "/health",
}
"""The page on which a server says that it is well, by the beginning of its name."""
WAY_BACK = {
    "prefect": "orchestra up",
    "mlflow": "orchestra up",
    "metrics": "orchestra up",
    "worker": "orchestra up",
    "gateway": "orchestra release",
    "vllm": "orchestra release",
}
"""The command that brings a server back that is down."""


def state(service: Service) -> str:
    """`up`, `DOWN` (its process is gone; the command that starts it) or `does not answer`."""
    kind = service.name.partition("-")[0]
    if not service.running:
        return f"DOWN: {WAY_BACK[kind]}" if kind in WAY_BACK else "DOWN"
    if kind not in HEALTH:
        return "up"
    code = _code(service.url + HEALTH[kind])
    if code is None:
        return f"does not answer within {ASK_TIMEOUT_S} s: see {service.log}"
    return "up" if code == 200 else f"answers {code}: see {service.log}"


def answers(page: str) -> bool:
    """Whether an address gives that page at once."""
    return _code(page) == 200


def _code(page: str) -> int | None:
    """The status that an address gives; None where it gives none in time. httpx takes longer to load than to ask."""
    address = urlsplit(page)
    if address.scheme == "https":
        # Of another machine's certificate nothing is asked: the address is this machine's own.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(address.netloc, timeout=ASK_TIMEOUT_S, context=context)
    else:
        connection = HTTPConnection(address.netloc, timeout=ASK_TIMEOUT_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
        connection.request("GET", address.path or "/")
        return connection.getresponse().status
    return None


def start(
    root: Path,
    *,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    metrics_port: int | None = None,
    worker: str | None = None,
) -> Iterator[str]:
    """Start what does not run yet and wait until it answers; yields a line for each. `ServiceError` on a busy port.

    Without a port, a server has that of its last start. `worker`: the pool whose worker runs from now on, with every
    start. A server of the team's (PREFECT_API_URL, MLFLOW_TRACKING_URI) takes the place of ours.
    """
    quiet()
    state_folder = root / ".state"
    check_storage(root)
    told = {"prefect": prefect_port, "mlflow": mlflow_port, "metrics": metrics_port}
    ports = last_ports(root) | {name: port for name, port in told.items() if port is not None}
    wanted = _commands(root, *(ports[name] for name in USUAL_PORTS))
    there = {service.name for service in services(root)}
    for name, database in {"mlflow": MLFLOW, "prefect": PREFECT}.items():
        if name in wanted and name not in there:  # One that runs has its database in use.
            if (root / database).is_file() and (size := (root / database).stat().st_size) > BESIDE:
                yield f"{name}: reading its database ({size / 1e6:.0f} MB)"
            check_database(root, database, beside=locked_elsewhere(root))
    adapt_places(root)
    for service in all_remembered(root):
        if service.name in wanted and service.name not in there:
            service.end()  # What a killed server left behind has its port.
    given: dict[int, str] = {}
    for name, port in ((name, port) for name, (_, port, _) in wanted.items() if name not in there):
        if port and (first := given.setdefault(port, name)) != name:
            fix = f"give each its own: orchestra up --{name}-port {port + 1}"
            raise ServiceError(f"port {port} is that of {first} too", where=name, fix=fix)
        if port_busy(port, LOCALHOST):
            fix = f"end it, or take another: orchestra up --{name}-port {port + 1}"
            raise ServiceError(f"port {port} is taken by another program", where=name, fix=fix)
    for name, (command, port, extra) in wanted.items():
        if name not in there:
            env = {**os.environ, "PREFECT_HOME": str(state_folder / "prefect"), **extra}
            start_service(root, name, command, port=port, url=f"http://{LOCALHOST}:{port}", env=env)
            yield f"{name}: starting"
    for service in services(root):
        if service.name in wanted:
            ports[service.name] = service.port
            _wait(root, service.name, service.url + HEALTH[service.name])
            login = f"; log in with {PREFECT_KEY}" if service.name == "prefect" else ""
            yield f"{service.name}: {service.url} (pid {service.pid}, log {service.log}){login}"
    atomic.write_text(root / PORTS, json.dumps(ports) + "\n")
    if worker is not None:
        atomic.write_text(root / WORKER_POOL, worker + "\n")
    if (root / WORKER_POOL).is_file():
        yield _start_worker(root, (root / WORKER_POOL).read_text(encoding="utf-8").strip())


def address(root: Path, name: str) -> str | None:
    """Where a server of this workspace answers; None when it does not run."""
    found = running(root, name)
    return None if found is None else found.url


def prefect_login(root: Path) -> str:
    """User and password of this workspace's servers of Prefect, made with the first use."""
    return atomic.private_once(root / PREFECT_KEY, f"orchestra:{secrets.token_urlsafe(32)}")


def prefect_client(root: Path) -> dict[str, str]:
    """What Prefect's client needs for the API that the user named, else for that of `orchestra up`; empty without
    either. A server of the team's gets no login of ours. Raises `ServiceError` where ours does not take it."""
    own = _own_prefect(root)
    url = os.environ.get(PREFECT_URL) or own
    if url is None:
        return {}
    if own is None or not owns_prefect(root, url):
        return {PREFECT_URL: url}
    key = root / PREFECT_KEY
    login = key.read_text(encoding="utf-8") if key.is_file() else ""
    if _refuses(own, login):
        fix = "orchestra stop prefect worker, then orchestra up"
        raise ServiceError("Prefect's server was started with another login", where=PREFECT_KEY, fix=fix)
    return {PREFECT_URL: url} | ({PREFECT_LOGIN: login} if login else {})


def _own_prefect(root: Path) -> str | None:
    found = address(root, "prefect")
    return None if found is None else f"{found}/api"


def owns_prefect(root: Path, url: str) -> bool:
    """Whether Prefect's API at that address is the server that this workspace started."""
    own = _own_prefect(root)
    return own is not None and _place(url) == _place(own)


def _place(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return (LOCALHOST if parts.hostname == "localhost" else parts.hostname), parts.port


def _refuses(url: str, login: str) -> bool:
    import httpx

    user, _, password = login.partition(":")
    with contextlib.suppress(httpx.HTTPError):  # Of a server that does not answer, its client says so.
        return httpx.get(f"{url}/admin/version", auth=(user, password), timeout=5, trust_env=False).status_code == 401
    return False


def forget_worker(root: Path) -> bool:
    """End the worker, and start none from now on; whether one ran."""
    (root / WORKER_POOL).unlink(missing_ok=True)
    return bool(stop_services(root, "worker"))


def last_ports(root: Path) -> dict[str, int]:
    """The port of each server: that of its last start, and else the usual one."""
    kept = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        kept = json.loads((root / PORTS).read_text(encoding="utf-8"))
    return {name: int(kept.get(name, port)) for name, port in USUAL_PORTS.items()}


def _commands(
    root: Path, prefect_port: int, mlflow_port: int, metrics_port: int
) -> dict[str, tuple[list[str], int, dict[str, str]]]:
    """Command, port and environment of each server that is ours to start."""
    address = f"http://{LOCALHOST}:{prefect_port}"
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", LOCALHOST, "--port", str(prefect_port)]
    mlflow = [
        *(sys.executable, "-m", "tasks.records.mlflow_server", "--host", LOCALHOST, "--port", str(mlflow_port)),
        *("--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{root}/{MLFLOW}", "--registry-store-uri"),
        *(f"sqlite:///{root}/{MLFLOW}", "--artifacts-destination", str(root / ARTIFACTS)),
    ]
    found = {}
    if not os.environ.get(PREFECT_URL):
        extra = {"PREFECT_UI_API_URL": f"{address}/api", PREFECT_GUARD: prefect_login(root), **ORDERING}
        extra |= _unless_set(VACUUM | LEASES)
        found["prefect"] = (prefect, prefect_port, extra)
    if not os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        # It would start a process of its own for jobs that nobody here submits.
        extra = environment(load_params(root / "params.yaml").storage) if (root / "params.yaml").is_file() else {}
        extra |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **_webhook_settings(root)}
        found["mlflow"] = (mlflow, mlflow_port, extra)
    if find_spec("prometheus_client") is not None:
        metrics = [sys.executable, "-m", "tasks.records.metrics", "--port", str(metrics_port)]
        found["metrics"] = (metrics, metrics_port, {})
    return found


def _webhook_settings(root: Path) -> dict[str, str]:
    """What MLflow's server needs to sign webhooks with the same secrets after a restart."""
    file = root / WEBHOOK_KEY
    # Fernet's form of a key.
    key = atomic.private_once(file, base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
    file.chmod(0o600)  # A restored one may have another mode.
    return _unless_set({ENCRYPTION_KEY: key, "MLFLOW_WEBHOOK_CACHE_TTL": str(WEBHOOKS_KEPT_S)})


def _unless_set(ours: Mapping[str, str]) -> dict[str, str]:
    """Variables of a server; the user's own come first."""
    return {name: os.environ.get(name) or value for name, value in ours.items()}


def _start_worker(root: Path, pool: str) -> str:
    """Start the worker unless it runs, and again where it asks another address; a line about it."""
    found, client = running(root, "worker"), prefect_client(root)
    url = client.get(PREFECT_URL, "")
    if found is not None and _place(found.url) != _place(url):
        if (run := played(root)) is not None:
            return f"worker: asks another address, and plays {run.name}: type orchestra up again after it"
        stop_services(root, "worker")
        found = None
    if found is None:
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
        env = {**os.environ, "PREFECT_HOME": str(root / ".state/prefect"), **client}
        found = start_service(root, "worker", command, port=0, url=url, env=env)
    return f"worker: of pool {pool} (pid {found.pid}, log {found.log})"


class Played(NamedTuple):
    """A run that the worker plays."""

    name: str
    pid: int


def played(root: Path) -> Played | None:
    """The run that the worker plays; None without one. In its first seconds a run is a process without a record."""
    worker = running(root, "worker")
    if worker is None or not (below := descendants(worker.pid)):
        return None
    record = next((one for one in runs(root) if one.lives and one.pid in below), None)
    return Played(f"process {below[0]}", below[0]) if record is None else Played(f"the run {record.name}", record.pid)


def _wait(root: Path, name: str, url: str) -> None:
    if wait_until(lambda: answers(url), START_TIMEOUT_S, gone=lambda: running(root, name) is None):
        return
    stop_services(root, name)
    log = f".state/logs/{name}.log"
    blame_storage(root, root / log)
    raise ServiceError("does not start", where=name, fix=f"read {log}")
