"""One training, however many processes share it: the grpo stage's own entry point, on CPU over gloo."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from orchestra.accounting.budget import Budget
from orchestra.files.jsonl import write_jsonl
from orchestra.system.processes import alive, descendants, free_port
from orchestra.types import Preference
from tests.support.serving_world import manifest
from tests.support.worlds import ROOT, codec, easy_example, toolkit, warm_model

pytestmark = pytest.mark.slow

CHEAP = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)
STEPS = 4
LONGEST = 40
"""Tokens of an episode: those of one step are several parts with `micro_batch`."""
GRPO: dict[str, Any] = {
    "steps": STEPS, "examples_per_step": 4, "group_size": 8, "optimizer": "adamw", "learning_rate": 0.001,
    "schedule": "linear", "mix": {}, "min_group_std": 0.01, "eval_every": 2, "eval_examples": 2, "save_steps": 1,
    # Of the dollars of a tiny episode. Against those of always-strongest, every group would be dead.
    "unit_usd": 2e-5,
}  # fmt: skip
SETUPS: dict[str, dict[str, Any]] = {
    "one": {"processes": 1, "strategy": "ddp"},
    "ddp": {"processes": 2, "strategy": "ddp"},
    "zero2": {"processes": 2, "strategy": "zero2"},
    "zero3": {"processes": 2, "strategy": "zero3"},
    "one, kl": {"processes": 1, "strategy": "ddp", "kl": 0.5, "tied": False},
    "ddp, parts": {"processes": 2, "strategy": "ddp", "micro_batch": 1},
    "zero2, parts": {"processes": 2, "strategy": "zero2", "micro_batch": 1},
    # As qwen3-8b trains, but in float32, so that it can be compared; its head is not tied to its embedding.
    "zero3, kl": {
        "processes": 2, "strategy": "zero3", "kl": 0.5, "micro_batch": 1, "gradient_checkpointing": True, "tied": False,
    },
    # As it trains, and the same weights shared in another way.
    "zero3, bfloat16": {
        "processes": 2, "strategy": "zero3", "kl": 0.5, "micro_batch": 1, "gradient_checkpointing": True, "tied": False,
        "precision": "bfloat16",
    },
    "zero2, bfloat16": {
        "processes": 2, "strategy": "zero2", "kl": 0.5, "tied": False, "precision": "bfloat16",
    },
    # One backward pass for all parts.
    "zero3, some": {
        "processes": 2, "strategy": "zero3", "micro_batch": 1, "top_entropy_quantile": 0.5, "entropy": 0.05,
    },
    "one, some": {"processes": 1, "strategy": "ddp", "top_entropy_quantile": 0.5, "entropy": 0.05},
    # A bonus of all tokens that learn, of which one rank has more than the other.
    "ddp, entropy": {"processes": 2, "strategy": "ddp", "top_entropy_quantile": 1.0, "entropy": 0.05},
    "one, entropy": {"processes": 1, "strategy": "ddp", "top_entropy_quantile": 1.0, "entropy": 0.05},
}  # fmt: skip
Steps = dict[int, dict[str, float]]


def world(root: Path, *, tied: bool = True, **grpo: Any) -> Path:
    """A workspace in which the grpo stage can run at once: a warm tiny model, whose head may be its embedding, and
    examples that any answer solves."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["world"]["domains"] = ["mock"]
    params["rollout"] |= {"max_turns": 2, "max_turn_tokens": 24, "max_tokens": LONGEST}
    params["grpo"] |= GRPO | grpo
    for folder in ("data/generated", "data/validated", "models/sft"):
        (root / folder).mkdir(parents=True)
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for shared in ("data/catalogue", "data/domains", "models/recipes"):
        (root / shared).symlink_to(ROOT / shared)
    toolkit(root / "data/generated")
    write_jsonl(root / "data/validated/train.jsonl", [easy_example(f"e{i}", CHEAP) for i in range(10)])
    warm_model(tied=tied).save_pretrained(str(root / "models/sft"))
    codec().tokenizer.save_pretrained(str(root / "models/sft"))
    manifest(root / "models/sft")
    return root


def start(root: Path, stage: str = "grpo") -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (root / "screen.log").open("a", encoding="utf-8") as screen:
        return subprocess.Popen(
            [sys.executable, "-m", f"tasks.{stage}"], cwd=root, env=env, stdout=screen, stderr=screen, text=True
        )


