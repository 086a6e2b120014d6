"""A new version that its canary takes back: the run ends by that name, the summary says it, and people are told."""

import contextlib
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.events.actions import SendNotification
from prefect.states import Suspended

from flows import answer as answering
from flows import notify
from flows import retrain as module
from flows._runs import AwaitsAnswer
from flows._summary import RunSummary
from flows.release import limit_s
from orchestra.config.overrides import apply
from orchestra.errors import ServiceError
from orchestra.promotion.approval import Answer, request
from orchestra.serving.releases.deployment import Deployment
from orchestra.system.runs import RunJournal, runs
from tasks.approval import Answered
from tasks.platform.stage import Stage
from tasks.platform.tracking import NOTE, Recorder
from tests.support.worlds import ROOT

FOUND = "version 2 did not pass its canary: 1.40 times as long"
TAKEN_BACK = Deployment(outcome="rolled_back", version="1", trial=FOUND)


def returns(value: Any) -> Any:
    """A task of Prefect with that result."""

    def call(*_: Any, **more: Any) -> Any:
        return SimpleNamespace(result=lambda: value) if more.get("return_state") else value

    return SimpleNamespace(with_options=lambda **_: call)


def test_a_releases_time_limit_holds_its_trial(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = limit_s(tmp_path)
    apply(tmp_path / "params.yaml", ["deploy.canary.minutes=200"])
    assert limit_s(tmp_path) - before >= 60 * 100


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A workspace in which a run of that flow is under way."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)

    def begun(flow: str) -> Path:
        journal = RunJournal.begin(tmp_path, "i", "n", flow)
        for place in (module, answering):
            monkeypatch.setattr(place, "under_way", lambda *_, **__: contextlib.nullcontext(journal))
            monkeypatch.setattr(place, "run_deploy", returns(TAKEN_BACK))
        return tmp_path

    return begun


def running(root: Path, monkeypatch: pytest.MonkeyPatch, **decided: Any) -> dict[str, str]:
    """A retraining whose stages are current, and whose gate decides that; returns what is told MLflow."""
    told = dict[str, str]()
    recorder = SimpleNamespace(
        parent="p",
        root=root,
        tagged=lambda key: "**Promoted**" if key == NOTE else "",
        tag=told.__setitem__,
        artifacts=lambda *_: None,
        finish=lambda *_: None,
        headline=lambda _params, verdict, policy: told.update(headline=verdict),
    )
    reasons: dict[str, Any] = {"why": "", "reasons": (), "approval": None, "version": 2}
    monkeypatch.setattr(Recorder, "open", lambda *_: recorder)
    monkeypatch.setattr(module, "check_named", lambda *_, **__: None)
    monkeypatch.setattr("tasks.platform.dvc.recover", lambda *_: None)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda *_: {})
    monkeypatch.setattr(module, "suspendable", lambda: "")
    monkeypatch.setattr(module, "run_promote", returns(SimpleNamespace(**reasons, **decided)))
    return told


def test_a_run_that_waits_or_whose_release_fails_has_its_figures_for_who_decides(
    here: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(with_: BaseException) -> Any:
        def work(*_: Any, **__: Any) -> None:
            raise with_

        return work

    told = running(here("retrain"), monkeypatch, promoted=False, waits=True, name="Waiting")
    monkeypatch.setattr(module, "told", lambda _: "")
    monkeypatch.setattr(module, "ask", ends(AwaitsAnswer(state=Suspended())))
    with pytest.raises(AwaitsAnswer):
        module.retrain.fn()
    assert told["headline"] == "version 2 waiting"
    told = running(here("retrain"), monkeypatch, promoted=True, waits=False, name="Promoted")
    failed = ServiceError("it did not come up", where="deploy", fix="orchestra release")
    monkeypatch.setattr(module, "run_deploy", SimpleNamespace(with_options=lambda **_: ends(failed)))
    with pytest.raises(ServiceError):
        module.retrain.fn()
    assert told["headline"] == "version 2 promoted"


def test_a_run_whose_version_its_canary_takes_back_ends_as_rolled_back(
    here: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = here("retrain")
    told = running(root, monkeypatch, promoted=True, waits=False, name="Promoted")
    wishes: list[dict[str, str]] = []

    def deployed(_root: Path, _decision: Any, wish: dict[str, str]) -> Deployment:
        wishes.append(wish)
        return TAKEN_BACK

    monkeypatch.setattr(module, "run_deploy", SimpleNamespace(with_options=lambda **_: deployed))
    state = module.retrain.fn()
    assert (state.name, state.is_completed(), state.message) == ("RolledBack", True, FOUND)
    assert told["decision"] == "RolledBack" and told["headline"] == "version 2 rolled back"
    assert told[NOTE].startswith(f"**Rolled back by its canary**\n\n{FOUND}")
    assert told[NOTE].endswith("The gate's decision before that:\n\n**Promoted**")
    assert wishes == [{"why": "run n: version 2 promoted"}]
    (record,) = runs(root)
    assert (record.state, record.message) == ("RolledBack", FOUND)
    said, last = capsys.readouterr().out, RunSummary.load(root)
    assert "Gate: rolled back by its canary; the champion serves on" in said and FOUND in said
    assert last is not None and last.verdict == "rolled back by its canary"


def test_an_approved_version_that_its_canary_takes_back_ends_the_answer_as_rolled_back(
    here: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, present = here("answer"), datetime.now(UTC)
    approved = request(2, 1, "d", present, 1).answered(Answer(approve=True, by="Ada"), present)
    RunSummary({}, False, 2, [], "", "", "", "", "", waits=True).save(root)
    apply(root / "params.yaml", ["storage.url=s3://team-models/orchestra"])
    monkeypatch.setattr("flows.release.run_push", returns("sent"))
    monkeypatch.setattr("tasks.approval.check_asked", lambda *_: None)
    monkeypatch.setattr(answering, "run_answer", returns(Answered(approval=approved, changed=True)))
    told: list[Any] = []

    def lost(_: Stage, *said: Any) -> None:
        told.extend(said)
        raise RuntimeError("MLflow does not answer")

    monkeypatch.setattr("tasks.approval.taken_back", lost)
    state = answering.answer.fn(by="Ada")
    assert told == [approved, FOUND]
    assert (state.name, state.is_completed(), state.message) == ("RolledBack", True, FOUND)
    (record,), last = runs(root), RunSummary.load(root)
    assert record.state == "RolledBack" and FOUND in record.message
    assert list(record.stages) == ["answer", "deploy", "push"], "other machines that share the store learn of it"
    assert last is not None and last.verdict == "rolled back by its canary" and FOUND in last.text(root)


@pytest.mark.usefixtures("prefect")
def test_a_version_that_its_canary_took_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "connected", lambda _: contextlib.nullcontext())
    lines = notify.add(tmp_path, ["http://127.0.0.1:9/hook"])
    assert "retrain, answer, release: a version that its canary took back is told" in lines
    with get_client(sync_client=True) as client:
        (found,) = [one for one in client.read_automations() if one.name.endswith("-canary")]
    trigger: Any = found.trigger
    assert trigger.expect == {"prefect.flow-run.RolledBack"}
    assert trigger.match_related["prefect.resource.name"] == ["retrain", "answer", "release"]
    (action,) = found.actions
    assert isinstance(action, SendNotification) and "replace('<', '&lt;')" in action.body
    assert notify.remove(tmp_path) == 6
