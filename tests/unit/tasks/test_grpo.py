"""What the grpo stage says of earlier attempts, and what its ranks pay for."""

from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.config.schema import load_params
from orchestra.types import Charge, Component
from tasks.grpo import episodes, remember_simulated
from tests.support.worlds import ROOT


def spent(file: Path, *, simulated: bool) -> Budget:
    budget = Budget(file, None)
    budget.book(Charge(component=Component.EXPERT, name="gpt-5", simulated=simulated))
    return budget


def test_a_killed_attempt_with_simulated_experts_is_remembered(tmp_path: Path) -> None:
    assert not remember_simulated(tmp_path, spent(tmp_path / "1.jsonl", simulated=False))
    assert remember_simulated(tmp_path, spent(tmp_path / "2.jsonl", simulated=True))
    assert remember_simulated(tmp_path, Budget(tmp_path / "3.jsonl", None)), "the attempt that ends called nothing"


def test_rank_0_pays_for_the_development_checks_besides() -> None:
    """With even shares of the cap it would end a run in which the other ranks have dollars left."""
    settings = load_params(ROOT / "models/recipes/qwen3-8b/params.yaml").grpo
    assert (settings.steps, settings.num_iterations, settings.eval_every, settings.eval_examples) == (200, 1, 20, 64)
    assert episodes(settings) == [3200 + 10 * 64, *[3200] * 7]
    assert episodes(settings.model_copy(update={"eval_every": 60}))[0] == 3200 + 4 * 64, "after the last step, too"
    assert episodes(settings.model_copy(update={"num_iterations": 2, "processes": 1})) == [12_800 + 10 * 64]
