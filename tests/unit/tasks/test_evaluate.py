"""The evaluate stage on machines with several GPUs: a checkpoint is measured as on any other."""

from pathlib import Path

import pytest
import torch

from orchestra.config.schema import Rollout
from orchestra.evaluation.run import evaluate
from tasks.evaluate import checkpoint
from tests.support.worlds import PRICE, codec, easy_example, toolkit, warm_model


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_checkpoint_is_evaluated_however_many_gpus_are_seen(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_model().save_pretrained(str(tmp_path / "grpo"))
    codec().tokenizer.save_pretrained(str(tmp_path / "grpo"))
    examples, limits = (
        [easy_example(f"e{i}") for i in range(4)],
        Rollout(max_turns=2, max_turn_tokens=24, max_tokens=200),
    )
    (tmp_path / "world").mkdir()

    def measured(name: str) -> list[list[int]]:
        contender, kit = checkpoint("grpo", tmp_path / "grpo", PRICE), toolkit(tmp_path / "world")
        found = evaluate([contender], examples, kit, limits, file=tmp_path / name)
        return [episode.completion_ids for episode in found["grpo"]]

    alone = measured("alone.jsonl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert measured("several.jsonl") == alone and all(alone)
