"""The two servers of `make up`: Prefect and MLflow with their UIs, on 127.0.0.1 only."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from orchestra.errors import ServiceError
from orchestra.system.environment import quiet
from orchestra.system.processes import LOCALHOST, port_busy, services, start_service, stop_services
from orchestra.system.storage import DATABASES, MLFLOW, blame_storage, check_database, check_storage

START_TIMEOUT_S = 300.0
"""The first start imports and compiles everything, and may find the cores busy."""


def start(root: Path, *, prefect_port: int = 4200, mlflow_port: int = 5000) -> Iterator[str]:
    """Start what does not run yet and wait until it answers; yields a line for each. `ServiceError` on a busy port."""
    quiet()
    state = root / ".state"
    check_storage(root)
    for database in DATABASES:
        check_database(root, database)
    address = f"http://{LOCALHOST}:{prefect_port}"
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", LOCALHOST, "--port", str(prefect_port)]
    mlflow = [
        *(sys.executable, "-m", "mlflow", "server", "--host", LOCALHOST, "--port", str(mlflow_port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{root}/{MLFLOW}", "--registry-store-uri"),
        *(f"sqlite:///{root}/{MLFLOW}", "--artifacts-destination", str(state / "mlartifacts")),
    ]
    wanted = {
        "prefect": (prefect, prefect_port, "/api/health", {"PREFECT_UI_API_URL": f"{address}/api"}),
        # It would start a process of its own for jobs that nobody here submits.
        "mlflow": (mlflow, mlflow_port, "/health", {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}),
    }
    running = {service.name: service for service in services(root)}
    for name, (_, port, _, _) in wanted.items():
        if name not in running and port_busy(port, LOCALHOST):
            fix = f"end it, or take another: orchestra up --{name}-port {port + 1}"
            raise ServiceError(f"port {port} is taken by another program", where=name, fix=fix)
    for name, (command, port, _, extra) in wanted.items():
        if name not in running:
            env = {**os.environ, "PREFECT_HOME": str(state / "prefect"), **extra}
            start_service(root, name, command, port=port, url=f"http://{LOCALHOST}:{port}", env=env)
            yield f"{name}: starting"
    for service in services(root):
        if service.name in wanted:
            _wait(root, service.name, service.url + wanted[service.name][2])
            yield f"{service.name}: {service.url} (pid {service.pid}, log {service.log})"


def _wait(root: Path, name: str, url: str) -> None:
    import httpx

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if not any(service.name == name for service in services(root)):
            break
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    stop_services(root, name)
    log = f".state/logs/{name}.log"
    blame_storage(root, root / log)
    raise ServiceError("does not start", where=name, fix=f"read {log}")
