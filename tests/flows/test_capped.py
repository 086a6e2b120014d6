"""A cap of dollars is a normal ending of a run, with a name and its reason in one line."""

import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import retrain as module
from orchestra.errors import BudgetError, OrchestraError
from orchestra.system.runs import RunJournal, runs
from tasks.platform.dvc import StageCapped
from tasks.platform.tracking import Recorder
from tests.support.worlds import ROOT


@pytest.mark.parametrize(
    "end", [StageCapped("l.jsonl: 5 of 5 USD are spent", where="grpo"), BudgetError("5 of 5 USD are spent")]
)
def test_the_run_ends_by_name_and_its_record_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: OrchestraError
) -> None:
    closed: list[tuple[str, ...]] = []
    recorder = SimpleNamespace(
        parent="p",
        tag=lambda *_: None,
        artifacts=lambda *_: None,
        finish=lambda run, *error: closed.append((run, *error)),
    )

    def capped(*_: Any) -> None:
        raise end

    journal = RunJournal.begin(tmp_path, "i", "n", "retrain")
    monkeypatch.setattr(module, "under_way", lambda *_, **__: contextlib.nullcontext(journal))
    monkeypatch.setattr(Recorder, "open", lambda *_: recorder)
    monkeypatch.setattr(module, "_run_all", capped)
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    state = module.retrain.fn()
    assert (state.name, state.is_completed(), state.message) == ("Capped", True, str(end))
    assert state.result() == str(end) and "\n" not in str(end)
    assert closed == [("p",)]  # Without an error.
    (record,) = runs(tmp_path)
    assert (record.state, record.message, record.failed) == ("Capped", str(end), False)
