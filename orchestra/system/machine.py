"""The memory of this machine, and whether the stages of a profile fit: the number, and the setting that helps."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestra.config.compute import Compute
from orchestra.config.schema import Params
from orchestra.errors import ServiceError
from orchestra.system.environment import memory_limit
from orchestra.system.memory import (
    ADAMW_STATES,
    BFLOAT16,
    EXAMPLE,
    FLOAT32,
    GATHERED,
    GIB,
    RUNTIME,
    Footprint,
    ModelShape,
    TrainingPlan,
    rollouts,
    training,
)
from orchestra.system.processes import services

TRAINED = ("sft", "grpo")
"""Stages that train, in their order."""
CHECKPOINTS = 3
"""Of a training, at the moment when one more is saved."""
AT_ONCE = 256
"""Most conversations that in-process rollouts hold at the same time."""
LORA_RANK = 16
EXCLUSIVE = "Exclusive_Process"
"""A GPU's compute mode in nvidia-smi."""
GPU_MEMORY = "GPU memory"
HELPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("micro_batch", "1", {"rows": 1, "accumulates": True}),
    ("gradient_checkpointing", "true", {"checkpointing": True}),
    ("precision", "bfloat16", {"bfloat16": True}),
    ("optimizer", "adamw", {"muon": False}),
    ("strategy", "zero3", {"strategy": "zero3"}),
    ("lora", f"'{{rank: {LORA_RANK}}}'", {"lora": LORA_RANK, "strategy": "ddp"}),
)
"""Settings that lower a stage's peak, or that the next need, with what they change of the plan; the quickest first."""


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int
    """Bytes."""
    driver: str
    uuid: str = ""
    held: int = 0
    """Bytes that processes hold now."""
    exclusive: bool = False
    """Whether it takes one process at a time."""

    @property
    def free(self) -> int:
        return self.memory - self.held


@dataclass(frozen=True)
class Need:
    """What one rank of a stage needs, and what it has."""

    stage: str
    footprint: Footprint
    room: int
    held: int
    """Bytes of the room that other processes hold now."""
    helps: str
    """The settings that make it fit, as options of `orchestra run`; empty when it fits, or none is enough."""
    least: int
    """Bytes without which it cannot run: the whole footprint. Where all rows are one pass on a CPU, those of a single
    row, since episodes are mostly shorter than `rollout.max_tokens` and share what they begin with. A GPU has no swap,
    and a long run must not end by its longest episode."""

    @property
    def fits(self) -> bool:
        return self.footprint.total <= self.room

    @property
    def crowded(self) -> bool:
        """Whether it would fit, but not beside what other processes hold now."""
        return self.room - self.held < self.footprint.total <= self.room

    @property
    def hopeless(self) -> bool:
        return self.least > self.room


def gpus(visible: str | None = None) -> list[Gpu]:
    """The GPUs that `visible` or CUDA_VISIBLE_DEVICES lets a process use, as nvidia-smi tells; none without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "name,memory.total,memory.used,driver_version,uuid,compute_mode"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 5]
    found = [
        _gpu(name, _bytes(total), _bytes(used) if used[:1].isdigit() else 0, driver, uuid, mode)
        for name, total, used, driver, uuid, mode in rows
        if total[:1].isdigit()
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if visible is None:
        return found
    return [one for name in visible.split(",") if (one := _named(name.strip(), found)) is not None]


def _gpu(name: str, memory: int, held: int, driver: str, uuid: str, mode: str) -> Gpu:
    # CUDA's service for several processes (MPS) is the one process then.
    served = (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()
    exclusive = mode == EXCLUSIVE and not served
    # Whoever holds more than the driver does keeps everybody out.
    return Gpu(name, memory, driver, uuid, memory if exclusive and held >= GIB else held, exclusive)


def _bytes(mib: str) -> int:
    return int(float(mib) * (1 << 20))


def counted(found: list[Gpu]) -> str:
    return f"{len(found)} GPU{'s' if len(found) > 1 else ''}"


def _named(name: str, found: list[Gpu]) -> Gpu | None:
    """The GPU that CUDA_VISIBLE_DEVICES names by number, by the beginning of its UUID, or as a slice (MIG)."""
    if name.isdigit():
        return found[int(name)] if int(name) < len(found) else None
    if name.startswith("MIG-"):
        # How much of which GPU it has is not asked for. It has no more than the largest: what needs more cannot fit.
        largest = max(found, key=lambda one: one.memory, default=None)
        return None if largest is None else replace(largest, name=f"{largest.name} (a slice of it)", uuid=name, held=0)
    same = [one for one in found if name.startswith("GPU-") and one.uuid.startswith(name)]
    return same[0] if len(same) == 1 else None


def beside_gpu(what: str, fix: str) -> str | None:
    """The warning where `what` runs on the CPU of a machine with GPUs that it may use; None without any."""
    found = gpus()
    return f"warning: {what} on the CPU beside {len(found)} idle GPU ({found[0].name}): {fix}" if found else None


def torch_beside_gpu() -> str | None:
    """The same where torch sees no GPU although the driver lists some."""
    import torch

    fix = "its torch sees none; install the build for this machine's CUDA, or update the driver"
    return None if torch.cuda.is_available() else beside_gpu("this process computes", fix)


def torch_gpus() -> list[Gpu]:
    """Those that torch computes on: none where it sees none. Loads torch only where the driver lists some."""
    found = gpus()
    if not found:
        return []
    import torch

    return found if torch.cuda.is_available() else []


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or what its container or batch job has of it."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(there, memory_limit() or there)


def check_room(root: Path, devices: list[Gpu], wanted: int, what: str) -> None:
    """Raises `ServiceError` where processes hold what `what` wants of a GPU that is large enough."""
    least = min(devices, key=lambda one: one.free, default=None)
    if least is None or not least.free < wanted <= least.memory:
        return
    free = f"{least.free / GIB:.1f} of {least.memory / GIB:.1f} GiB free"
    raise ServiceError(f"{what} needs {wanted / GIB:.1f} GiB of a GPU with {free}", where=GPU_MEMORY, fix=frees(root))


def frees(root: Path) -> str:
    """The command that frees a GPU: most often the champion's own server holds it."""
    ours = [one.name for one in services(root) if one.name.startswith("vllm-")]
    return f"orchestra stop {' '.join(ours)}" if ours else "end what nvidia-smi names"


