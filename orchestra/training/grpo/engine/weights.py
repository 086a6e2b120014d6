"""The trained weights as files that a vLLM server loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.files import atomic

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec

WEIGHTS = "model.safetensors"
TRAINED = "default"
"""Peft's name of the adapters that are trained."""


def write_whole(model: PreTrainedModel, codec: Codec, folder: Path, dtype: str) -> None:
    """Every weight of `model` in `folder`, in the server's `dtype`; the file is replaced whole.

    Tied embeddings are written twice, under a configuration that says they are not tied: vLLM's reload of weights in
    place breaks the tie, and the server would then mix old weights with new ones.
    """
    import torch
    from safetensors.torch import save_file

    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    found = {name: one.detach().to("cpu", kind, copy=True).contiguous() for name, one in model.state_dict().items()}
    embedding: Any = model.get_input_embeddings()
    found.setdefault("lm_head.weight", embedding.weight.detach().to("cpu", kind, copy=True))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        config: Any = type(model.config).from_dict(model.config.to_dict())
        config.tie_word_embeddings, config.dtype = False, dtype
        # Without its class a model that was never saved is served as one that embeds text.
        config.architectures = [type(model).__name__]
        codec.tokenizer.save_pretrained(str(folder))
        config.save_pretrained(str(folder))
    # After a crash the training writes it again, so no step waits for the disk.
    with atomic.whole_file(folder / WEIGHTS, durable=False) as file:
        save_file(found, file, metadata={"format": "pt"})


def write_adapters(model: Any, folder: Path) -> None:
    """The trained adapters of `model` in a new `folder`, without those that TRL keeps for the KL term."""
    model.save_pretrained(str(folder), safe_serialization=True, selected_adapters=[TRAINED])
