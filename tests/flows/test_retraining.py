"""The monitor asks for a retraining, Prefect's automation starts it on the worker, and its failure leaves it asked."""

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import pytest

from orchestra.system.processes import services, stop_services
from orchestra.system.retraining import requests
from orchestra.system.runs import RunRecord, runs
from tests.flows.workspace import Workspace, free_ports
from tests.support.waiting import soon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def served(plain: Workspace) -> Iterator[Workspace]:
    yield plain
    stop_services(plain.root)


def retrains(workspace: Workspace) -> list[RunRecord]:
    return [one for one in runs(workspace.root) if one.flow == "retrain" and one.ended is not None]


def test_what_asks_is_started_by_the_worker_once_and_stays_asked_when_it_fails(served: Workspace) -> None:
    served.orchestra("up", *free_ports())
    # A schedule of the monitor that there is stays: `on` would look every five minutes only.
    served.orchestra("schedule", "every-minute", "--cron", "* * * * *", "--flow", "monitor")
    on = served.orchestra("retraining", "on")
    assert "asked: retrain, when it is due" in on and on[-1] == "automation orchestra-retraining: added"
    # The run ends before its first stage, in seconds.
    params = served.root / "params.yaml"
    params.write_text(params.read_text().replace("models/base/embedded", "models/base/lost"))
    served.orchestra("retraining", "ask", "the second customer")

    worker = served.root / ".state/logs/worker.log"
    assert soon(lambda: bool(retrains(served)), 600), worker.read_text()
    (run,) = retrains(served)
    assert run.asked_by.startswith("person: the second customer")
    assert run.failure and "models/base/lost" in run.failure.line
    assert "asked for by person: the second customer" in "\n".join(served.orchestra("why", run.name))
    listed = served.orchestra("retraining", "list")
    assert "person: the second customer" in listed[0] and run.name in listed[1] and "cool-down" in listed[-1]
    assert "Asks for a retraining" in served.orchestra("status")
    # Neither a person nor the next check begins another one meanwhile.
    assert "the cool-down of 24 hours" in served.orchestra("retraining", "start")[-1]

    # A person corrects the cause, and does not wait: the run comes to its end and answers.
    params.write_text(params.read_text().replace("models/base/lost", "models/base/embedded"))
    again = served.orchestra("retraining", "start", "--now")
    assert any("asked for by person: the second customer" in line for line in again)
    (request,) = [one for one in requests(served.root) if one.cause == "person"]
    assert request.state == "answered" and [one.state for one in request.attempts] == [
        "Failed",
        retrains(served)[0].state,
    ]

    assert served.orchestra("retraining", "off") == ["asked: removed", "automation orchestra-retraining: removed"]
    assert "worker" in {one.name for one in services(served.root)}, "the monitor's schedule needs it"


def test_changed_prices_move_the_day_in_params_yaml_and_stay_within_the_month(plain: Workspace) -> None:
    book = plain.root / "data/catalogue/prices.yaml"
    today = date.today().isoformat()
    row = f'\n  - {{provider: openai, model: gpt-5, effective_from: {today}, output: "20", source: test}}\n'
    book.write_text(book.read_text().rstrip() + row)
    params = plain.root / "params.yaml"
    params.write_text(params.read_text().replace("monthly_usd: null", "monthly_usd: 0.02"))
    told = "\n".join(plain.orchestra("retraining", "check"))
    assert f"openai/gpt-5 since {today}: " in told and "output per million 10 → 20 USD" in told
    ended = plain.orchestra("retraining", "start")
    assert "capped" in ended[-1] and today in params.read_text() and "run_usd: null" in params.read_text()
    (request,) = [one for one in requests(plain.root) if f"gpt-5 since {today}" in one.what]
    assert request.state == "open" and request.attempts[0].state == "Capped"
    assert request.attempts[0].usd <= Decimal("0.02")
    listed = plain.orchestra("retraining", "list")[-1]
    assert "no run begins" in listed and "of 0.02 USD are left this month" in listed
    assert json.loads("\n".join(plain.orchestra("runs", "--json")))[0]["asked_by"].count("price: ") >= 1
