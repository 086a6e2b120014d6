"""Weights that no file carries, through vLLM's real server on a CPU: a file takes the place of CUDA's shared memory."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orchestra.serving.engines.server import OwnServer
from orchestra.serving.releases import vllm
from orchestra.system.processes import wait_until
from orchestra.training.grpo.engine import direct
from orchestra.training.grpo.engine.weights import WholeWeights, untied
from tests.integration.test_engine import WHOLE
from tests.support.engines import HEAD, Compared, engine, workspace
from tests.support.worlds import ROOT, warm_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(vllm.interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it"),
]

GPU = "GPU-0"
SIZE = 110_000
"""Bytes of a part, of which the first ends between two weights that vLLM fuses."""
SERVER_SIDE = f"""
import types
import torch
from torch.multiprocessing import reductions

torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(uuid={GPU!r})
torch.accelerator.synchronize = lambda: None
reductions.rebuild_cuda_tensor = lambda *given: torch.from_file(given[7], True, given[1][0], dtype=given[5])
"""


def shared(buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """`reduce_tensor`'s arguments of a buffer on a GPU, with a file in the place of CUDA's handle."""
    handle, size = buffer.untyped_storage()._share_fd_cpu_()
    there = (0, f"/proc/{os.getpid()}/fd/{handle}", size, 0)
    kinds = (torch.storage.TypedStorage, buffer.dtype)
    return {GPU: (torch.Tensor, buffer.size(), buffer.stride(), 0, *kinds, *there, False, b"", 0, b"", False)}


def move(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.05 * torch.randn_like(one))


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compared]:
    root, patched = tmp_path / "root", tmp_path / "patched"
    root.mkdir()
    patched.mkdir()
    (patched / "sitecustomize.py").write_text(SERVER_SIDE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(patched))
    monkeypatch.setattr(direct, "shared", shared)
    monkeypatch.setattr(direct, "shares_gpu", lambda settings: True)
    monkeypatch.setattr(direct, "BUFFER", SIZE)
    made = engine(workspace(root), tmp_path / "work", WHOLE)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(600)
def test_the_server_gets_every_weight_and_after_a_failure_files(
    played: Compared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = warm_model(head_dim=HEAD)
    assert sum(one.numel() * 4 for one in untied(model).values()) > 2 * SIZE, "it comes in parts"
    files: list[Path] = []
    written = WholeWeights.write

    def write(self: WholeWeights, trained: PreTrainedModel) -> None:
        files.append(self.folder)
        written(self, trained)

    monkeypatch.setattr(WholeWeights, "write", write)
    played.sync(model)
    assert played.measures["engine/direct"] == 0, "a start reads files"
    for _ in range(2):
        move(model)
        played.sync(model)
        assert (played.measures["engine/direct"], played.measures["engine/canary_proven"]) == (1, 1)
    assert len(files) == 1 and played.equal == [True] * 3

    server = played.server
    assert isinstance(server, OwnServer) and server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert wait_until(lambda: server.restarts == 1, 30)
    server.wait_for(played.model)
    ours, theirs = played.canary.trainer_scores(model), server.scores(played.model, played.sequences, together=True)
    assert theirs == pytest.approx(ours, abs=1e-3), "it started with the weights that it had"
    assert len(files) == 2
    move(model)
    played.sync(model)
    assert played.measures["engine/direct"] == 1

    # Amid an update: vLLM counts the weights that it has, and would count those of a file on top.
    parts: list[str] = []

    def post(self: OwnServer, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        parts.extend([path] * (path == "/update_weights"))
        if path == "/update_weights" and len(parts) == 2:
            body["update_info"]["tensor_sizes"][0] += 4
        return posted(self, path, body, timeout_s)

    posted = OwnServer.post
    monkeypatch.setattr(OwnServer, "post", post)
    move(model)
    played.sync(model)
    assert len(parts) == 2
    assert (played.measures["engine/direct"], played.measures["engine/canary_proven"]) == (0, 1)
    assert played.measures["engine/canary_gap"] < 1e-3, "nothing of the broken update is left"
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "from now on files" in one]
    assert "/update_weights: HTTP 500" in line
    move(model)
    played.sync(model)
    assert played.measures["engine/direct"] == 0 and server.restarts == 2
    assert played.equal == [True] * 6
