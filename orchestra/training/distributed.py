"""Several processes that train as one: which of them this is, what they share, and how they are started.

A rank is one such process. They find each other through torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, …), so
that a training over several machines can be started by torchrun itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestra.config.compute import Compute
from orchestra.errors import ServiceError, TrainingError
from orchestra.system.environment import threads_each
from orchestra.system.machine import check_packages
from orchestra.system.processes import free_port, kill_tree, spawn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

SPOKEN = 2
"""Exit code of a rank that has said in one line what is wrong."""
PATIENCE_S = 10.0
"""How long rank 0 may take to say what another rank has already ended with."""
WAIT_S = 86_400
"""How long a rank waits for another before it gives up. One plays a development check or long episodes for hours while
the rest wait: torch's own limit of half an hour ends a healthy run, and a rank that dies ends the others anyway."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Gloo's variable for the network interface of its connections."""
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737): the way to it is the way to other machines."""
RECORDED = ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI")
"""Rank 0 alone records."""


def joined() -> bool:
    """Whether this process is a rank already."""
    return "RANK" in os.environ


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Which rank of its machine this is."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """How many ranks there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def settle(compute: Compute, stage: str) -> dict[str, Any]:
    """Make ready for several ranks, before TRL looks around; returns what its arguments need besides.

    Raises `TrainingError` when the ranks are not as many as the stage's parameters say, `ServiceError` when a package
    is missing or there are fewer GPUs than ranks.
    """
    import torch

    deepspeed = compute.strategy != "ddp"
    if world_size() != compute.processes:
        raise TrainingError(
            f"started as {world_size()} processes where {stage}.processes is {compute.processes}",
            where=stage, fix="set it to the number that is started",
        )  # fmt: skip
    check_packages(compute, stage)
    if not joined():
        return {}
    if torch.cuda.is_available():
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if here > gpus:
            raise ServiceError(
                f"{here} processes for {gpus} GPUs", where=f"{stage}.processes", fix=f"use at most {gpus}"
            )
        return {}
    if not deepspeed:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return {}
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from deepspeed import ops

    # On a CPU accelerate knows either gloo or DeepSpeed: it is told of both, and TRL to ask no further.
    PartialState(cpu=True, timeout=timedelta(seconds=WAIT_S)).distributed_type = DistributedType.DEEPSPEED
    # DeepSpeed's shared-memory reduction is a 98 s compilation whose interruption leaves a lock that the next run waits
    # for without end; gloo does the same sums.
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return {"accelerator_config": {"use_configured_state": True}}


def gathered(value: T) -> list[T]:
    """Every rank's value, in the order of ranks, on every rank."""
    import torch

    if not torch.distributed.is_initialized():
        return [value]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value, group=_talks(torch.distributed.group.WORLD))
    return found


def wait_for_all() -> None:
    """Every rank comes here before any goes on."""
    gathered(None)


@lru_cache(1)
def _talks(everyone: Any) -> Any:
    """The group of all ranks in which they exchange objects and wait; every rank must enter at its first use.

    It is gloo's: a rank that waits in NCCL keeps its GPU busy, on which a rollout server may play meanwhile.
    """
    import torch

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    if local < world_size() and INTERFACE not in os.environ and (interface := _interface()) is not None:
        os.environ[INTERFACE] = interface
    talks = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=WAIT_S))
    atexit.register(_leave, talks)
    return talks


def _leave(talks: Any) -> None:
    """End gloo's groups before the interpreter: a thread of theirs that outlives it aborts a rank that succeeded."""
    import torch

    _talks.cache_clear()
    if torch.distributed.is_initialized():
        # NCCL's group is left to its own end, which may wait for other ranks.
        everyone = "nccl" not in torch.distributed.get_backend()
        torch.distributed.destroy_process_group(None if everyone else talks)


def _interface() -> str | None:
    """The network interface that leads to the other machines; None where none is found.

    Gloo itself takes that of the host's name, which /etc/hosts often says to be the loopback.
    """
    import psutil

    # On the first machine its own name may be the loopback's too.
    for host in (os.environ.get("MASTER_ADDR", ""), ELSEWHERE):
        with suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # Of a datagram socket: nothing is sent.
                own = probe.getsockname()[0]
            if not own.startswith("127.") and own != "::1":
                places = ((name, one.address) for name, each in psutil.net_if_addrs().items() for one in each)
                return next((name for name, place in places if place.partition("%")[0] == own), None)
    return None


