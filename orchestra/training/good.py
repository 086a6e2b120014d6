"""The last good checkpoint of a GRPO run: the weights that are the result when a run declines and is stopped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import DataError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

NAME = "good-"
STATE = frozenset({"trainer_state.json", "history.json"})
"""Files of the trainer; the others that end in .json belong to the model and its tokenizer."""


def keep_good(checkpoint: Path) -> None:
    """Keep a checkpoint's model beside it as `good-<step>`, in place of an earlier one. Its files are links: no copy.

    The trainer's own rotation deletes checkpoints by age, and a decline shows only after a while.
    """
    target = checkpoint.with_name(NAME + checkpoint.name.rpartition("-")[2])
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for file in checkpoint.iterdir():
        if file.suffix in (".safetensors", ".json") and file.name not in STATE:
            os.link(file, partial / file.name)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for other in checkpoint.parent.glob(f"{NAME}*"):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def last_good(checkpoints: Path) -> tuple[int, Path] | None:
    """Step and folder of the kept model; None when no checkpoint was good: what training began from is the last one."""
    found = {int(path.name.removeprefix(NAME)): path for path in checkpoints.glob(f"{NAME}*")}
    return (max(found), found[max(found)]) if found else None


def restore(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of a checkpoint folder into `model`, in place; raises `DataError` when some are not there."""
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    found = model.load_state_dict(state, strict=False)
    # A tied weight is saved once, under its first name.
    lacking = set(found.missing_keys) - set(model.all_tied_weights_keys)
    if lacking or found.unexpected_keys:
        what = f"not the weights of this model: {sorted({*lacking, *found.unexpected_keys})[0]}"
        raise DataError(what, where=str(folder), fix="remove the stage's work folder and run it again")
