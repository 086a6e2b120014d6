"""A real run whose weights break in the middle: it stops with a named reason and ends with the last good checkpoint."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from orchestra.training.grpo.best_checkpoint import restore
from orchestra.training.grpo.health import RECENT, declined
from orchestra.training.grpo.trainer import train_grpo
from tests.support.worlds import PRICE, codec, toolkit, warm_model
from tests.unit.training.grpo.test_trainer import LIMITS, SETTINGS, examples

FIRST = 5
"""Steps between checkpoints."""


@pytest.mark.slow
def test_a_run_that_breaks_ends_with_the_weights_from_before(tmp_path: Path) -> None:
    weights: list[list[torch.Tensor]] = []
    logged: dict[int, dict[str, float]] = {}

    def evaluate(current: PreTrainedModel) -> dict[str, float]:
        weights.append([parameter.detach().clone() for parameter in current.parameters()])
        if len(weights) == FIRST + RECENT + 1:
            torch.manual_seed(0)
            with torch.no_grad():
                for parameter in current.parameters():
                    parameter.copy_(torch.randn_like(parameter))
        return {}

    def log(metrics: dict[str, float], step: int) -> None:
        logged[step] = logged.get(step, {}) | metrics

    settings = SETTINGS.model_copy(
        update={"steps": 60, "save_steps": FIRST, "eval_every": 1, "learning_rate": 0.0005}
    )  # fmt: skip
    model, work = warm_model(), tmp_path / "work"
    world = toolkit(tmp_path)
    result = train_grpo(model, codec(), world, examples(), settings, LIMITS, PRICE, work, log, evaluate)
    assert declined(result.stopped) and result.steps < 60
    assert result.kept_step == FIRST and result.kept is not None
    restore(model, result.kept)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights[FIRST - 1], strict=True))
    for name in (
        "valid",
        "entropy",
        "tokens",
        "decline",
        "divergence",
        "top_tool_share",
        "kind_share/expert",
        "reward",
    ):
        assert f"train/{name}" in logged[result.steps]
    assert logged[result.steps]["train/valid"] < logged[FIRST]["train/valid"]
