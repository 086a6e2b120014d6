"""The last good checkpoint of a GRPO run: the weights that are the result when a run declines and is stopped."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.training.compute.lora import has_adapters, restore_adapters

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

STATE = frozenset({"trainer_state.json", "history.json"})
"""Files of the trainer; the others that end in .json belong to the model and its tokenizer."""


@dataclass(frozen=True)
class BestCheckpoint:
    """Keeps at most two models of a run: `good-<step>`, and `candidate-<step>` until the steps after it have shown it.

    Kept apart from the trainer's own checkpoints, which go by age, while a decline shows only after a while.
    """

    folder: Path
    """Where the trainer's checkpoints are."""
    after: int
    """Steps that a candidate waits for: what an update did shows only in the episodes of the following steps."""

    def propose(self, checkpoint: Path) -> None:
        """Make a checkpoint's model the candidate, unless another one waits. Its files are links: nothing is copied."""
        if self._find("candidate") is not None:
            return
        target = self.folder / f"candidate-{checkpoint.name.rpartition('-')[2]}"
        with atomic.whole_folder(target) as partial:
            for file in checkpoint.iterdir():
                if file.suffix in (".safetensors", ".json") and file.name not in STATE:
                    os.link(file, partial / file.name)

    def decide(self, step: int, good: bool) -> None:
        """Once the candidate has waited: it replaces the kept model or goes, as the last steps were `good` or not."""
        waiting = self._find("candidate")
        if waiting is None or step < waiting[0] + self.after:
            return
        if not good:
            shutil.rmtree(waiting[1])
            return
        before = self.last()
        atomic.replace(waiting[1], self.folder / f"good-{waiting[0]}")
        if before is not None:
            shutil.rmtree(before[1])

    def last(self) -> tuple[int, Path] | None:
        """Step and folder of the kept model; None when none was good: what training began from is the last good one."""
        return self._find("good")

    def _find(self, name: str) -> tuple[int, Path] | None:
        found = {int(path.name.rpartition("-")[2]): path for path in self.folder.glob(f"{name}-*")}
        return (max(found), found[max(found)]) if found else None


def restore(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of a checkpoint folder into `model`, in place; raises `DataError` when some are not there."""
    from safetensors.torch import load_file

    if has_adapters(model):
        restore_adapters(model, folder)
        return
    state: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    found = model.load_state_dict(state, strict=False)
    # A tied weight is saved once, under its first name.
    lacking = set(found.missing_keys) - set(model.all_tied_weights_keys)
    if lacking or found.unexpected_keys:
        what = f"not the weights of this model: {sorted({*lacking, *found.unexpected_keys})[0]}"
        raise DataError(what, where=str(folder), fix="remove the stage's work folder and run it again")
