"""The three users on real servers, timed: schedule in one command, recover in three, decide on one page."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestra.system.processes import port_busy, services, stop_services
from orchestra.system.runs import RunRecord, runs
from orchestra.system.servers import METRICS_PORT
from tests.flows.workspace import Workspace, free_ports
from tests.support.waiting import soon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PORTS = (4200, 5000, METRICS_PORT)
SECTIONS = ("why", "compare", "frontier", "rule", "tools", "preferences", "dollars", "training", "failures", "episodes",
            "lineage", "history", "facts")  # fmt: skip
"""Of the decision page, whatever was decided."""


@pytest.fixture
def served(plain: Workspace) -> Iterator[Workspace]:
    if any(port_busy(port) for port in PORTS):
        print("another program has a port of ours: `orchestra up` with others comes first")
        plain.orchestra("up", *free_ports())
    yield plain
    stop_services(plain.root)


class Watch:
    """Counts and times what a person types."""

    def __init__(self, workspace: Workspace, story: str) -> None:
        self.workspace, self.story = workspace, story
        self.commands, self.began = 0, time.monotonic()

    def type(self, *command: str) -> list[str]:
        began = time.monotonic()
        said = self.workspace.orchestra(*command)
        self.commands += 1
        print(f"{self.story}: orchestra {' '.join(command)}: {time.monotonic() - began:.1f} s")
        return said

    def told(self) -> None:
        print(f"{self.story}: {self.commands} commands, {time.monotonic() - self.began:.0f} s in all")


def test_schedule_recover_and_decide(served: Workspace) -> None:
    failed = _engineer(served)
    _on_call(served, failed)
    _stakeholder(served)


def _engineer(served: Workspace) -> RunRecord:
    """One command schedules; the run begins at its time and fails, since a file was broken meanwhile."""
    due = datetime.now(UTC) + timedelta(minutes=4)
    watch = Watch(served, "engineer")
    watch.type("schedule", "nightly", "--cron", f"{due.minute} {due.hour} * * *", "--set", "grpo.seed=5")
    watch.told()
    assert watch.commands == 1
    assert {one.name for one in services(served.root)} == {"prefect", "mlflow", "metrics", "worker"}
    prices(served).write_text("prices: [", encoding="utf-8")

    def found() -> list[RunRecord]:
        return [one for one in runs(served.root) if one.flow == "retrain" and one.failed]

    worker = served.root / ".state/logs/worker.log"
    assert soon(lambda: bool(found()), 1200), worker.read_text(encoding="utf-8")
    (run,) = found()
    assert run.asked_by == "schedule nightly" and run.began >= due.replace(second=0, microsecond=0)
    return run


def _on_call(served: Workspace, failed: RunRecord) -> None:
    """Three commands, each of which names the next."""
    watch = Watch(served, "on call")
    status = "\n".join(watch.type("status"))
    assert status.startswith("Failed\n  retrain ") and "prices.yaml" in status
    name = re.search(r"type   orchestra why (\S+)    then: orchestra rerun (\S+)", status)
    assert name is not None and name[1] == name[2] == failed.name
    why = "\n".join(watch.type("why", name[1]))
    assert re.search(r"^Cause: .*prices\.yaml", why, re.M) and "\nMeaning: " in why and "orchestra rerun" in why
    shipped = Path(__file__).parents[2] / "data/catalogue/prices.yaml"
    prices(served).write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    said = watch.type("rerun", name[2])
    watch.told()
    assert watch.commands <= 3
    assert "promoted as version 1" in "\n".join(said) and not served.orchestra("status")[0].startswith("Failed")
    again = runs(served.root)[0]
    assert again.parameters["overrides"] == ["grpo.seed=5"], "what the schedule asked for"


def _stakeholder(served: Workspace) -> None:
    """Everything that a decision needs is on one page, which is the one in MLflow's run."""
    import httpx

    began = time.monotonic()
    page = (served.root / "reports/decision.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<h2 id="(\w+)"', page))
    assert set(SECTIONS) <= shown, set(SECTIONS) - shown
    assert "promoted" in page.lower() and not re.search(
        r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', page
    )
    run = runs(served.root)[0].mlflow_run
    mlflow = next(one.url for one in services(served.root) if one.name == "mlflow")
    reply = httpx.get(f"{mlflow}/api/2.0/mlflow/runs/get", params={"run_id": run}, timeout=60, trust_env=False).json()
    tags = {one["key"]: one["value"] for one in reply["run"]["data"]["tags"]}
    assert "version 1 promoted" in tags["mlflow.runName"] and "decision page" in tags["mlflow.note.content"]
    where = {"path": "decision/decision.html", "run_uuid": run}
    assert httpx.get(f"{mlflow}/get-artifact", params=where, timeout=60, trust_env=False).text == page
    took = time.monotonic() - began
    print(f"stakeholder: 1 page, {len(page) / 1e3:.0f} kB, {len(shown)} sections, checked in {took:.1f} s")


def prices(served: Workspace) -> Path:
    return served.root / "data/catalogue/prices.yaml"
