"""Servers of `orchestra up` that are killed: nothing of them goes on, and the same command brings them back."""

import os
import signal
import sys
from pathlib import Path

import pytest

from orchestra.system.processes import (
    LOCALHOST,
    descendants,
    free_port,
    port_busy,
    remembered,
    start_service,
    stop_services,
)
from orchestra.system.servers import start
from tests.support.waiting import soon
from tests.support.worlds import ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # The team's, so that only MLflow's starts.
    monkeypatch.setattr("orchestra.system.servers.find_spec", lambda _: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # The workspace has none of our code.
    return tmp_path


def killed(root: Path, name: str) -> None:
    service = remembered(root, name)
    assert service is not None
    os.kill(service.pid, signal.SIGKILL)
    soon(lambda: not service.running)


@pytest.mark.slow
def test_a_killed_server_keeps_no_port_and_mlflows_is_one_process_that_leaves_nothing(root: Path) -> None:
    """Neither what another server under its name left nor MLflow's own end keeps the next start from its port."""
    port = free_port()
    child = f"{sys.executable} -m http.server {port} --bind {LOCALHOST}"
    start_service(root, "mlflow", ["sh", "-c", f"{child} & wait"], port=port, url=f"http://{LOCALHOST}:{port}")
    try:
        soon(lambda: port_busy(port))
        killed(root, "mlflow")
        assert port_busy(port)
        assert [line.partition(" (")[0] for line in start(root, mlflow_port=port)] == [
            "mlflow: starting",
            f"mlflow: http://{LOCALHOST}:{port}",
        ]
        service = remembered(root, "mlflow")
        assert service is not None and service.running
        assert service.members == [service.pid] and descendants(service.pid) == []
        killed(root, "mlflow")
        assert soon(lambda: not port_busy(port)) and service.members == []
        assert len(list(start(root, mlflow_port=port))) == 2
    finally:
        stop_services(root)
