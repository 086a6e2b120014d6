"""A cap of dollars is a normal ending of a run, with a name and its reason in one line."""

import contextlib
import os
import shutil
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import Pause

from flows import retrain as module
from flows._runs import AwaitsAnswer
from flows.retraining import answering, look, waiting
from monitoring.drift import Signal
from monitoring.reasons import of_drift
from orchestra.config.overrides import apply
from orchestra.config.schema import load_params
from orchestra.errors import BudgetError, OrchestraError
from orchestra.system.retraining import RetrainReason, ask, drop, find_request, month_left, requests
from orchestra.system.runs import AWAITING, CAPPED, CONTINUES, FAILED, PARTIAL, RunJournal, runs
from tasks.platform import dvc
from tasks.platform.dvc import StageCapped
from tasks.platform.tracking import Recorder
from tests.support.worlds import ROOT


def ending(root: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException) -> list[tuple[str, ...]]:
    """What MLflow's record will be closed with, of a run whose stages end so."""
    closed: list[tuple[str, ...]] = []
    recorder = SimpleNamespace(
        root=root,
        parent="p",
        tag=lambda *_: None,
        artifacts=lambda *_: None,
        finish=lambda run, *error: closed.append((run, *error)),
    )

    def ended(*_: Any) -> None:
        raise end

    journal = RunJournal.begin(root, "i", "n", "retrain")
    monkeypatch.setattr(module, "under_way", lambda *_, **__: contextlib.nullcontext(journal))
    monkeypatch.setattr(Recorder, "open", lambda *_: recorder)
    monkeypatch.setattr(module, "_run_all", ended)
    monkeypatch.chdir(root)
    shutil.copy(ROOT / "params.yaml", root)
    return closed


@pytest.mark.parametrize("end", [Pause(), AwaitsAnswer()])
def test_a_run_that_a_person_suspends_did_not_succeed_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Pause
) -> None:
    closed = ending(tmp_path, monkeypatch, end)
    with pytest.raises(Pause):
        module.retrain.fn()
    line = f"suspended in Prefect — resume it there, or run it again: {CONTINUES}"
    assert closed == [("p",) if isinstance(end, AwaitsAnswer) else ("p", line)]


@pytest.mark.parametrize(
    "end", [StageCapped("l.jsonl: 5 of 5 USD are spent", where="grpo"), BudgetError("5 of 5 USD are spent")]
)
def test_the_run_ends_by_name_and_its_record_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: OrchestraError
) -> None:
    closed = ending(tmp_path, monkeypatch, end)
    state = module.retrain.fn()
    assert (state.name, state.is_completed(), state.message) == ("Capped", True, str(end))
    assert state.result() == str(end) and "\n" not in str(end)
    assert closed == [("p",)]  # Without an error.
    (record,) = runs(tmp_path)
    assert (record.state, record.message, record.failed) == ("Capped", str(end), False)


@pytest.mark.parametrize(("setting", "limit_s"), [("", 86_400), ("\n  stage_hours: 1.5", 5400)])
def test_a_stage_may_take_the_hours_that_the_parameters_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, limit_s: float
) -> None:
    text = (ROOT / "params.yaml").read_text().replace("run_usd: null", f"run_usd: null{setting}")
    (tmp_path / "params.yaml").write_text(text)
    given: dict[str, Any] = {}

    class Task:
        """Takes Prefect's options, and runs as a stage that is ended."""

        def with_options(self, **options: Any) -> "Task":
            given.update(options)
            return self

        def __call__(self, *_: Any, **__: Any) -> None:
            raise TimeoutError

    monkeypatch.setattr(module, "run_stage", Task())
    monkeypatch.setattr(module, "check_named", lambda *_, **__: None)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda *_: {"synthesize": ["new"]})
    recorder: Any = SimpleNamespace(root=tmp_path, parent="p", tagged=lambda _: None)
    journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
    with pytest.raises(TimeoutError):
        module._run_all(tmp_path, recorder, journal, None, set())
    assert given == {"name": "synthesize", "timeout_seconds": limit_s}


@pytest.mark.parametrize(("run_usd", "over"), [(None, True), ("10", True), ("2", False)])
def test_a_month_whose_cap_ended_a_requested_run_is_over(tmp_path: Path, run_usd: str | None, over: bool) -> None:
    text = (ROOT / "params.yaml").read_text().replace("monthly_usd: null", "monthly_usd: 5")
    (tmp_path / "params.yaml").write_text(text.replace("run_usd: null", f"run_usd: {run_usd or 'null'}"))
    limits = load_params(tmp_path / "params.yaml").retraining
    ask(tmp_path, [RetrainReason("person", "k", "a second customer")], (), "a person")
    journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
    with answering(tmp_path, journal, "due") as caps:
        assert caps == [f"budget.run_usd={'2' if run_usd == '2' else '5'}"]
        journal.end(CAPPED, "4.9 of 5 USD are spent")
    assert (month_left(tmp_path, limits) == 0) is over
    assert [one.waits for one in requests(tmp_path)] == [True]


@pytest.mark.parametrize("end", [AWAITING, FAILED])
def test_a_run_that_goes_on_has_the_cap_that_it_had_as_its_ledger_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    text = (ROOT / "params.yaml").read_text().replace("monthly_usd: null", "monthly_usd: 10")
    (tmp_path / "params.yaml").write_text(text)
    limits = load_params(tmp_path / "params.yaml").retraining
    monkeypatch.setattr("flows.retraining.spent_by", lambda *_: Decimal(6))
    ask(tmp_path, [RetrainReason("person", "k", "a second customer")], (), "a person")
    for part in (1, 2):
        journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
        with contextlib.suppress(AwaitsAnswer, OrchestraError), answering(tmp_path, journal, "now") as caps:
            assert caps == ["budget.run_usd=10"]
            if part == 1:
                raise AwaitsAnswer() if end == AWAITING else OrchestraError("an expert failed")
            journal.end("Completed")
        assert month_left(tmp_path, limits) == 4
    assert [one.state for one in requests(tmp_path)] == ["answered"]


