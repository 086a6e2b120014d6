"""Approval in Prefect: a deployment's run suspends and takes the answer of its form; others are answered by a flow."""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.flow_runs import suspend_flow_run
from prefect.server.utilities.user_templates import render_user_template_sync
from prefect.states import Pending

from flows import notify
from flows._runs import under_way
from flows.answer import answer, ask, settle, suspendable
from flows.release import release
from flows.retraining import Asked, answering, waiting
from orchestra.config.overrides import apply
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.promotion.approval import Approval, request
from orchestra.system import retraining
from orchestra.system.code_hash import CODE
from orchestra.system.processes import stop_services
from orchestra.system.retraining import RetrainReason
from orchestra.system.runs import AWAITING, STOPPED, runs
from tasks.platform.stage import Stage
from tasks.promote import promote
from tests.support.promotions import aliases, params, workspace
from tests.support.worlds import ROOT

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.timeout(1200)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known() -> Approval:
    """The request in the working directory, made by the first run that asks."""
    file = Path("asked.json")
    if not file.is_file():
        asked = request(2, 1, "d", datetime.now(UTC), 1).model_copy(update={"run": suspendable()})
        file.write_text(asked.model_dump_json())
    return Approval.model_validate_json(file.read_text())


@flow(name="asks")
def asks(asked: Asked = "", fails: bool = False, by_hand: bool = False) -> Any:
    """Asks about version 2; returns what a person said. `by_hand`: a person suspends it before that."""
    here = Path.cwd()
    with under_way(here, alone=True) as journal, answering(here, journal, asked):
        if by_hand:
            suspend_flow_run()
        said = ask(known(), "**All 10 checks passed.**", known().asked)
        if fails:
            raise ServiceError("the release failed")
        journal.end("Completed")
    return "nobody" if said is None else said.model_dump()