@contextmanager
def whole_weights(trainer: Any) -> Iterator[PreTrainedModel]:
    """The trained model with all of its weights on every rank, for as long as the block lasts.

    Under ZeRO-3 each rank holds a part of every weight, so all ranks must enter and leave together; what a rank does
    inside needs no other.
    """
    plugin = trainer.accelerator.state.deepspeed_plugin
    if plugin is None or plugin.zero_stage < 3:
        yield trainer.accelerator.unwrap_model(trainer.model)
        return
    from trl.models import unwrap_model_for_generation

    # It also takes off the hooks with which ZeRO-3 would let go of every weight that a forward pass has used.
    wrapped = trainer.model_wrapped
    with unwrap_model_for_generation(wrapped, trainer.accelerator) as model, _alone(wrapped):
        yield model


@contextmanager
def _alone(engine: Any) -> Iterator[None]:
    """Without the hook at the start of DeepSpeed's forward pass, in which ranks compare notes: a pass of one rank would
    wait there for the others without end."""
    offload = getattr(engine.optimizer, "parameter_offload", None)
    if offload is None:
        yield
        return
    handle, module = offload.fwd_pre_hook, offload.module
    hook = module._forward_pre_hooks[handle.id]
    handle.remove()
    try:
        yield
    finally:
        offload.fwd_pre_hook = module.register_forward_pre_hook(hook, prepend=True)


def launch(command: Sequence[str], processes: int, logs: Path) -> None:
    """Run `command` as ranks 0 to `processes` - 1 on this machine, and return when all have ended well.

    Rank 0 speaks on this process's screen, the others into `logs`/rank-<n>.log. When one fails the rest are ended: what
    rank 0 has said itself ends this process with its exit code, a signal ends it with the same signal (whoever watches
    sees a killed stage), anything else raises `ServiceError`. No rank outlives this process.
    """
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        **threads_each(processes),
    }
    ranks: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        stack.callback(_end, ranks)
        for number in range(processes):
            env = common | {"RANK": str(number), "LOCAL_RANK": str(number)}
            screen = None
            if number:
                env = {name: value for name, value in env.items() if name not in RECORDED}
                screen = stack.enter_context((logs / f"rank-{number}.log").open("w", encoding="utf-8"))
            ranks.append(spawn(command, env=env, stdout=screen))
        codes = _wait(ranks)
    if any(codes):
        _fail(codes, logs)


def _wait(ranks: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Exit codes, when all have ended or one has failed and the others had time to say so (0 for those still at it)."""
    # Every rank is asked every time: the end of one that is not asked stays unseen.
    while None in (codes := [one.poll() for one in ranks]) and not any(codes):
        time.sleep(0.1)
    deadline = time.monotonic() + (PATIENCE_S if SPOKEN in codes else 1.0)
    while None in (codes := [one.poll() for one in ranks]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [code or 0 for code in codes]


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    # One that is still in its exit (contexts of many GPUs take their time) hides no cause: it ends with this process.
    if left := [one.pid for one in ranks if one.poll() is None]:
        with suppress(ServiceError):
            kill_tree(*left, grace_s=1.0)


def _fail(codes: Sequence[int], logs: Path) -> None:
    killed = [(number, code) for number, code in enumerate(codes) if code < 0]
    if killed:
        os.kill(os.getpid(), signal.Signals(-killed[0][1]))
    if codes[0] == SPOKEN or not any(codes[1:]):
        raise SystemExit(codes[0])
    failed = [number for number, code in enumerate(codes) if number and code]
    number = next((number for number in failed if codes[number] == SPOKEN), failed[0])
    log = logs / f"rank-{number}.log"
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [f"exit code {codes[number]}"]
    what = said[0].removeprefix("error: ")
    raise ServiceError(f"process {number} of {len(codes)} failed: {what}", where="training", fix=f"see {log}")
