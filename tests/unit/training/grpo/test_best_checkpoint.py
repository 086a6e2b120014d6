"""The last good checkpoint: kept through the trainer's rotation, whole or not at all, and restored exactly."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra.errors import DataError
from orchestra.training.grpo.best_checkpoint import BestCheckpoint, restore
from orchestra.training.grpo.callbacks import watch
from orchestra.training.grpo.health import RECENT
from tests.support.worlds import same, tiny_model
from tests.unit.training.grpo.test_trainer import SETTINGS


def saved(folder: Path, step: int, seed: int) -> Path:
    """A checkpoint as the trainer leaves it: the model's files among its own."""
    checkpoint = folder / f"checkpoint-{step}"
    tiny_model(seed).save_pretrained(str(checkpoint))
    for name in ("trainer_state.json", "history.json", "optimizer.pt"):
        (checkpoint / name).write_text("{}", encoding="utf-8")
    return checkpoint


def test_a_model_is_kept_when_the_steps_after_it_were_good_and_outlives_its_checkpoint(tmp_path: Path) -> None:
    good = BestCheckpoint(tmp_path, after=10)
    first, second = saved(tmp_path, 20, 1), saved(tmp_path, 40, 2)
    good.decide(20, True)
    good.propose(first)
    for step in range(21, 30):
        good.decide(step, True)
        assert good.last() is None
    shutil.rmtree(first)
    good.decide(30, True)
    kept = good.last()
    assert kept == (20, tmp_path / "good-20")
    assert sorted(f.name for f in kept[1].iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]
    model = tiny_model(3)
    restore(model, kept[1])
    assert same(model, tiny_model(1))
    good.propose(second)
    good.decide(50, True)
    assert good.last() == (40, tmp_path / "good-40")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-40", "good-40"]
    restore(model, tmp_path / "good-40")
    assert same(model, tiny_model(2))


def test_of_two_that_a_kill_left_the_later_one_is_kept(tmp_path: Path) -> None:
    """The kill came after the new one was in its place and before the one before it was removed."""
    for step in (9, 10):
        (tmp_path / f"good-{step}").mkdir()
    assert BestCheckpoint(tmp_path, after=1).last() == (10, tmp_path / "good-10")


def test_a_model_followed_by_bad_steps_is_not_kept(tmp_path: Path) -> None:
    good = BestCheckpoint(tmp_path, after=10)
    good.propose(saved(tmp_path, 20, 1))
    good.decide(30, False)
    assert good.last() is None
    good.propose(saved(tmp_path, 40, 2))
    good.decide(50, True)
    good.propose(saved(tmp_path, 60, 3))
    good.decide(70, False)
    assert good.last() == (40, tmp_path / "good-40")


def test_frequent_checkpoints_wait_for_their_turn(tmp_path: Path) -> None:
    """One candidate at a time, or none would ever have waited long enough."""
    good, seen = BestCheckpoint(tmp_path, after=3), []
    for step in range(1, 10):
        good.decide(step, True)
        good.propose(saved(tmp_path, step, 1))
        seen.append((good.last() or (0, None))[0])
    assert seen == [0, 0, 0, 1, 1, 1, 4, 4, 4]


def test_a_run_killed_in_between_goes_on(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 20, 1)
    half = tmp_path / ".candidate-20.0123abcdef.partial"
    half.mkdir()
    (half / "config.json").write_text("half", encoding="utf-8")
    BestCheckpoint(tmp_path, after=10).propose(checkpoint)
    BestCheckpoint(tmp_path, after=10).propose(checkpoint)
    BestCheckpoint(tmp_path, after=10).decide(30, True)
    assert BestCheckpoint(tmp_path, after=10).last() == (20, tmp_path / "good-20")
    assert not half.exists()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, 20, 1)
    with pytest.raises(DataError, match="not the weights of this model"):
        restore(tiny_model(1, attention_bias=True), folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="not the weights"):
        restore(tiny_model(1), folder)


def test_with_several_steps_a_round_a_candidate_waits_for_as_many_rounds(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"steps": 400, "num_iterations": 4, "eval_every": 400})
    (tmp_path / "candidate-4").mkdir()
    rounds: Any = SimpleNamespace(history=[{"reward": 1.0, "accuracy": 1.0, "valid": 1.0}] * RECENT)
    watcher = watch(rounds, settings, tmp_path, lambda *_: None, lambda _: None, lambda: pytest.fail("no check is due"))
    for step in range(5, 5 + 4 * RECENT):
        assert watcher.best.last() is None, f"step {step - 1}"
        watcher.on_step_end(None, SimpleNamespace(global_step=step, is_world_process_zero=True), SimpleNamespace())
    assert watcher.best.last() == (4, tmp_path / "good-4")