def check_ranks(compute: Compute, stage: str, devices: list[Gpu]) -> None:
    """Raises `ServiceError` where this machine cannot start a stage's ranks: no package, or too few GPUs."""
    check_packages(compute, stage)
    if 0 < len(devices) < compute.processes:
        raise ServiceError(
            f"{compute.processes} processes for {counted(devices)}", where=f"{stage}.processes",
            fix=f"use at most {len(devices)}, or train on several machines: orchestra launch",
        )  # fmt: skip


def check_packages(compute: Compute, stage: str) -> None:
    """Raises `ServiceError` where a stage's settings need a package that is missing."""
    if compute.strategy != "ddp" and find_spec("deepspeed") is None:
        fix = ".venv/bin/uv pip install -c constraints.txt -e '.[gpu]', or ddp"
        raise ServiceError("DeepSpeed is not installed", where=f"{stage}.strategy", fix=fix)
    # transformers takes a kernel of `kernels` where there is no flash_attn.
    if compute.attention == "flash_attention_2" and not (find_spec("flash_attn") or find_spec("kernels")):
        raise ServiceError(
            "flash-attn is not installed", where=f"{stage}.attention", fix="install it for this CUDA, or set sdpa"
        )


def room_of(devices: list[Gpu], ranks: int) -> int:
    """Bytes that a rank may use: a GPU's less what its runtime needs, or its share of the machine's memory."""
    return min(one.memory for one in devices) - RUNTIME if devices else host_memory() // ranks


def needs(params: Params, shape: ModelShape, devices: list[Gpu]) -> Iterator[Need]:
    """What sft and grpo need on each rank, and the settings that help where it is more than there is."""
    for stage in TRAINED:
        plan = plan_of(params, stage, gpu=bool(devices))
        room = room_of(devices, plan.ranks) - (beside(params, devices) if stage == "grpo" else 0)
        found = peak(params, stage, shape, plan)
        # On a GPU they lie in the machine's memory instead.
        examples = 0 if devices else of_examples(params)
        helps = "" if found.total + examples <= room else _helps(params, stage, shape, plan, room - examples)
        # One of several passes is filled up with shorter rows.
        filled = devices or plan.accumulates
        least = (found if filled else training(shape, replace(plan, rows=1))).total + examples
        if examples:
            found = Footprint({**found.parts, "examples": examples})
        # Rank i of a machine takes GPU i; another process may hold the rest.
        held = max((one.held for one in devices[: plan.ranks]), default=0)
        yield Need(stage, found, room, held, helps, least)


def of_examples(params: Params) -> int:
    """Bytes of the training examples in each process that trains; none below a GiB, which nobody notices."""
    size = params.synthesize.train_examples * EXAMPLE
    return size if size >= GIB else 0


def loaded(params: Params, shape: ModelShape, devices: list[Gpu]) -> tuple[int, int]:
    """How many processes of a training stage load the model on a machine with GPUs, and the bytes of its own memory
    that they take: each has all weights there before they go to its GPU, and keeps its examples."""
    found = []
    for stage in TRAINED:
        plan = plan_of(params, stage, gpu=True)
        ranks = min(plan.ranks, len(devices))
        size = shape.weights * (BFLOAT16 if plan.bfloat16_weights else FLOAT32) + of_examples(params)
        found.append((ranks, ranks * size))
    return max(found, key=lambda one: one[1])


def beside(params: Params, devices: list[Gpu]) -> int:
    """Bytes of a GPU that grpo's own vLLM server takes from a rank; none where it has GPUs of its own."""
    grpo, server = params.grpo, params.grpo.server
    shares = grpo.engine == "vllm" and server.device == "gpu" and server.url is None and server.devices is None
    return int(server.gpu_memory * min(one.memory for one in devices)) if shares and devices else 0