def world(root: Path) -> Path:
    """What a look at prices reads."""
    for name in ("params.yaml", "dvc.yaml", "data/catalogue"):
        (root / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, root / name)
    return root


@pytest.mark.parametrize("end", [CAPPED, FAILED])
def test_what_moved_prices_asked_for_stays_asked_when_its_run_ends_early(tmp_path: Path, end: str) -> None:
    look(world(tmp_path), None, "a monitor")
    journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
    with contextlib.suppress(OrchestraError), answering(tmp_path, journal, "due"):
        if end == FAILED:
            raise OrchestraError("no room")
        journal.end(CAPPED, "4.9 of 5 USD are spent")
    journal.end(end, "")
    moved = load_params(tmp_path / "params.yaml").world.price_date
    assert moved > load_params(ROOT / "params.yaml").world.price_date
    assert look(tmp_path, None, "the next monitor").startswith("nothing new asks")
    assert waiting(tmp_path, "now", own="rerun", again=False) == ""
    again = RunJournal.begin(tmp_path, "rerun", "m", "retrain")
    with answering(tmp_path, again, "now"):
        again.end("Completed", "")
    assert load_params(tmp_path / "params.yaml").world.price_date == moved
    assert {one.state for one in requests(tmp_path) if not one.needs} == {"answered"}


@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize("end", ["Completed", "Rejected", AWAITING, PARTIAL, FAILED])
def test_a_persons_own_run_settles_what_prices_and_data_asked_for_once_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, failed_before: bool
) -> None:
    stale = {"synthesize": ["data/extra modified"]}
    monkeypatch.setattr(dvc, "stages", lambda _root: stale)
    look(world(tmp_path), None, "a monitor")
    if failed_before:
        failed = RunJournal.begin(tmp_path, "asked", "asked", "retrain")
        with contextlib.suppress(OrchestraError), answering(tmp_path, failed, "due"):
            raise OrchestraError("no room")
    else:
        params = tmp_path / "params.yaml"
        params.write_text(params.read_text().replace('price_date: "2025-11-15"', 'price_date: "2026-04-01"'))
    journal = RunJournal.begin(tmp_path, "own", "own", "retrain")
    with contextlib.suppress(OrchestraError, AwaitsAnswer), answering(tmp_path, journal, "") as caps:
        assert caps == []
        stale["synthesize"].clear()
        if end == FAILED:
            raise OrchestraError("no room")
        if end == AWAITING:
            raise AwaitsAnswer("a person must answer")
        journal.end(end, "")
    left = {one.cause for one in requests(tmp_path) if one.waits}
    assert left == ({"price", "data"} if end in (PARTIAL, FAILED) else set())
    # What it did not take away, it did not answer.
    assert {one.state for one in requests(tmp_path) if one.needs} <= {"open"}


@pytest.mark.parametrize("end", [PARTIAL, CAPPED, FAILED, None, "Completed"])
def test_new_data_stay_asked_while_the_run_that_read_them_came_to_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str | None
) -> None:
    stale = {"synthesize": ["data/extra modified"]}
    monkeypatch.setattr(dvc, "stages", lambda _root: stale)
    look(world(tmp_path), None, "a monitor")
    journal = RunJournal.begin(tmp_path, "own", "own", "retrain")
    stale["synthesize"].clear()
    if end:
        journal.end(end)
    look(tmp_path, None, "a monitor")
    (data,) = [one for one in requests(tmp_path) if one.cause == "data"]
    assert data.state == ("settled" if end == "Completed" else "open")


def test_data_that_were_dropped_do_not_ask_again_when_their_file_is_only_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc, "stages", lambda _root: {"synthesize": ["data/extra modified"]})
    file = world(tmp_path) / "data/extra/mine.jsonl"
    file.parent.mkdir()
    file.write_text("one")

    def asked() -> list[str]:
        look(tmp_path, None, "a monitor")
        return [one.id for one in requests(tmp_path) if one.cause == "data" and one.state == "open"]

    (first,) = asked()
    drop(tmp_path, find_request(tmp_path, first))
    os.utime(file, (1e9, 1e9))
    assert asked() == []
    file.write_text("two")
    assert asked() not in ([], [first])


def test_drift_that_was_asked_before_a_person_took_that_seed_takes_the_next_one(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    signal = Signal("dollars an episode", 1, 2, 1e-9)
    ask(tmp_path, of_drift([signal], "f1"), {"drift"}, "a monitor")
    apply(tmp_path / "params.yaml", ["grpo.seed=41"])
    journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
    with answering(tmp_path, journal, "now"):
        assert load_params(tmp_path / "params.yaml").grpo.seed == 42
        journal.end("Rejected")


def test_a_persons_own_run_leaves_prices_that_it_did_not_take_and_what_no_run_can_settle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc, "stages", lambda _root: {"synthesize": ["data/extra modified"]})
    look(world(tmp_path), None, "a monitor")
    ask(tmp_path, [RetrainReason("person", "k", "a second customer")], (), "a person")
    monkeypatch.setattr(dvc, "stages", lambda _root: {})
    journal = RunJournal.begin(tmp_path, "own", "own", "retrain")
    with answering(tmp_path, journal, ""):
        journal.end("Completed", "")
    assert {one.cause for one in requests(tmp_path) if one.waits} == {"price", "person"}
