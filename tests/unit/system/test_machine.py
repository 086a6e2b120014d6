"""A machine with GPUs, as its driver tells: what computes on its CPU all the same says so."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from orchestra.cli.common import CheckResult
from orchestra.cli.readiness import examine_profile, refuse, refuse_now
from orchestra.config.deploy import VllmServer
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.config.retraining import Retraining
from orchestra.config.schema import Params, load_params
from orchestra.errors import ServiceError
from orchestra.serving.engines.server import OwnServer, without_rank
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.vllm import check_gpus, environment
from orchestra.system import machine
from orchestra.system.machine import beside_gpu, gpus, torch_beside_gpu
from orchestra.system.processes import start_service, stop_services
from orchestra.training import distributed
from tasks import grpo, sft
from tasks.platform.stage import Stage
from tests.support.worlds import ROOT

IDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8a3b1c2d-0000-4106-c12f-20bd9faed9f7")
DRIVER = "#!/bin/sh\n" + "".join(
    f'echo "NVIDIA H100 80GB HBM3, 81559, ${{HELD_{i}:-4}}, 550.1, {one}, ${{MODE:-Default}}"\n'
    for i, one in enumerate(IDS)
)
FULL = str(81559 - 8192)
"""MiB that others hold of a GPU with 8 GiB free."""
SERVER = VllmServer(device="gpu", dtype="bfloat16")


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "bin/nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER, encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(driver.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that computes on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def torch_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def crowded(two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both GPUs are held by the champion's server, but for 8 GiB."""
    monkeypatch.setenv("HELD_0", FULL)
    monkeypatch.setenv("HELD_1", FULL)
    start_service(tmp_path, "vllm-blue", ["/bin/sleep", "99"], port=1, url="http://127.0.0.1:1")
    yield
    stop_services(tmp_path, "vllm-blue")


def with_vllm(root: Path) -> None:
    (root / ".venv-vllm/bin").mkdir(parents=True)
    for name in ("bin/python", ".orchestra-stamp"):
        (root / ".venv-vllm" / name).touch()


