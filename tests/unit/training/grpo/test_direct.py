"""Weights over CUDA IPC: when, in which messages, and what follows a failure."""

import base64
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.compute import Lora
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.config.schema import Grpo
from orchestra.errors import ServiceError, TrainingError
from orchestra.serving.engines import server
from orchestra.serving.engines.server import OwnServer, _flags, own_settings
from orchestra.serving.releases.vllm import SERVED_NAME
from orchestra.system.processes import wait_until
from orchestra.training.grpo.engine import direct
from orchestra.training.grpo.engine.sync import RolloutEngine
from tests.support.worlds import codec, tiny_model
from tests.unit.training.grpo.test_trainer import SETTINGS

ON_GPU = RolloutServer(device="gpu", dtype="bfloat16")
ALONE = SETTINGS.model_copy(update={"engine": "vllm", "server": ON_GPU, "strategy": "ddp", "lora": None})


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True), ({"lora": Lora(rank=8, alpha=16)}, False), ({"strategy": "zero3"}, False),
        ({"steps_ahead": 1}, False), ({"server": ON_GPU.model_copy(update={"url": "http://other:1"})}, False),
        ({"server": ON_GPU.model_copy(update={"devices": "1"})}, False),
        ({"server": ON_GPU.model_copy(update={"tensor_parallel": 2})}, False), ({"server": RolloutServer()}, False),
    ],
)  # fmt: skip
def test_only_a_server_on_the_gpu_of_one_rank_shares_its_memory(
    change: dict[str, Any], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Grpo = ALONE.model_copy(update=change)
    assert not direct.shares_gpu(settings), "there is no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert direct.shares_gpu(settings) == shared
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not direct.shares_gpu(settings)


def test_such_a_server_alone_takes_handles(tmp_path: Path) -> None:
    on_gpu = PlayServer(device="gpu")
    assert "--weight-transfer-config" not in _flags(None, on_gpu, 64)
    assert _flags(None, on_gpu, 64, direct=True)[-2:] == ["--weight-transfer-config", '{"backend": "ipc"}']
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in own_settings(tmp_path, on_gpu, adapters=False)
    assert own_settings(tmp_path, on_gpu, adapters=False, direct=True)["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 200))
def test_every_weight_comes_once_in_parts_of_bounded_size(counts: list[int], most: int) -> None:
    weights = {f"w{i}": torch.randn(count, 2) for i, count in enumerate(counts)}
    buffers: list[torch.Tensor] = []
    found: dict[str, torch.Tensor] = {}

    def shared(buffer: torch.Tensor) -> dict[str, Any]:
        buffers.append(buffer)
        return {"GPU": ("handle",)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "shared", shared)
        patch.setattr(direct, "BUFFER", most)
        for part in direct.packed(weights, torch.bfloat16):
            assert pickle.loads(base64.b64decode(part["ipc_handles_pickled"])) == {"GPU": ("handle",)}
            parts = torch.split(buffers[0][: sum(part["tensor_sizes"])], part["tensor_sizes"])
            for name, shape, kind, place in zip(part["names"], part["shapes"], part["dtype_names"], parts, strict=True):
                assert name not in found
                found[name] = place.clone().view(getattr(torch, kind)).view(shape)
    assert len(buffers) == 1 and len(buffers[0]) <= max(most, max(counts) * 4)
    assert list(found) == list(weights)
    assert all(torch.equal(found[name], weight.to(torch.bfloat16)) for name, weight in weights.items())


class Fake(OwnServer):
    """Says yes to weights, but for the paths in `broken`, and scores as `scored` says."""

    def __init__(self) -> None:
        self.url, self.restarts, self.refresh, self.direct = "http://127.0.0.1:1", 0, None, True
        self.posts: list[str] = []
        self.broken: set[str] = set()
        self.scored: list[Callable[[], list[float]]] = []

    def post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        self.posts.append(path)
        if path in self.broken:
            raise ServiceError(f"{path}: HTTP 500", where="test", fix="none")

    def scores(self, model: str, sequences: Any, *, together: bool) -> list[float]:
        return self.scored.pop(0)()

    def wait_for(self, model: str) -> None:
        self.posts.append("wait")

    def restart(self) -> None:
        self.restarts += 1


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutEngine]:
    """One whose server runs, and whose next weights go over CUDA IPC."""
    monkeypatch.setattr(direct, "shares_gpu", lambda settings: True)
    monkeypatch.setattr(direct, "shared", lambda buffer: {"GPU": ()})
    settings = ALONE.model_copy(update={"server": RolloutServer(dtype="float32")})
    said: list[str] = []
    made = RolloutEngine(tmp_path, tmp_path, tmp_path, codec(), settings, [[5, 6, 7]], 64, said.append)
    made.server = Fake()
    made.said = said  # type: ignore[attr-defined]
    yield made
    made.files.close()


SENT = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]
CACHE = "/reset_prefix_cache"
FILES = ["wait", "/collective_rpc", CACHE]


