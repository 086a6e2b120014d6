"""A live kill makes the alert: a real Prometheus over our rules, which loses MLflow's server and then the gateway."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from orchestra.system.processes import LOCALHOST, Service, free_port, kill_tree, remember, spawn, started_at
from orchestra.system.servers import answers
from tests.support.waiting import soon
from tests.support.worlds import ROOT

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus (Debian's package prometheus)"),
]
GATEWAY = """
import sys, time
from pathlib import Path
from prometheus_client import start_http_server
from orchestra.serving.records.telemetry import Telemetry

telemetry = Telemetry(Path("traces"))
telemetry.ready.set(1)
start_http_server(int(sys.argv[1]), "127.0.0.1", telemetry.registry)
time.sleep(3600)
"""
"""The gateway's own metrics; nothing is asked of a model here."""


class Machine:
    """A workspace with servers of it, and a Prometheus that looks each second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {name: free_port() for name in ("gateway", "mlflow", "metrics", "prometheus")}
        self.children: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, command: Sequence[str], page: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (self.root / f"{name}.log").open("w") as log:
            self.children[name] = spawn(command, cwd=self.root, env=env, stdout=log)
        url = f"http://{LOCALHOST}:{self.ports[name]}"
        assert soon(lambda: answers(url + page), 240), (self.root / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        os.kill(self.children[name].pid, signal.SIGKILL)
        self.children[name].wait()

    def firing(self) -> dict[str, str]:
        """Severity by alert."""
        import httpx

        url = f"http://{LOCALHOST}:{self.ports['prometheus']}/api/v1/alerts"
        found = httpx.get(url, timeout=30, trust_env=False).json()["data"]["alerts"]
        return {one["labels"]["alertname"]: one["labels"]["severity"] for one in found if one["state"] == "firing"}


def quick(root: Path, machine: Machine) -> Path:
    """The shipped files, with seconds in place of minutes and the ports of this machine."""
    folder = ROOT / "monitoring/prometheus"
    config = yaml.safe_load((folder / "prometheus.yaml").read_text(encoding="utf-8"))
    del config["alerting"]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    ports = {"gateway": machine.ports["gateway"], "workspace": machine.ports["metrics"]}
    for job in config["scrape_configs"]:
        job |= {"scrape_interval": "1s", "scrape_timeout": "1s"} if job["job_name"] == "gateway" else {
            "scrape_interval": "5s", "scrape_timeout": "5s",
        }  # fmt: skip
        job["static_configs"] = [{"targets": [f"{LOCALHOST}:{ports[job['job_name']]}"]}]
    for name in config["rule_files"]:
        rules = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "3s"
        (root / name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    (root / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return root / "prometheus.yaml"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "health").write_text("ok")
    made = Machine(tmp_path)
    port = {name: str(number) for name, number in made.ports.items()}
    try:
        made.start("gateway", [sys.executable, "-c", GATEWAY, port["gateway"]], "/metrics")
        made.start("mlflow", [sys.executable, "-m", "http.server", port["mlflow"], "--bind", LOCALHOST], "/health")
        mlflow = made.children["mlflow"].pid
        url = f"http://{LOCALHOST}:{port['mlflow']}"
        remember(tmp_path, Service("mlflow", mlflow, started_at(mlflow) or "", made.ports["mlflow"], url, "mlflow.log"))
        made.start(
            "metrics", [sys.executable, "-m", "tasks.records.metrics", "--port", port["metrics"]], "/favicon.ico"
        )
        assert PROMETHEUS is not None
        where = ["--config.file", str(quick(tmp_path, made)), "--storage.tsdb.path", str(tmp_path / "tsdb")]
        listen = ["--web.listen-address", f"{LOCALHOST}:{port['prometheus']}"]
        made.start("prometheus", [PROMETHEUS, *where, *listen], "/-/ready")
        yield made
    finally:
        for child in made.children.values():
            kill_tree(child.pid, grace_s=3)


def test_a_kill_makes_the_alert_and_nothing_else_does(machine: Machine) -> None:
    down = {"GatewayDown", "NothingServes", "MlflowDown", "WorkspaceSilent", "WorkspaceUnread"}
    # What is there before the first look is no alert; both are looked at within seconds.
    assert soon(lambda: not down & set(machine.firing()), 120), machine.firing()
    time.sleep(10)
    assert not down & set(machine.firing()), machine.firing()

    began = time.monotonic()
    machine.kill("mlflow")
    assert soon(lambda: "MlflowDown" in machine.firing(), 180), machine.firing()
    print(f"MLflow's server killed: a ticket after {time.monotonic() - began:.0f} s (3 s in place of 2 min)")
    assert machine.firing()["MlflowDown"] == "ticket" and "GatewayDown" not in machine.firing()

    began = time.monotonic()
    machine.kill("gateway")
    assert soon(lambda: "GatewayDown" in machine.firing(), 180), machine.firing()
    print(f"the gateway killed: a page after {time.monotonic() - began:.0f} s (3 s in place of 2 min)")
    assert machine.firing()["GatewayDown"] == "page"
