"""What the grpo stage says of earlier attempts, and what its ranks pay for."""

import json
from pathlib import Path

import pytest

from orchestra.accounting.budget import Budget
from orchestra.config.schema import load_params
from orchestra.training.resume import MARKER
from orchestra.types import Charge, Component
from tasks.grpo import STEPS, episodes, log_earlier, remember_simulated
from tasks.platform.stage import Stage
from tests.support.worlds import ROOT


def spent(file: Path, *, simulated: bool) -> Budget:
    budget = Budget(file, None)
    budget.book(Charge(component=Component.EXPERT, name="gpt-5", simulated=simulated))
    return budget


def test_a_killed_attempt_with_simulated_experts_is_remembered(tmp_path: Path) -> None:
    assert not remember_simulated(tmp_path, spent(tmp_path / "1.jsonl", simulated=False))
    assert remember_simulated(tmp_path, spent(tmp_path / "2.jsonl", simulated=True))
    assert remember_simulated(tmp_path, Budget(tmp_path / "3.jsonl", None)), "the attempt that ends called nothing"


def test_a_continued_training_s_curves_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its checkpoint, behind which it repeats the steps."""
    stage = Stage("grpo", load_params(ROOT / "params.yaml"), tmp_path)
    told: list[tuple[int, dict[str, float]]] = []
    monkeypatch.setattr(stage, "log_metrics", lambda metrics, step: told.append((step, metrics)))
    log_earlier(stage)
    work = stage.work_dir()
    rows: list[dict[str, float]] = [{"step": step, "train/reward": step / 10} for step in (1, 2, 3, 4)]
    rows.insert(2, {"step": 2, "dev/accuracy": 0.5})
    lines = [json.dumps({"ledger": "l.jsonl", **row}) + "\n" for row in [*rows, rows[-1] | {"train/reward": 0.9}]]
    # A full disk cut the last line, and the stage could never be continued.
    (work / STEPS).write_text("".join(lines) + '{"step": 5, "train/rew', encoding="utf-8")
    for step in (2, 4):
        (work / f"checkpoints/checkpoint-{step}").mkdir(parents=True)
    (work / f"checkpoints/checkpoint-2/{MARKER}").touch()
    log_earlier(stage)
    assert told == [(1, {"train/reward": 0.1}), (2, {"dev/accuracy": 0.5}), (2, {"train/reward": 0.2})]


def test_rank_0_pays_for_the_development_checks_besides() -> None:
    """With even shares of the cap it would end a run in which the other ranks have dollars left."""
    settings = load_params(ROOT / "models/recipes/qwen3-8b/params.yaml").grpo
    assert (settings.steps, settings.num_iterations, settings.eval_every, settings.eval_examples) == (200, 1, 20, 64)
    assert episodes(settings) == [3200 + 10 * 64, *[3200] * 7]
    assert episodes(settings.model_copy(update={"eval_every": 60}))[0] == 3200 + 4 * 64, "after the last step, too"
    assert episodes(settings.model_copy(update={"num_iterations": 2, "processes": 1})) == [12_800 + 10 * 64]
