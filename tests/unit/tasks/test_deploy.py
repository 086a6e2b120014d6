"""A canary that fails: the version before it is champion again, whichever way the candidate came."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from monitoring.drift import Signal
from monitoring.reasons import of_drift
from orchestra.accounting.budget import Budget
from orchestra.errors import BudgetError, DataError
from orchestra.files.jsonl import write_jsonl
from orchestra.promotion.approval import Answer, request
from orchestra.serving.releases.deployment import Deployment
from orchestra.serving.releases.release import Release
from orchestra.serving.releases.state import Serving, write
from orchestra.serving.releases.trial_run import CandidateWorse
from orchestra.system.retraining import ask, close, requests, take
from orchestra.system.workspace import locked
from orchestra.types import Charge, Component
from tasks import approval
from tasks.deploy import ReleaseRequest, deploy
from tasks.platform.aliases import aliases
from tasks.platform.ledger import LEDGER, by_stage
from tasks.platform.registry import CHAMPION, DECISION, PREVIOUS, ROLLED_BACK, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import connect
from tasks.records.releases import EXPERIMENT
from tasks.rollback import Move, rollback, switch
from tests.support.registries import make_workspace, register
from tests.support.worlds import ROOT, example

LOCKS = """
import sys
from pathlib import Path
from orchestra.system.workspace import locked
with locked(Path(sys.argv[1])):
    pass
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose champion is version 2, and version 1 the one before it."""
    root = tmp_path_factory.mktemp("made") / "w"
    make_workspace(root)
    (root / "data/validated").mkdir(parents=True)
    write_jsonl(root / "data/validated/heldout.jsonl", [example("e1")])
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        registry = register(root, (1, 2), ("", ""))
        for number, alias in ((1, PREVIOUS), (2, CHAMPION)):
            registry.point(alias, next(one for one in registry.versions() if one.number == number))
    return root


@pytest.fixture
def stage(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """There, no candidate passes its trial."""

    def worse(release: Release) -> None:
        raise CandidateWorse("1.40 times as long", where=f"version {release.candidate.version}")

    monkeypatch.setattr(Release, "serve", worse)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Stage.open("promote", Path(shutil.copytree(made, tmp_path / "w")))


def tried(stage: Stage) -> dict[int, set[str]]:
    """The aliases of each version after the champion's canary, and whether it was taken out."""
    assert deploy(stage, request=ReleaseRequest(trial="canary")).outcome == "rolled_back"
    registry = Registry(stage.root, stage.params.promote.model_name)
    found = {one.number: {ROLLED_BACK} & set(one.tags) for one in registry.versions()}
    for alias, number in aliases(stage.root, registry.model_name).items():
        found[number].add(alias)
    return found


def test_a_new_champion_that_fails_is_taken_out(stage: Stage) -> None:
    assert tried(stage) == {1: {CHAMPION}, 2: {PREVIOUS, ROLLED_BACK}}


