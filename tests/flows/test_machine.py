"""What a run needs of this machine is known before its first stage."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import retrain as module
from orchestra.errors import ConfigError, ServiceError
from tasks.platform import dvc
from tests.support.worlds import ROOT


@pytest.mark.parametrize(
    ("until", "force", "asked"),
    [(None, [], ["sft", "evaluate"]), ("grpo", [], ["sft"]), ("grpo", ["grpo"], ["sft", "grpo"]), ("validate", [], [])],
)
def test_the_stages_that_will_run_are_compared_with_this_machine(
    until: str | None, force: list[str], asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    stages = {"synthesize": [], "validate": [], "sft": ["it has not run yet"], "grpo": [], "evaluate": ["changed"]}
    seen: list[list[str]] = []

    def refuse(root: Path, params: object, names: list[str]) -> None:
        seen.append(names)
        raise ServiceError("8 processes for 1 GPU", where="sft.processes", fix="none")

    monkeypatch.setattr(module, "check_named", lambda *_, **__: None)
    monkeypatch.setattr(dvc, "recover", lambda root: None)
    monkeypatch.setattr(dvc, "stages", lambda root: stages)
    monkeypatch.setattr(module, "refuse_now", refuse)
    nothing: Any = None
    with pytest.raises(ServiceError, match="8 processes"):
        module._run_all(tmp_path, nothing, nothing, until, set(force))
    assert seen == [asked]


def test_a_stage_that_is_forced_after_the_last_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.setattr(module, "check_named", lambda *_, **__: None)
    monkeypatch.setattr(dvc, "stages", lambda root: {"synthesize": [], "validate": [], "sft": ["it has not run yet"]})
    monkeypatch.setattr(module, "refuse_now", lambda *_: pytest.fail("it goes on"))
    nothing: Any = None
    with pytest.raises(ConfigError) as caught:
        module._run_all(tmp_path, nothing, nothing, "synthesize", {"synthesize", "validate"})
    told = "--until: validate comes after synthesize, where this run ends"
    assert str(caught.value) == f"{told} — orchestra run --force validate --until validate"
