"""A machine with GPUs, as its driver tells: what computes on its CPU all the same says so."""

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestra.config.engine import PlayServer
from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.serving.engines.server import OwnServer
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.system.machine import beside_gpu, gpus, torch_beside_gpu
from tests.support.worlds import ROOT

DRIVER = "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 550.1'\necho 'NVIDIA H100 80GB HBM3, 81559, 550.1'\n"


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "bin/nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER, encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(driver.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_it_names_the_gpus_that_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.memory for one in gpus()] == [81559 << 20] * 2
    said = "warning: it runs on the CPU beside 2 idle GPU (NVIDIA H100 80GB HBM3): use them"
    assert beside_gpu("it runs", "use them") == said
    assert "torch sees none" in (torch_beside_gpu() or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch_beside_gpu() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert beside_gpu("it runs", "use them") is None, "they are kept from this process on purpose"


def test_without_gpus_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert beside_gpu("it runs", "use them") is None and torch_beside_gpu() is None


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_server_says_that_it_leaves_a_gpu_idle(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv-vllm/bin").mkdir(parents=True)
    for name in ("bin/python", ".orchestra-stamp"):
        (tmp_path / ".venv-vllm" / name).touch()

    def launch(self: OwnServer) -> None:
        raise ServiceError("it does not start", where="test", fix="none")

    monkeypatch.setattr(OwnServer, "_launch", launch)
    said: list[str] = []
    server = OwnServer(tmp_path, tmp_path, tmp_path, PlayServer(device=device), max_len=64, lora=None, say=said.append)
    with pytest.raises(ServiceError, match="does not start"):
        server.start()
    assert [line for line in said if "set the server's device to gpu" in line] == said
    assert len(said) == (device == "cpu")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("device", "order"), [("cpu", ["warning", "server", "proof"]), ("gpu", ["proof", "server"])])
def test_a_release_proves_its_checkpoint_while_the_gpu_has_room(
    device: str, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the server takes most of the memory, so the checkpoint goes through the smoke set before."""
    params = load_params(ROOT / "params.yaml")
    deploy = params.deploy.model_copy(update={"vllm": params.deploy.vllm.model_copy(update={"device": device})})
    done: list[str] = []

    def say(line: str) -> None:
        if line.startswith("warning: vLLM serves on the CPU"):
            done.append("warning")

    release = Release(
        tmp_path, params.model_copy(update={"deploy": deploy}), ReleaseCandidate("1", tmp_path, "hash"), [], say
    )

    class Served(Exception):
        pass

    def prove(*given: Any) -> None:
        done.append("proof")
        if device == "cpu":
            raise Served

    def launch(self: Release) -> None:
        done.append("server")
        if device == "gpu":
            raise Served

    monkeypatch.setattr(Proof, "prepare", prove)
    monkeypatch.setattr(Release, "_launch", launch)
    monkeypatch.setattr(Release, "_serving", lambda self, engine: engine)
    with pytest.raises(Served):
        release._proven("vllm")
    assert done == order