def check_beside(params: Params, devices: list[Gpu]) -> None:
    """Raises `ServiceError` where grpo's own server is to use a rank's GPU that takes one process at a time."""
    if beside(params, devices) and (alone := [one for one in devices if one.exclusive]):
        raise ServiceError(
            f"the server and a rank share a GPU, whose compute mode is {EXCLUSIVE} ({counted(alone)})",
            where="grpo.server", fix="nvidia-smi --compute-mode=DEFAULT, or set grpo.server.devices to other GPUs",
        )  # fmt: skip


def compute_of(params: Params, stage: str) -> Compute:
    """How a training stage uses its machine."""
    return params.sft if stage == "sft" else params.grpo


def plan_of(params: Params, stage: str, *, gpu: bool = False) -> TrainingPlan:
    """How a stage trains, as its parameters say, on a CPU or a GPU."""
    settings, grpo = compute_of(params, stage), params.grpo
    batch = params.sft.batch_size if stage == "sft" else grpo.examples_per_step * grpo.group_size
    rows = max(1, batch // settings.processes)
    micro = settings.micro_batch or rows
    shares = gpu and stage == "grpo" and grpo.shared_prefix
    return TrainingPlan(
        ranks=settings.processes,
        strategy=settings.strategy,
        rows=min(rows, micro),
        tokens=params.rollout.max_tokens,
        accumulates=micro < rows,
        one_backward=stage == "grpo" and not grpo.rows_apart,
        bfloat16=settings.precision == "bfloat16",
        checkpointing=settings.gradient_checkpointing,
        lora=None if settings.lora is None else settings.lora.rank,
        muon=settings.optimizer == "muon",
        reference=stage == "grpo" and grpo.kl > 0,
        gpu=gpu,
        keys=shares * min(rows, GATHERED * micro) * params.rollout.max_tokens,
    )


def peak(params: Params, stage: str, shape: ModelShape, plan: TrainingPlan) -> Footprint:
    """The larger of the training step's peak and, of grpo in process, the rollouts' beside the optimizer's state.

    A development check plays all of its examples at once, on rank 0.
    """
    step = training(shape, plan)
    if stage == "sft" or params.grpo.engine != "in_process":
        return step
    grpo = params.grpo
    conversations = min(AT_ONCE, max(grpo.eval_examples, grpo.examples_per_step * grpo.group_size // plan.ranks))
    acting = rollouts(shape, conversations, params.rollout.max_tokens, bfloat16=plan.bfloat16_weights).parts
    held = {name: step.parts[name] for name in ("weights", "optimizer", "reference") if name in step.parts}
    both = Footprint(acting | held)
    return max(step, both, key=lambda footprint: footprint.total)


def checkpoint_bytes(params: Params, shape: ModelShape) -> int:
    """Disk that grpo needs at its peak, beside the data and the base."""
    plan = plan_of(params, "grpo")
    trained = shape.weights if plan.lora is None else shape.adapters(plan.lora)
    size = BFLOAT16 if plan.bfloat16 else FLOAT32
    # ZeRO saves the model beside its float32 weights; otherwise they are the model.
    apart = plan.strategy != "ddp"
    model = size if apart else FLOAT32
    state = (1 + ADAMW_STATES) * FLOAT32 + (size if apart else 0)
    # Two are kept, and the oldest goes only when the newest is written.
    checkpoints = CHECKPOINTS * state * trained
    # The last good model and its candidate are links, which outlive the checkpoints that they were of.
    links = 2 * model * trained
    served = shape.weights * size if params.grpo.engine == "vllm" and plan.lora is None else 0
    outputs = 2 * shape.weights * size  # models/sft and models/grpo
    return checkpoints + links + served + outputs


def told(need: Need) -> str:
    """One line: what the stage needs on each rank, and what there is."""
    most = "" if need.least == need.footprint.total else " with every episode at its longest"
    held = f", of which other processes hold {need.held / GIB:.1f}" if need.crowded else ""
    return f"{need.stage} needs {need.footprint.told()} a process{most}, of {need.room / GIB:.1f} GiB{held}"


def _helps(params: Params, stage: str, shape: ModelShape, plan: TrainingPlan, room: int) -> str:
    """The first settings that together make it fit; those that change nothing are left out."""
    options = list[str]()
    for name, value, change in HELPS:
        changed = replace(plan, **change)
        if changed == plan or (name == "strategy" and plan.ranks == 1):
            continue
        if name == "lora":
            options = [option for option in options if ".strategy=" not in option]
        plan, options = changed, [*options, f"--set {stage}.{name}={value}"]
        if peak(params, stage, shape, plan).total <= room:
            return " ".join(options)
    shorter = params.model_copy(update={"rollout": params.rollout.model_copy(update={"max_tokens": 2048})})
    if peak(shorter, stage, shape, replace(plan, tokens=2048)).total <= room:
        return " ".join([*options, "--set rollout.max_tokens=2048"])
    return ""
