"""Code that changes on disk during a run: the next step does not begin, and none is imported only there."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flows._runs import LoadedCode
from orchestra.config.schema import load_params
from tasks.platform.dvc import ChangedDuringRun

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that this process has imported."""
    file = tmp_path / "step.py"
    file.write_text("1")
    loaded = ModuleType("tasks.made_up")
    loaded.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "tasks.made_up", loaded)
    return file


@pytest.mark.parametrize("change", [lambda file: file.write_text("2"), Path.unlink], ids=["edited", "gone"])
def test_code_that_changed_since_it_was_loaded_is_told(module: Path, change: Callable[[Path], object]) -> None:
    code = LoadedCode()
    module.write_text("1")
    code.check()
    change(module)
    told = r"^the code changed during the run \(tasks\.made_up\) — orchestra rerun goes on"
    with pytest.raises(ChangedDuringRun, match=told) as caught:
        code.check()
    assert not caught.value.retryable
    with pytest.raises(ChangedDuringRun, match="— orchestra release serves the champion"):
        code.check(fix="orchestra release serves the champion")


class Step:
    """A task of Prefect that does nothing but what it is given to do, and notes its name."""

    def __init__(self, done: list[str], work: Callable[[], object], result: object) -> None:
        self.done, self.work, self.result = done, work, result

    def with_options(self, name: str = "", **_: Any) -> "Step":
        self.name = name or getattr(self, "name", "")
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.done.append(self.name)
        self.work()
        return SimpleNamespace(result=lambda: self.result)


@pytest.mark.parametrize("during", ["sft", "promote"])
def test_a_run_ends_at_the_step_after_the_code_changed(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    from flows import retrain
    from orchestra.system.runs import RunJournal

    done: list[str] = []

    def edit() -> None:
        if done[-1] == during:
            module.write_text("2")

    decision = SimpleNamespace(version=1, name="Promoted", waits=False)
    params = load_params(ROOT / "params.yaml")
    for name, instead in {
        "load_params": lambda _: params,
        "check_named": lambda *_, **__: None,
        "refuse_now": lambda *_: None,
        "run_stage": Step(done, edit, "unchanged"),
        "run_promote": Step(done, edit, decision),
        "run_deploy": Step(done, edit, None),
    }.items():
        monkeypatch.setattr(retrain, name, instead)
    monkeypatch.setattr("tasks.platform.dvc.stages", lambda _: {"sft": [], "grpo": []})
    monkeypatch.setattr(retrain, "suspendable", str)
    recorder: Any = SimpleNamespace(root=tmp_path, parent="run", tagged=lambda _: "", headline=lambda *_, **__: None)
    with pytest.raises(ChangedDuringRun):
        retrain._run_all(tmp_path, recorder, RunJournal.begin(tmp_path, "id", "name", "retrain"), None, set())
    assert done == ["sft", "grpo", "promote"][: 1 if during == "sft" else 3]


@pytest.mark.parametrize("flow", ["retrain", "release"])
def test_a_flow_imports_before_its_first_step_what_its_last_one_needs(flow: str) -> None:
    tree = ast.parse((ROOT / "flows" / f"{flow}.py").read_text(encoding="utf-8"))
    within = {node for part in tree.body if isinstance(part, ast.FunctionDef) for node in ast.walk(part)}
    assert [ast.unparse(node) for node in within if isinstance(node, ast.Import | ast.ImportFrom)] == []