def screen(root: Path) -> str:
    return (root / "screen.log").read_text(encoding="utf-8")


def finish(root: Path) -> Steps:
    """Run the stage to its end; the training measures of each step."""
    assert start(root).wait() == 0, screen(root)
    rows = [json.loads(line) for line in (root / "reports/grpo_steps.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows if "dev/accuracy" in row] == [2, 4]
    return {row["step"]: row for row in rows if "train/reward" in row}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Steps]]:
    """The uninterrupted run of a setup, once for all tests."""
    done: dict[str, tuple[Path, Steps]] = {}

    def run(name: str) -> tuple[Path, Steps]:
        if name not in done:
            root = world(tmp_path_factory.mktemp(name), **SETUPS[name])
            done[name] = root, finish(root)
        return done[name]

    return run


def measures(row: dict[str, float]) -> dict[str, float]:
    """What does not depend on the clock, nor on how the gradient is computed."""
    # Each rank plays first episodes of its own examples, so that dollars are not quite the same.
    computed = ("loss", "grad_norm", "entropy", "step_time", "clip_ratio", "spent_usd")
    return {
        k: v for k, v in row.items() if k.startswith("train/") and not k.removeprefix("train/").startswith(computed)
    }


@pytest.mark.parametrize(
    ("single", "setup"),
    [
        ("one", "ddp"), ("one", "zero2"), ("one", "zero3"), ("one", "ddp, parts"), ("one", "zero2, parts"),
        ("one, kl", "zero3, kl"), ("one, some", "zero3, some"), ("one, entropy", "ddp, entropy"),
    ],
)  # fmt: skip
def test_two_processes_learn_what_one_learns(
    runs: Callable[[str], tuple[Path, Steps]], single: str, setup: str
) -> None:
    (one, alone), (two, shared) = runs(single), runs(setup)
    assert sorted(alone) == sorted(shared) == list(range(1, STEPS + 1))
    assert any(row["train/dead_groups"] < 1 for row in alone.values())
    for step, row in alone.items():
        assert row["train/grad_norm"] > 0
        assert measures(shared[step]) == measures(row)
        assert shared[step]["train/spent_usd"] == pytest.approx(row["train/spent_usd"], rel=0.01)
        assert shared[step]["train/grad_norm"] == pytest.approx(row["train/grad_norm"], rel=1e-4)
    assert told_usd(two) == pytest.approx(booked_usd(two)), "the ledgers of both ranks"
    before, first = load_file(one / "models/sft/model.safetensors"), load_file(one / "models/grpo/model.safetensors")
    second = load_file(two / "models/grpo/model.safetensors")
    assert first.keys() == second.keys() == before.keys()
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, atol=2e-4, rtol=0)
    assert any(not torch.equal(first[name], weight) for name, weight in before.items())


def test_two_processes_train_in_bfloat16_whichever_weights_they_share(
    runs: Callable[[str], tuple[Path, Steps]],
) -> None:
    """Masters in float32 learn what bfloat16 would lose; the passes round, so only a first step is the same."""
    (root, steps), (_, other) = runs("zero3, bfloat16"), runs("zero2, bfloat16")
    assert sorted(steps) == sorted(other) == list(range(1, STEPS + 1))
    assert any(row["train/dead_groups"] < 1 for row in steps.values())
    assert measures(steps[1]) == measures(other[1])
    assert steps[1]["train/grad_norm"] == pytest.approx(other[1]["train/grad_norm"], rel=0.05)
    assert all(0 < row["train/grad_norm"] < math.inf for row in (*steps.values(), *other.values()))
    before, after = (load_file(root / f"models/{stage}/model.safetensors") for stage in ("sft", "grpo"))
    assert before.keys() == after.keys() and "lm_head.weight" in after
    for name, weight in after.items():
        assert weight.dtype == torch.bfloat16 and bool(weight.isfinite().all())
        assert float((weight.float() - before[name]).abs().max()) < 0.02, (
            "no more than four steps of AdamW and rounding"
        )
    assert any(not torch.equal(weight, before[name].bfloat16()) for name, weight in after.items())


def kept(row: dict[str, float]) -> dict[str, float]:
    """What a kill changes nothing of."""
    return row | {"train/step_time": 0, "train/spent_usd": 0}