def test_a_sync_over_ipc_writes_no_file_until_the_server_starts_again(engine: Any, tmp_path: Path) -> None:
    model = tiny_model(3)
    engine.server.scored = [lambda: engine.canary.trainer_scores(model)]
    engine.sync(model)
    assert engine.server.posts == ["wait", *SENT, CACHE] and engine.measures["engine/direct"] == 1
    assert not list(tmp_path.iterdir()) and not engine.said
    engine.server.refresh()
    assert (tmp_path / "served/model.safetensors").exists()


@pytest.mark.parametrize("path", [*SENT, "memory"])
def test_after_a_failure_weights_go_as_files(engine: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(3)
    engine.server.broken = {path}
    if path == "memory":
        monkeypatch.setattr(direct, "shared", lambda buffer: 1 / 0)
    engine.server.scored = [lambda: engine.canary.trainer_scores(model)] * 2
    engine.sync(model)
    # Before the update begins, a server that refuses serves on.
    begun = path in SENT[1:]
    assert engine.server.posts[-3 + (not begun) :] == FILES[not begun :] and engine.server.restarts == begun
    assert engine.measures["engine/direct"] == 0 and engine.server.refresh is None
    (line,) = engine.said
    assert ("division by zero" if path == "memory" else path) in line and "\n" not in line
    engine.sync(model)
    assert engine.server.posts[-2:] == FILES[1:] and engine.server.posts.count("/start_weight_update") <= 1


@pytest.mark.parametrize("answers", [[{"success": True}], [None], [{"success": False}, {"success": True}]])
def test_weights_are_new_once_no_key_of_the_old_ones_is_left(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, asked = Fake(), iter(answers)
    monkeypatch.setattr(fake, "post", lambda *given: next(asked))
    fake.forget_prompts()
    assert next(asked, "none") == "none"


def test_a_server_that_keeps_old_keys_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(server, "IDLE_S", 0.1)
    monkeypatch.setattr(fake, "post", lambda *given: {"success": False})
    with pytest.raises(ServiceError, match="requests still hold its prefix cache"):
        fake.forget_prompts()


def test_a_canary_that_fails_after_ipc_is_asked_again_with_files(engine: Any) -> None:
    model = tiny_model(3)
    engine.server.scored = [lambda: [-9.0, -9.0], lambda: engine.canary.trainer_scores(model)]
    engine.sync(model)
    assert engine.server.posts == ["wait", *SENT, CACHE, *FILES] and engine.measures["engine/direct"] == 0
    assert "does not have the trainer's weights" in engine.said[0] and len(engine.said) == 1
    engine.server.scored = [lambda: [-9.0, -9.0]]
    with pytest.raises(TrainingError, match="does not have the trainer's weights"):
        engine.sync(model)


STAND_IN = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
time.sleep(1)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"data": [{"id": sys.argv[2]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *given):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A server that takes everything, a second after its start."""


@pytest.mark.parametrize("asked", [False, True])
def test_a_server_that_died_while_the_model_trained_is_waited_for(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "interpreter_for", lambda root, settings: Path(sys.executable))
    monkeypatch.setattr(direct, "shares_gpu", lambda settings: True)
    monkeypatch.setattr(direct, "shared", lambda buffer: {"GPU": ()})
    stand_in = [sys.executable, "-c", STAND_IN]
    monkeypatch.setattr(server, "command", lambda python, port, *given, **named: [*stand_in, str(port), SERVED_NAME])
    model, said = tiny_model(3), list[str]()
    settings = ALONE.model_copy(update={"server": RolloutServer(dtype="float32", start_timeout_s=60)})
    engine: Any = RolloutEngine(tmp_path, tmp_path, tmp_path, codec(), settings, [[5, 6, 7]], 64, said.append)
    monkeypatch.setattr(OwnServer, "scores", lambda *given, **named: engine.canary.trainer_scores(model))
    try:
        engine.sync(model)
        engine.sync(model)
        assert engine.measures["engine/direct"] == 1 and engine.server.restarts == 0
        os.kill(engine.server.pid, signal.SIGKILL)
        assert wait_until(lambda: engine.server.restarts == 1, 10)
        if asked:
            engine.server.restart()
        engine.sync(model)
        assert engine.measures["engine/direct"] == 1 and engine.server.restarts == 1
        assert not any("IPC" in line for line in said)
    finally:
        engine.close()
