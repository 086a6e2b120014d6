"""One rollout server, however many ranks share the training and however DeepSpeed shards its weights."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestra.config.compute import Lora
from orchestra.config.engine import RolloutServer
from orchestra.config.schema import Grpo
from orchestra.serving.releases import vllm
from tests.support.engine_ranks import MODULE
from tests.support.engines import HEAD, workspace
from tests.support.worlds import ROOT, warm_model
from tests.unit.training.grpo.test_trainer import SETTINGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(vllm.interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it"),
]

STEPS, SYNCS = 3, 5
"""Each round has a sync, and so has each development check: after steps 2 and 3."""
SERVER = RolloutServer(device="cpu", dtype="float32", sequences=16)
PLAIN = SETTINGS.model_copy(
    update={"steps": STEPS, "engine": "vllm", "server": SERVER, "optimizer": "adamw", "learning_rate": 0.003}
)
LORA = {"lora": Lora(rank=8, alpha=16), "learning_rate": 0.01}
SETUPS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp": {"processes": 2},
    "zero2": {"processes": 2, "strategy": "zero2"},
    "zero3": {"processes": 2, "strategy": "zero3"},
    "machines": {"processes": 2},
    "ahead": {"processes": 2, "strategy": "zero3", "steps_ahead": 1},
    "lora": LORA,
    "lora, zero2": {"processes": 2, "strategy": "zero2"} | LORA,
}
Run = tuple[list[dict[str, Any]], dict[str, torch.Tensor]]
"""What each rank saw, and the trained weights."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a setup, once for all tests."""
    root, done = workspace(tmp_path_factory.mktemp("workspace")), dict[str, Run]()

    def run(name: str) -> Run:
        if name not in done:
            work = tmp_path_factory.mktemp("work")
            settings = Grpo.model_validate_json(PLAIN.model_copy(update=SETUPS[name]).model_dump_json())
            env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", MODULE, str(root), str(work), settings.model_dump_json()]
            command.append("2" if name == "machines" else "1")
            ended = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
            assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
            files = [work / f"rank-{number}.json" for number in range(settings.processes)]
            ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            done[name] = ranks, load_file(work / "trained.safetensors")
        return done[name]

    return run


@pytest.mark.timeout(900)
@pytest.mark.parametrize("setup", ["ddp", "zero2", "zero3", "ahead", "lora, zero2"])
def test_rank_0_gives_the_server_whole_weights_and_every_rank_plays_with_them(
    runs: Callable[[str], Run], setup: str
) -> None:
    (first, second), _ = runs(setup)
    assert (first["servers"], second["servers"]) == (1, 0), "rank 0 alone has the server"
    assert first["equal"] == [True] * SYNCS and second["equal"] == []
    for row in first["history"]:
        assert row["engine/canary_gap"] < 1e-3
        assert row["failed"] == 0
    assert any(row["engine/canary_proven"] == 1 for row in first["history"][1:]), "the trainer has moved measurably"
    assert any(row.get("train/grad_norm", 0) > 0 for row in first["logs"])
    assert (first["restarts"], first["left"], second["left"]) == (0, 0, 0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("setup", ["ddp", "zero2", "zero3", "lora, zero2"])
def test_two_ranks_learn_from_the_server_what_one_learns(runs: Callable[[str], Run], setup: str) -> None:
    (alone,), expected = runs("lora" if "lora" in setup else "one")
    (first, second), trained = runs(setup)
    assert len(alone["history"]) == STEPS and any(row["dead_groups"] < 1 for row in alone["history"])
    for row, ours, others in zip(alone["history"], first["history"], second["history"], strict=True):
        assert _played(ours) == _played(others)
        # The mean log-probability hangs on the last bits of the weights.
        assert ours["entropy"] == pytest.approx(row["entropy"], rel=1e-4)
        assert _played(ours | {"entropy": row["entropy"]}) == _played(row)
        assert abs(ours.get("engine/mismatch_kl", 0.0)) < 1e-6
    assert trained.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(trained[name], weight, atol=2e-4, rtol=0)
    if "lora" not in setup:
        base = dict(warm_model(head_dim=HEAD).named_parameters())
        assert any(not torch.allclose(expected[name], weight, atol=1e-3) for name, weight in base.items())


def _played(row: dict[str, float]) -> dict[str, float]:
    """What a round's episodes were worth."""
    return {name: value for name, value in row.items() if not name.startswith("engine/")}


@pytest.mark.timeout(900)
def test_while_the_server_plays_no_rank_holds_the_weights_of_another(runs: Callable[[str], Run]) -> None:
    whole = sum(one.numel() for one in warm_model(head_dim=HEAD).parameters())
    (first, second), _ = runs("zero3")
    assert len(first["sizes"]) == len(second["sizes"]) == STEPS
    for size in (*first["sizes"], *second["sizes"]):
        assert size < whole / 4


@pytest.mark.timeout(900)
def test_ranks_that_play_ahead_are_synced_when_all_have_played(runs: Callable[[str], Run]) -> None:
    (first, second), _ = runs("ahead")
    for rank in (first, second):
        assert [row["engine/staleness"] for row in rank["history"]] == [0, 1, 1]


@pytest.mark.timeout(900)
def test_each_machine_has_a_server_with_the_same_weights(runs: Callable[[str], Run]) -> None:
    (alone, _), expected = runs("ddp")
    ranks, trained = runs("machines")
    for rank in ranks:
        assert (rank["servers"], rank["left"]) == (1, 0)
        assert rank["equal"] == [True] * SYNCS
        for ours, row in zip(rank["history"], alone["history"], strict=True):
            assert ours["entropy"] == pytest.approx(row["entropy"], rel=1e-4)
            assert _played(ours | {"entropy": row["entropy"]}) == _played(row)
    for name, weight in expected.items():
        torch.testing.assert_close(trained[name], weight, atol=2e-4, rtol=0)