@pytest.mark.usefixtures("two_gpus")
def test_it_names_the_gpus_that_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.memory, one.held) for one in gpus()] == [(81559 << 20, 4 << 20)] * 2
    said = "warning: it runs on the CPU beside 2 idle GPU (NVIDIA H100 80GB HBM3): use them"
    assert beside_gpu("it runs", "use them") == said
    assert "torch sees none" in (torch_beside_gpu() or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch_beside_gpu() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert beside_gpu("it runs", "use them") is None, "they are kept from this process on purpose"


@pytest.mark.usefixtures("two_gpus", "cuda")
def test_a_server_beside_a_rank_needs_a_gpu_that_takes_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clusters have another compute mode, which no stage before the server's shows."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    (tmp_path / "models").symlink_to(ROOT / "models")
    params = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    refuse_now(tmp_path, params, ["sft", "grpo"])
    monkeypatch.setenv("MODE", "Exclusive_Process")
    refuse_now(tmp_path, params, ["sft"])
    with pytest.raises(ServiceError, match=r"grpo.server: the server and a rank share a GPU, whose compute mode"):
        refuse_now(tmp_path, params, ["sft", "grpo"])
    (found,) = [one for one in examine_profile(tmp_path, params) if one.what == "grpo.server" and one.level == "error"]
    assert found.fix.startswith("nvidia-smi --compute-mode=DEFAULT")
    server = params.grpo.server.model_copy(update={"devices": "1"})
    apart = params.model_copy(update={"grpo": params.grpo.model_copy(update={"server": server})})
    refuse_now(tmp_path, apart, ["sft", "grpo"])
    monkeypatch.setenv("HELD_1", "2000")
    with pytest.raises(ServiceError, match=r"of a GPU with 0.0 of 79.6 GiB free"):
        refuse_now(tmp_path, apart, ["sft", "grpo"])
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps/control").touch()
    refuse_now(tmp_path, params, ["sft", "grpo"])


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
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [one.uuid for one in gpus(visible)] == uuids


@pytest.mark.usefixtures("two_gpus")
def test_a_server_has_as_many_gpus_as_share_its_model(tmp_path: Path) -> None:
    check_gpus(tmp_path, SERVER.model_copy(update={"tensor_parallel": 2}))
    with pytest.raises(ServiceError, match=r"evaluate.server.tensor_parallel: tensor_parallel is 4 for 2 GPUs"):
        check_gpus(tmp_path, SERVER.model_copy(update={"tensor_parallel": 4}), "evaluate.server")
    own = SERVER.model_copy(update={"tensor_parallel": 2, "devices": "1"})
    with pytest.raises(ServiceError, match="for 1 GPU — set it to at most 1"):
        check_gpus(tmp_path, own)
    assert environment(tmp_path, own)["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environment(tmp_path, SERVER)


@pytest.mark.usefixtures("crowded")
def test_a_server_beside_the_champions_is_refused_with_the_command_that_frees_the_gpu(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"needs 71.7 GiB of a GPU with 8.0 of 79.6 GiB free") as caught:
        check_gpus(tmp_path, SERVER)
    assert caught.value.fix == "orchestra stop vllm-blue" and len(str(caught.value).splitlines()) == 1
    check_gpus(tmp_path, SERVER.model_copy(update={"gpu_memory": 0.09}))
    with_vllm(tmp_path)
    with pytest.raises(ServiceError, match=r"the server of grpo.server needs"):
        own = OwnServer(tmp_path, tmp_path, tmp_path, RolloutServer(device="gpu"), max_len=64, lora=None, say=print)
        own.start()


@pytest.mark.usefixtures("crowded", "cuda")
def test_a_release_beside_the_champion_is_refused_before_its_checkpoint_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(16 << 30)
    monkeypatch.setattr(Release, "_serving", lambda self, engine: engine)
    release = Release(tmp_path, params, ReleaseCandidate("1", tmp_path, "hash"), [], print)
    with pytest.raises(ServiceError, match=r"reference needs 16.0 GiB .* orchestra stop vllm-blue"):
        release._proven("vllm")


@pytest.mark.usefixtures("crowded", "torch_on_cpu")
@pytest.mark.parametrize("engine", ["auto", "vllm"])
def test_a_server_without_room_on_its_gpu_is_one_that_does_not_start(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release's reference runs on the CPU all the same."""
    qwen = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    params = qwen.model_copy(update={"deploy": qwen.deploy.model_copy(update={"engine": engine})})
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(16 << 30)
    monkeypatch.setattr(Release, "_fingerprint", lambda self, engine: engine)
    proof = SimpleNamespace(summary="", question=None, examples=(), canaries=())
    monkeypatch.setattr(Proof, "prepare", lambda *given: proof)
    release = Release(tmp_path, params, ReleaseCandidate("1", tmp_path, "hash"), [], print)
    if engine == "vllm":
        with pytest.raises(ServiceError, match=r"the server of deploy\.vllm needs"):
            release._proven("vllm")
        return
    serving, *_ = release._proven("vllm")
    assert (serving.engine, serving.fell_back, release.started) == ("in_process", True, None)
    assert release.note.startswith("vLLM did not start (the server of deploy.vllm needs")


QWEN = load_params(ROOT / "models/recipes/qwen3-8b/params.yaml")


def findings(root: Path, params: Params) -> dict[str, CheckResult]:
    return {one.what: one for one in examine_profile(root, params) if one.level != "ok"}


@pytest.mark.usefixtures("two_gpus", "cuda")
def test_what_a_profile_needs_of_gpus_is_compared_with_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(ROOT, QWEN)
    assert found["sft.strategy"].found == "DeepSpeed is not installed"
    assert found["grpo.server"].found == "tensor_parallel is 8 for 2 GPUs"
    with pytest.raises(ServiceError, match="DeepSpeed is not installed"):
        refuse_now(ROOT, QWEN, ["sft"])
    monkeypatch.setattr(machine, "find_spec", lambda name: True)
    assert findings(ROOT, QWEN)["grpo.processes"].found == "8 processes for 2 GPUs"
    for stage in machine.TRAINED:
        with pytest.raises(ServiceError, match=f"{stage}.processes: 8 processes for 2 GPUs"):
            refuse_now(ROOT, QWEN, [stage])
    with pytest.raises(ServiceError, match=r"evaluate.server.tensor_parallel"):
        refuse_now(ROOT, QWEN, ["evaluate"])
    refuse_now(ROOT, QWEN, ["validate"])
    refuse_now(ROOT, QWEN, [])


@pytest.mark.parametrize(("days", "stale"), [(1, True), (36500, False)])
def test_a_price_is_stale_after_the_days_of_the_parameters(days: int, stale: bool) -> None:
    params = QWEN.model_copy(update={"retraining": Retraining(stale_price_days=days)})
    found = findings(ROOT, params).get("prices")
    assert (found is not None and "was looked at" in found.found) == stale


@pytest.mark.usefixtures("crowded", "cuda")
def test_a_training_beside_the_champion_is_refused(tmp_path: Path) -> None:
    params = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    (tmp_path / "models").symlink_to(ROOT / "models")
    found = [one for one in examine_profile(tmp_path, params) if one.found.startswith(("sft needs", "grpo needs"))]
    assert [(one.level, one.fix) for one in found] == [("warning", "orchestra stop vllm-blue")] * 2
    for stage in machine.TRAINED:
        with pytest.raises(ServiceError, match=rf"{stage} needs .* of which other processes hold 71.6"):
            refuse_now(tmp_path, params, [stage])
    refuse_now(tmp_path, params, ["validate"])


@pytest.mark.usefixtures("two_gpus", "cuda")
def test_only_the_gpus_that_a_training_takes_need_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The champion's server has the other one: `deploy.vllm.devices`."""
    monkeypatch.setenv("HELD_1", FULL)
    params = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    assert "memory forecast" not in findings(ROOT, params)
    refuse_now(ROOT, params, machine.TRAINED)
    two = params.model_copy(update={"sft": params.sft.model_copy(update={"processes": 2})})
    with pytest.raises(ServiceError, match=r"sft needs .* of which other processes hold 71\.6"):
        refuse_now(ROOT, two, ["sft"])


@pytest.mark.usefixtures("crowded", "torch_on_cpu")
def test_no_gpu_counts_where_torch_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_memory", lambda: 1 << 50)
    monkeypatch.setattr(machine, "find_spec", lambda name: True)
    found = findings(ROOT, QWEN)
    assert "grpo.server" in found, "vLLM has a torch of its own"
    assert not {"sft.processes", "grpo.processes", "memory forecast"} & found.keys()
    refuse(ROOT, QWEN)
    refuse_now(ROOT, QWEN, ["sft"])


@pytest.mark.usefixtures("two_gpus", "torch_on_cpu")
@pytest.mark.parametrize("stage", [sft, grpo])
def test_ranks_on_the_cpu_start_beside_fewer_gpus(
    stage: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(machine, "find_spec", lambda name: True)
    monkeypatch.setattr(sft, "teach", lambda stage: {})
    monkeypatch.setattr(distributed, "launch", lambda command, ranks, folder: started.append(ranks))
    stage.main(Stage(stage.__name__.rpartition(".")[2], QWEN, tmp_path))
    assert started == [8]


@pytest.mark.usefixtures("two_gpus", "cuda")
@pytest.mark.parametrize("stage", [sft, grpo])
def test_ranks_that_this_machine_cannot_start_cost_nothing(
    stage: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the teacher is paid nor a process started."""
    name = stage.__name__.rpartition(".")[2]
    monkeypatch.setattr(machine, "find_spec", lambda name: True)
    with pytest.raises(ServiceError, match=f"{name}.processes: 8 processes for 2 GPUs"):
        stage.main(Stage(name, QWEN, tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ServiceError, match="8 processes for 2 GPUs"):
        stage.main(Stage(name, QWEN, tmp_path))


def test_a_missing_package_costs_no_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = load_params(ROOT / "params.yaml")
    compute = {"attention": "flash_attention_2", "precision": "bfloat16"}
    flash = params.model_copy(update={"sft": params.sft.model_copy(update=compute)})
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(sft, "teach", lambda stage: pytest.fail("the teacher was paid"))
    with pytest.raises(ServiceError, match=r"sft\.attention: flash-attn is not installed"):
        sft.main(Stage("sft", flash, tmp_path))
    with pytest.raises(ServiceError, match="flash-attn is not installed"):
        refuse_now(ROOT, flash, ["sft"])
    assert "sft.attention" in findings(ROOT, flash)
    monkeypatch.setattr(machine, "find_spec", lambda name: True)
    assert "sft.attention" not in findings(ROOT, flash)


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
    with_vllm(tmp_path)

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
