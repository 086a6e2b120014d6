"""The plan: what would run, for certain or perhaps, and what it took before."""

import fcntl
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.config.overrides import IN_FORCE, in_force
from orchestra.errors import ConfigError
from orchestra.system.runs import RunRecord, StageRecord
from orchestra.system.workspace import LOCK
from tasks.platform.plan import lines, main, plan
from tests.support.worlds import ROOT

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CURRENT: dict[str, list[str]] = {"synthesize": [], "validate": [], "sft": [], "evaluate": []}


def run(**seconds: float) -> RunRecord:
    stages = {
        name: StageRecord(state="ran", began=BEGAN, ended=BEGAN + timedelta(seconds=took), usd=Decimal(str(took / 100)))
        for name, took in seconds.items()
    }
    return RunRecord(id="i", name="n", flow="retrain", began=BEGAN, ended=BEGAN, state="Completed", stages=stages)


def test_nothing_is_stale() -> None:
    steps = plan(CURRENT, [])
    assert not any(step.why for step in steps) and "Nothing would run" in lines(steps, None)[-1]


def test_behind_the_first_that_runs_the_others_may_run() -> None:
    steps = plan(CURRENT | {"validate": ["params.yaml: validate.max_quarantined modified"]}, [])
    assert [(step.name, step.certain, bool(step.why)) for step in steps] == [
        ("synthesize", False, False),
        ("validate", True, True),
        ("sft", False, True),
        ("evaluate", False, True),
    ]
    assert steps[2].why == ("if validate makes something else",)


def test_a_stage_that_is_asked_for_runs_though_it_is_current() -> None:
    assert [step.certain for step in plan(CURRENT, [], "sft")] == [False, False, True, False]
    with pytest.raises(ConfigError, match="no stage stf"):
        plan(CURRENT, [], "stf")


def test_time_and_dollars_are_the_median_of_the_last_runs_that_ran_it() -> None:
    unchanged = run().model_copy(update={"stages": {"sft": StageRecord(state="unchanged", began=BEGAN, ended=BEGAN)}})
    steps = plan(CURRENT, [unchanged, run(sft=10), run(sft=30), run(sft=20, evaluate=200)], "sft")
    found = {step.name: (step.seconds, step.usd) for step in steps}
    assert found["sft"] == (20.0, Decimal("0.2")) and found["evaluate"] == (200.0, Decimal(2))
    text = lines(steps, Decimal(5))
    assert any(line.split()[:3] == ["all", "4", "min"] and "2.20" in line for line in text)
    assert "The cap of a run is 5.00 USD." in text


def test_what_never_ran_here_has_no_figure() -> None:
    text = "\n".join(lines(plan(CURRENT, [run(evaluate=5)], "sft"), None))
    assert "sft         runs     ?" in text and "orchestra forecast" in text


def test_what_is_wrong_in_params_yaml_is_said_before_dvc_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text(
        "<<<<<<< HEAD\nprofile: a\n=======\nprofile: b\n>>>>>>> x\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="line 1: marks of a merge"):
        main([])


@pytest.mark.parametrize("works", [False, True])
def test_what_a_killed_run_left_in_params_yaml_is_taken_out_but_not_beside_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    file = Path(shutil.copy(ROOT / "params.yaml", tmp_path))
    before = file.read_text(encoding="utf-8")
    killed = in_force(tmp_path, ["sft.seed=17"])
    killed.__enter__()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda _: CURRENT)
    monkeypatch.setattr("tasks.platform.plan.check_named", lambda params, root: None)
    with (tmp_path / LOCK).open("w") as holder:
        if works:
            fcntl.flock(holder, fcntl.LOCK_EX)
        main([])
    assert (file.read_text(encoding="utf-8") == before) is not works
    assert (tmp_path / IN_FORCE).exists() is works


def test_what_a_run_would_refuse_has_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text.replace("data/catalogue/tools.yaml", "data/catalogue/t.yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda _: CURRENT)
    with pytest.raises(ConfigError, match=r"data/catalogue/t\.yaml is not there"):
        main([])