def told_usd(root: Path) -> float:
    """The dollars of all steps and checks."""
    rows = [json.loads(line) for line in (root / "reports/grpo_steps.jsonl").read_text(encoding="utf-8").splitlines()]
    return float(sum(usd for row in rows for name, usd in row.items() if name.endswith("/spent_usd")))


def booked_usd(root: Path) -> float:
    """The dollars in the ledgers of all ranks."""
    return sum(float(Budget(file, None).spent_usd) for file in root.glob("work/grpo/*/ledger*.jsonl"))


@pytest.mark.parametrize("setup", ["one", "zero3"])
def test_killed_and_started_again_it_ends_the_same(
    runs: Callable[[str], tuple[Path, Steps]], setup: str, tmp_path: Path
) -> None:
    whole, steps = runs(setup)
    root = world(tmp_path / "cut", **SETUPS[setup])
    stage = start(root)
    while not list(root.glob("work/grpo/*/checkpoints/checkpoint-2/complete")):
        assert stage.poll() is None, screen(root)
        time.sleep(0.02)
    below = descendants(stage.pid)
    assert len(below) >= SETUPS[setup]["processes"] - 1
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in below):
        assert time.monotonic() < deadline, "a rank outlived its stage"
        time.sleep(0.05)
    assert not (root / "models/grpo").exists()
    again = finish(root)
    assert "continues from step" in screen(root)
    assert {step: kept(row) for step, row in again.items()} == {step: kept(row) for step, row in steps.items()}
    assert told_usd(root) == pytest.approx(booked_usd(root)) and told_usd(whole) == pytest.approx(booked_usd(whole))
    assert told_usd(root) >= told_usd(whole), "a step that the kill cut off is paid for twice"
    ended, expected = (load_file(folder / "models/grpo/model.safetensors") for folder in (root, whole))
    assert all(torch.equal(ended[name], weight) for name, weight in expected.items())


def test_a_rank_that_dies_takes_the_stage_with_it(tmp_path: Path) -> None:
    root = world(tmp_path / "dead", **SETUPS["ddp"] | {"steps": 400, "save_steps": 400, "eval_every": 400})
    stage = start(root)
    while "/400" not in screen(root):
        assert stage.poll() is None, screen(root)
        time.sleep(0.1)
    below = descendants(stage.pid)
    os.kill(below[-1], signal.SIGKILL)
    assert stage.wait() == -signal.SIGKILL
    assert not any(alive(pid) for pid in below)
    assert "error: " not in screen(root), "the flow takes it for a bug then, and does not try again"


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    root = world(tmp_path / "bad", **SETUPS["ddp"])
    (root / "models/sft/model.safetensors").write_bytes(b"")
    assert start(root).wait() == 2
    errors = [line for line in screen(root).splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "models/sft" in errors[0]


def sft(root: Path, processes: int, strategy: str = "ddp") -> dict[str, torch.Tensor]:
    """The weights that the sft stage makes of one base."""
    world(root, tied=False)
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["model"]["base"] = "models/base"
    params["sft"] |= {"batch_size": 4, "optimizer": "adamw", "learning_rate": 0.0005, "processes": processes}
    params["sft"] |= {"micro_batch": 1 if processes > 1 else None, "strategy": strategy}
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    (root / "models/sft").rename(root / "models/base")
    assert start(root, "sft").wait() == 0, screen(root)
    assert json.loads((root / "reports/sft.json").read_text(encoding="utf-8"))["episodes"] == 8
    return load_file(root / "models/sft/model.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A base, and what one process makes of it."""
    root = tmp_path_factory.mktemp("alone") / "1"
    made = sft(root, 1)
    return load_file(root / "models/base/model.safetensors"), made


@pytest.mark.parametrize(("strategy", "apart"), [("ddp", 1e-5), ("zero3", 2e-4)])
def test_two_processes_imitate_as_one_does(
    alone: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]], strategy: str, apart: float, tmp_path: Path
) -> None:
    base, one = alone
    two = sft(tmp_path / "2", 2, strategy)
    assert all(not torch.equal(base[name], one[name]) for name in one)
    assert one.keys() == two.keys() == base.keys() and "lm_head.weight" in one
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=apart, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_gradients_of_many_passes_in_bfloat16_are_summed_in_float32(strategy: str, tmp_path: Path) -> None:
    """In bfloat16 the sum of 16 passes is 0.5 % away."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.support.zero_sums", strategy]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout.splitlines()[-1]) < 1e-6
