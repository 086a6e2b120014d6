"""A machine with GPUs, as its driver tells: what computes on its CPU all the same says so."""

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestra.config.engine import PlayServer
from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.serving.engines.server import OwnServer, without_rank
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.system.machine import beside_gpu, gpus, torch_beside_gpu
from tests.support.worlds import ROOT

IDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8a3b1c2d-0000-4106-c12f-20bd9faed9f7")
DRIVER = "#!/bin/sh\n" + "".join(f"echo 'NVIDIA H100 80GB HBM3, 81559, 550.1, {one}'\n" for one in IDS)


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


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1,0", [IDS[1], IDS[0]]), (f"{IDS[1]},{IDS[0]}", [IDS[1], IDS[0]]), ("GPU-8932", [IDS[0]]), ("0,7", [IDS[0]]),
        ("GPU-8", []), ("-1", []), ("", []), ("MIG-41b3", ["MIG-41b3"]), (f"MIG-{IDS[0]}/1/0", [f"MIG-{IDS[0]}/1/0"]),
    ],
)  # fmt: skip
def test_gpus_are_named_by_number_by_the_beginning_of_an_id_or_as_a_slice(
    visible: str, uuids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [one.uuid for one in gpus()] == uuids


def test_a_server_does_not_hear_that_a_rank_of_torchrun_starts_it() -> None:
    """torchrun's own list of what it sets (torch.distributed.elastic.agent.server.local_elastic_agent)."""
    ranks = ("RANK", "WORLD_SIZE")
    names = [f"{prefix}{name}" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ranks]
    names += ["ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    names += [
        f"TORCHELASTIC_{one}" for one in ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS", "USE_AGENT_STORE", "ERROR_FILE")
    ]
    assert without_rank({name: "1" for name in names} | {"PATH": "/bin", "NCCL_DEBUG": "INFO"}) == {
        "PATH": "/bin", "NCCL_DEBUG": "INFO",
    }  # fmt: skip


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