def begun(**parameters: Any) -> FlowRun:
    """A run of a deployment, whose process ended when it asked."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(asks), "here")
        run = client.create_flow_run_from_deployment(deployment, state=Pending())
        with pytest.raises(Pause):
            run_flow(asks, flow_run=run, parameters=parameters)
        return client.read_flow_run(run.id)


def resumed(run: FlowRun) -> FlowRun:
    """The run as Prefect hands it to a worker again, after a person answered."""
    with get_client(sync_client=True) as client:
        client.resume_flow_run(run.id, run_input={"approve": True, "by": "Ada", "reason": ""})
        return client.read_flow_run(run.id)


def test_a_deployments_run_suspends_and_goes_on_with_the_answer_of_the_form(here: Path) -> None:
    run = begun()
    assert run.state is not None and run.state.name == "Suspended" and run.state.state_details.pause_timeout is not None
    (record,) = runs(here)
    assert (record.state, record.failed, record.lives) == (AWAITING, False, False)
    assert told(run)[0] == "asks: a version waits for a person's approval" and "orchestra approve --by" in told(run)[1]
    said = {"approve": False, "by": "Bob", "reason": "too slow"}
    with get_client(sync_client=True) as client:
        refused = client.resume_flow_run(run.id, run_input={"approve": True})
        assert refused.status.value == "REJECT", "nobody signed it"
        client.resume_flow_run(run.id, run_input=said)
        resumed = client.read_flow_run(run.id)
    assert run_flow(asks, flow_run=resumed) == said
    assert [one.state for one in runs(here)] == ["Completed"]


def test_a_run_that_is_suspended_ends_when_the_answer_was_given_elsewhere(here: Path) -> None:
    run = begun()
    assert settle(known(), "Rejected") and not settle(known(), "Rejected")
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run.id).state
    assert state is not None and (state.name, state.is_completed()) == ("Rejected", True)


@pytest.mark.parametrize("fails", [False, True])
def test_what_asked_for_a_run_is_answered_while_it_is_suspended_and_taken_up_when_it_goes_on(
    here: Path, fails: bool
) -> None:
    shutil.copy(ROOT / "params.yaml", here)
    rules = load_params(here / "params.yaml").retraining.model_copy(update={"cooldown_hours": 0.0})
    reasons = [
        RetrainReason("price", one, f"{one} costs more", assignments=(f"grpo.seed={one}",)) for one in ("7", "8")
    ]
    retraining.ask(here, reasons[:1], (), "monitor")
    run = begun(asked="due")
    (request,) = retraining.requests(here)
    assert (request.state, request.attempts[0].state) == ("answered", AWAITING)
    assert retraining.hindrance(here, rules, runs(here)) == "nothing asks for a retraining", "no second run begins"
    assert waiting(here, "due", own="another", again=False) and not waiting(here, "due", own=str(run.id), again=False)

    retraining.ask(here, reasons[1:], (), "monitor")
    apply(here / "params.yaml", ["grpo.seed=9"])
    with contextlib.suppress(ServiceError):
        run_flow(asks, flow_run=resumed(run), parameters={"asked": "due", "fails": fails})
    first, later = retraining.requests(here)
    assert [one.state for one in first.attempts] == ["Failed" if fails else "Completed"]
    assert (first.state, later.state, later.attempts) == ("open" if fails else "answered", "open", ())
    assert load_params(here / "params.yaml").grpo.seed == 9, "what changed since stays"


def test_a_run_that_a_person_suspends_decides_nothing_and_leaves_open_what_asked_for_it(here: Path) -> None:
    shutil.copy(ROOT / "params.yaml", here)
    retraining.ask(here, [RetrainReason("price", "7", "7 costs more")], (), "monitor")
    run = begun(asked="due", by_hand=True)
    assert run.state is not None and run.state.name == "Suspended"
    (record,) = runs(here)
    assert record.failure is not None and (record.state, record.failure.kind) == (STOPPED, STOPPED)
    assert record.failure.line.startswith("suspended in Prefect — resume it there, or run it again: it continues")
    (asked,) = retraining.requests(here)
    assert asked.state == "open"
    assert told(run) == ("asks: suspended in Prefect", f"resume it in Prefect's UI\nor: orchestra rerun {run.name}")


def told(run: FlowRun) -> tuple[str, str]:
    """What a notice of that run says."""
    named = {"flow": asks, "flow_run": run}
    subject, body = (render_user_template_sync(text, named) for text in (notify.WAITING_SUBJECT, notify.WAITING_BODY))
    return subject.replace(f" {run.name}", ""), body


def test_a_run_that_a_person_started_does_not_suspend(here: Path) -> None:
    assert asks() == "nobody" and known().run == ""
    assert not settle(known(), "Promoted")


@pytest.fixture
def unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace whose first version waits for a person."""
    monkeypatch.setitem(CODE, "score", ())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("ORCHESTRA_SKIP_VLLM", "1")
    monkeypatch.chdir(tmp_path)
    workspace(tmp_path)
    asking = params(approval="required")
    deploy = asking.deploy.model_copy(update={"engine": "in_process", "gateway_port": 0, "smoke_examples": 1})
    text = yaml.safe_dump(asking.model_copy(update={"deploy": deploy}).model_dump(mode="json", by_alias=True))
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    assert promote(Stage.open("promote", tmp_path)).name == "Waiting"
    yield tmp_path
    stop_services(tmp_path)


def test_what_a_person_refuses_does_not_serve_and_what_one_approves_does(unanswered: Path) -> None:
    with pytest.raises(ConfigError, match="a name has 1 to 200 characters"):
        answer(by=" ")
    with pytest.raises(ConfigError, match="nobody asked about version 9"):
        answer(by="Ada", version=9)
    with pytest.raises(DataError, match="there is no version 9"):
        release(to=9)
    assert runs(unanswered) == [], "a typing error is no run that failed"
    refused = answer(by="Bob", approve=False, reason="too slow", return_state=True)
    assert refused.name == "Rejected" and refused.is_completed() and aliases(unanswered)["champion"] is None
    approved = answer(by="Ada", version=1, return_state=True)
    assert approved.name == "Promoted" and "Approved by Ada" in str(approved.message)
    assert aliases(unanswered)["champion"] == 1
    newest, before = runs(unanswered)[:2]
    assert [one.state for one in (newest, before)] == ["Promoted", "Rejected"]
    assert newest.stages["deploy"].state == "version 1 released" and "deploy" not in before.stages
