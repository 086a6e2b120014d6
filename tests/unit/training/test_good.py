"""The last good checkpoint: kept through the trainer's rotation, whole or not at all, and restored exactly."""

import shutil
from pathlib import Path

import pytest
import torch

from orchestra.errors import DataError
from orchestra.training.good import keep_good, last_good, restore
from tests.worlds import tiny_model


def saved(folder: Path, step: int, seed: int) -> Path:
    """A checkpoint as the trainer leaves it: the model's files among its own."""
    checkpoint = folder / f"checkpoint-{step}"
    tiny_model(seed).save_pretrained(str(checkpoint))
    for name in ("trainer_state.json", "history.json", "optimizer.pt"):
        (checkpoint / name).write_text("{}", encoding="utf-8")
    return checkpoint


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_kept_model_outlives_its_checkpoint(tmp_path: Path) -> None:
    assert last_good(tmp_path) is None
    first, second = saved(tmp_path, 20, 1), saved(tmp_path, 40, 2)
    keep_good(first)
    shutil.rmtree(first)
    kept = last_good(tmp_path)
    assert kept == (20, tmp_path / "good-20")
    assert sorted(f.name for f in kept[1].iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]
    model = tiny_model(3)
    restore(model, kept[1])
    assert same(model, tiny_model(1))
    keep_good(second)
    assert last_good(tmp_path) == (40, tmp_path / "good-40")
    assert not kept[1].exists()
    # A resumed run comes by a step again.
    keep_good(second)
    restore(model, tmp_path / "good-40")
    assert same(model, tiny_model(2))


def test_an_interrupted_keeping_leaves_the_earlier_one(tmp_path: Path) -> None:
    keep_good(saved(tmp_path, 20, 1))
    half = tmp_path / ".good-40.partial"
    half.mkdir()
    (half / "config.json").write_text("{}", encoding="utf-8")
    assert last_good(tmp_path) == (20, tmp_path / "good-20")
    keep_good(saved(tmp_path, 40, 2))
    assert not half.exists()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    keep_good(saved(tmp_path, 20, 1))
    with pytest.raises(DataError, match="not the weights of this model"):
        restore(tiny_model(1, attention_bias=True), tmp_path / "good-20")
    (tmp_path / "good-20" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="not the weights"):
        restore(tiny_model(1), tmp_path / "good-20")