def test_the_version_that_serves_stays_champion_where_its_new_parameters_are_worse(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.deploy._serving", lambda root: "2")
    assert tried(stage) == {1: {PREVIOUS}, 2: {CHAMPION}}


def test_a_version_that_its_canary_took_out_says_so_until_a_person_brings_it_back(stage: Stage) -> None:
    made = deploy(stage, request=ReleaseRequest(trial="canary"))
    assert made.trial == "version 2 did not pass its canary: 1.40 times as long"
    registry = Registry(stage.root, stage.params.promote.model_name)
    worse = registry.version(2)
    assert worse is not None and worse.tags[DECISION] == "RolledBack"
    assert worse.taken_out == "its canary (1.40 times as long) took this version out of service"
    approval.write(registry, worse, request(2, 1, "d", approval.now(), 1))
    with pytest.raises(DataError, match=r"its canary .* took this version out of service — orchestra release --to 2"):
        approval.answer(stage, 2, Answer(approve=True, by="Ada"))
    assert switch(stage, 2).changed and rollback(stage).changed
    back = registry.version(2)
    assert back is not None and back.tags[DECISION] == "Promoted" and back.taken_out.startswith("a person ")


def recorded(stage: Stage) -> Any:
    """The one release that MLflow knows."""
    client = connect(stage.root)
    (made,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    return made


def test_how_the_last_requests_to_the_old_version_ended_is_on_record(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def released(release: Release) -> Deployment:
        release.drain.seconds, release.drain.cut = 1801.5, ["vllm-blue (version 1)"]
        return Deployment(outcome="released")

    monkeypatch.setattr(Release, "serve", released)
    deploy(stage)
    made = recorded(stage)
    assert (made.data.metrics["drain.seconds"], made.data.metrics["drain.cut"]) == (1801.5, 1)
    assert made.data.tags["release.drained"] == "Requests were cut after 1800 s: vllm-blue (version 1)."


@pytest.mark.parametrize("of_run", [False, True], ids=["a release alone", "in a run of the pipeline"])
def test_what_the_smoke_set_spent_is_on_record(
    of_run: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def released(release: Release) -> Deployment:
        assert release.budget is not None
        release.budget.book(Charge(component=Component.EXPERT, name="oracle", cost_usd=Decimal("0.25")))
        return Deployment(outcome="released")

    monkeypatch.setattr(Release, "serve", released)
    ledger = tmp_path / "run.jsonl"
    spends = Budget(ledger, None, "grpo")
    spends.book(Charge(component=Component.EXPERT, name="oracle", cost_usd=Decimal(3)))
    spends.close()
    with monkeypatch.context() as patch:
        if of_run:
            patch.setenv(LEDGER, str(ledger))
        deploy(stage)
    made = recorded(stage)
    assert made.data.metrics["release.smoke_usd"] == 0.25
    kept = [one.path for one in connect(stage.root).list_artifacts(made.info.run_id)]
    booked = by_stage([ledger])
    if of_run:
        assert kept == [] and booked[stage.name] == {"expert": Decimal("0.25")} and booked["grpo"] == {"expert": 3}
    else:
        assert kept == ["ledger.jsonl"] and stage.name not in booked


@pytest.mark.parametrize("of_run", [False, True], ids=["a release alone", "in a run of the pipeline"])
def test_a_cap_that_stops_the_smoke_set_is_told_by_what_a_person_finds(
    of_run: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def capped(release: Release) -> None:
        assert release.budget is not None
        release.budget.check(Decimal(10**6))

    stage.params = stage.params.model_copy(update={"budget": stage.params.budget.model_copy(update={"run_usd": 1})})
    monkeypatch.setattr(Release, "serve", capped)
    if of_run:
        monkeypatch.setenv(LEDGER, str(tmp_path / "run.jsonl"))
    where = f"{tmp_path}/run.jsonl" if of_run else "budget.run_usd"
    with pytest.raises(BudgetError, match=rf"^{where}: 0 of 1 USD are spent, and the next call could cost 1000000 — "):
        deploy(stage)
    made = recorded(stage)
    assert made.data.tags["release.finding"].startswith(f"{where}: 0 of 1 USD")


def test_a_release_is_on_record_while_it_waits_for_the_last_requests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(release: Release) -> None:
        raise SystemExit

    monkeypatch.setattr(Release, "retire", killed)
    with pytest.raises(SystemExit):
        deploy(stage)
    made = recorded(stage)
    assert made.data.tags["release.outcome"] == "rolled_back" and "drain.cut" not in made.data.metrics
    assert aliases(stage.root, stage.params.promote.model_name)[CHAMPION] == 1, "the champion before is it again"


def test_ctrl_c_ends_the_wait_for_the_last_requests_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def released(release: Release) -> Deployment:
        more = {"checkpoint": "c", "engine": "in_process", "params": {}, "code": "c"}
        write(stage.root, Serving(version="2", checkpoint_hash="h", fingerprint="f", **more))
        return Deployment(outcome="released")

    def waits(release: Release) -> None:
        def interrupted() -> bool:
            raise KeyboardInterrupt

        release.drain.seconds = 12.0
        release.drain._wait(interrupted, "vllm-blue")

    monkeypatch.setattr(Release, "serve", released)
    monkeypatch.setattr(Release, "retire", waits)
    with locked(stage.root):
        deploy(stage)
    assert "version 2 serves; the wait for the last requests was ended: " in capsys.readouterr().out
    made = recorded(stage)
    told = "The wait for the last requests to what served before was ended after 12 s."
    assert made.data.tags["release.drained"] == told and made.data.metrics["drain.seconds"] >= 12


def test_a_rollback_may_begin_while_a_release_waits_for_the_last_requests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def waits(release: Release) -> None:
        # Another process: this one may always enter again.
        command = [sys.executable, "-c", LOCKS, str(stage.root)]
        begun.append(subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode)
        release.drain.seconds = 2.5

    monkeypatch.setattr(Release, "serve", lambda _: Deployment(outcome="released"))
    monkeypatch.setattr(Release, "retire", waits)
    with locked(stage.root):
        deploy(stage)
        assert not begun, "the run works on"
    assert begun == [0]
    made = recorded(stage)
    assert made.data.metrics["drain.seconds"] == 2.5


@pytest.mark.parametrize("back", [rollback, lambda stage: switch(stage, 1)], ids=["rollback", "switch"])
def test_an_older_version_that_fails_gives_way_to_the_one_that_it_replaced(
    stage: Stage, back: Callable[[Stage], Move]
) -> None:
    assert back(stage).changed
    assert tried(stage) == {1: {PREVIOUS}, 2: {CHAMPION}}


def test_a_drift_that_was_answered_asks_again_when_its_version_serves_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, signals = stage.root, [Signal("mix of tools", 0.0, 0.2, 1e-9)]

    def serves(fingerprint: str) -> Deployment:
        more = {"checkpoint": "c", "engine": "in_process", "params": {}, "code": "c"}
        write(root, Serving(version="1", checkpoint_hash=fingerprint, fingerprint=fingerprint, **more))
        return Deployment(outcome="released")

    def released(fingerprint: str) -> None:
        monkeypatch.setattr(Release, "serve", lambda _: serves(fingerprint))
        deploy(stage)

    def asked(fingerprint: str) -> int:
        return len(ask(root, of_drift(signals, fingerprint), {"drift"}, "a monitor"))

    serves("old")
    assert asked("old") == 1
    taken = take(root, "r", "calm-cat", 1)
    released("new")
    close(root, taken, "Completed", Decimal(4), answered=True)
    assert asked("old") == 0, "no release since"
    released("new")
    released("old")
    assert asked("old") == 1
    assert [[each.usd for each in one.attempts] for one in requests(root)] == [[Decimal(4)]], "the month counts them"
    close(root, take(root, "s", "shy-seal", 1), "Rejected", Decimal(1), answered=True)
    released("old")
    assert asked("old") == 0, "its answer was a refusal: the same version serves on"


def test_a_release_settles_the_open_drift_of_the_version_that_it_replaces(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serves(fingerprint: str, weights: str) -> Deployment:
        more = {"checkpoint": "c", "engine": "in_process", "params": {}, "code": "c"}
        write(stage.root, Serving(version="1", checkpoint_hash=weights, fingerprint=fingerprint, **more))
        return Deployment(outcome="released")

    serves("old", "a")
    ask(stage.root, of_drift([Signal("mix of tools", 0.0, 0.2, 1e-9)], "old"), {"drift"}, "a monitor")
    monkeypatch.setattr(Release, "serve", lambda _: serves("other settings", "a"))
    deploy(stage)
    assert [one.state for one in requests(stage.root)] == ["open"], "the same weights drift on"
    monkeypatch.setattr(Release, "serve", lambda _: serves("new", "b"))
    deploy(stage)
    assert [one.state for one in requests(stage.root)] == ["settled"]
