"""Which training checkpoint is whole: a killed run continues from it exactly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from orchestra.training.distributed import rank, wait_for_all

MARKER = "complete"


def complete_marker() -> Any:
    """A Trainer callback that marks a checkpoint after every rank has written its part."""
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class CompleteMarker(TrainerCallback):
        def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            wait_for_all()
            if state.is_world_process_zero and args.output_dir is not None:
                (Path(args.output_dir) / f"checkpoint-{state.global_step}" / MARKER).touch()

    return CompleteMarker()


def complete(folder: Path) -> dict[int, Path]:
    """The checkpoints that carry the marker, by step."""
    marked = (mark.parent for mark in folder.glob(f"checkpoint-*/{MARKER}"))
    return {int(path.name.rpartition("-")[2]): path for path in marked}


def last_step(folder: Path) -> int:
    """The step of the newest whole checkpoint; 0 without one."""
    return max(complete(folder), default=0)


def last_complete(folder: Path) -> Path | None:
    """The newest whole checkpoint; half-written ones are deleted."""
    found = complete(folder)
    for path in folder.glob("checkpoint-*"):
        if path not in found.values() and rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
    return found[max(found)] if found else None
