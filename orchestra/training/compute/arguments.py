"""What SFT and GRPO ask of their Trainer alike: precision, memory, one GPU a process, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from orchestra.config.compute import Compute
from orchestra.training.distributed import WAIT_S

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainingArguments

    A = TypeVar("A", bound=TrainingArguments)


def common_arguments(work: Path, *, seed: int, save_steps: int, compute: Compute) -> dict[str, Any]:
    """Arguments of a Trainer with no reporting of its own, whose checkpoints are under `work`."""
    bfloat16 = compute.precision == "bfloat16"
    found = {
        "output_dir": str(work / "checkpoints"),
        "save_steps": save_steps,
        "save_total_limit": 2,
        "seed": seed,
        "report_to": [],
        "disable_tqdm": True,
        "gradient_checkpointing": compute.gradient_checkpointing,
        "bf16": bfloat16,
        "dataloader_pin_memory": False,
        "max_grad_norm": 1.0,
        "ddp_timeout": WAIT_S,
    }
    if compute.gradient_checkpointing:
        # The reentrant kind loses the gradient of frozen inputs, which adapters have, and of several passes in one.
        found["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if bfloat16 and not torch.cuda.is_available():
        # transformers takes bfloat16 for a GPU's unless told otherwise.
        found["use_cpu"] = True
    return found


def on_one_gpu(arguments: A) -> A:
    """Have a process use its own GPU alone, be others visible: transformers would spread rows over all (DataParallel),
    which TRL refuses. Several GPUs are for several ranks."""
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def training_dtype(compute: Compute) -> torch.dtype:
    """Type of the weights that a training loads: float32, the masters.

    It is bfloat16 for passes in bfloat16 where the masters are made later: a base that only carries adapters has none,
    and DeepSpeed casts every weight to bfloat16 before it makes its own from them.
    """
    later = compute.lora is not None or compute.strategy != "ddp"
    return torch.bfloat16 if later and compute.precision == "bfloat16" else torch.float32


def released(model: PreTrainedModel, compute: Compute) -> PreTrainedModel:
    """The trained model as it is written: its adapters merged, in the type of its passes. It ends the training."""
    from orchestra.training.compute.lora import merged

    whole = merged(model)
    cast: Any = whole.to(torch.bfloat16) if compute.precision == "bfloat16" else whole  # type: ignore[arg-type]
    made: PreTrainedModel = cast
    return made
