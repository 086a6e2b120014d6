"""The trained weights as files that a vLLM server loads."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.files import atomic
from orchestra.system.environment import memory_free

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec

WEIGHTS = "model.safetensors"
TRAINED = "default"
"""Peft's name of the adapters that are trained."""
ROOM = 9
"""Times its size that must be free for a file in memory: the server still takes its own, and on a CPU gradients and an
optimizer in float32."""


class WholeWeights:
    """A folder that a server loads: all weights of a model in the server's `dtype`, with configuration and tokenizer.

    A server that is `ours` ends with this process, so its file lies in memory where there is room, and each write goes
    over the one before. Amid a write the file is a mixture: a server that starts then must be told to load it again.
    Another server's file is replaced whole.
    """

    def __init__(self, folder: Path, codec: Codec, dtype: str, *, ours: bool) -> None:
        self.folder, self.codec, self.dtype = folder, codec, dtype
        self._file = folder / WEIGHTS
        self._memory: int | None = None
        """Descriptor of the file in memory, which the kernel removes when this process ends."""
        self._places: list[torch.Tensor] = []
        """Of each weight in it."""
        self._may_share = ours

    def write(self, model: PreTrainedModel) -> None:
        weights = untied(model)
        self._write_settings(model)
        first, self._may_share = self._may_share, False
        if first:
            self._share(weights)
        if not self._places:
            self._replace(weights)
            return
        for place, weight in zip(self._places, weights.values(), strict=True):
            place.copy_(weight)
        if first:
            self._file.unlink(missing_ok=True)
            self._file.symlink_to(self._link)

    def close(self) -> None:
        """Let go of the memory, which no server reads any more."""
        if self._places:
            self._file.unlink(missing_ok=True)
            self._places.clear()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _share(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make the file in memory, with a place for each weight, where there is room for it."""
        import torch

        header, counts = _header(weights, self.dtype), [one.numel() for one in weights.values()]
        kind: torch.dtype = getattr(torch, self.dtype)
        size = len(header) + sum(counts) * kind.itemsize
        if ROOM * size > memory_free():
            return
        try:
            self._memory = os.memfd_create(WEIGHTS)
            os.posix_fallocate(self._memory, 0, size)
            mapped = mmap.mmap(self._memory, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            mapped[: len(header)] = header
            read = subprocess.run(["head", "-c", "8", self._link], capture_output=True).stdout
        except OSError:
            read = b""  # A kernel or a container that refuses it.
        if read != header[:8]:
            self.close()  # Some sandboxes open no file of another process.
            return
        parts = torch.split(torch.frombuffer(mapped, dtype=kind, offset=len(header)), counts)
        self._places = [part.view(one.shape) for part, one in zip(parts, weights.values(), strict=True)]

    @property
    def _link(self) -> str:
        """Where another process finds the file in memory."""
        return f"/proc/{os.getpid()}/fd/{self._memory}"

    def _replace(self, weights: Mapping[str, torch.Tensor]) -> None:
        import torch

        # After a crash the training writes it again, so no step waits for the disk.
        with atomic.whole_file(self._file, durable=False) as partial, partial.open("wb") as out:
            out.write(_header(weights, self.dtype))
            for one in weights.values():
                there = one.to("cpu", getattr(torch, self.dtype)).contiguous()
                out.write(there.view(-1).view(torch.uint8).numpy().data)

    def _write_settings(self, model: PreTrainedModel) -> None:
        atomic.make_folder(self.folder)
        if not (self.folder / "config.json").exists():
            config: Any = type(model.config).from_dict(model.config.to_dict())
            config.tie_word_embeddings, config.dtype = False, self.dtype
            # Without its class a model that was never saved is served as one that embeds text.
            config.architectures = [type(model).__name__]
            self.codec.tokenizer.save_pretrained(str(self.folder))
            config.save_pretrained(str(self.folder))


def untied(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Every weight of `model` by name, where it lies.

    Tied embeddings come twice, under a configuration that says they are not tied: vLLM's reload of weights in place
    breaks the tie, and the server would then mix old weights with new ones.
    """
    found = {name: one.detach() for name, one in model.state_dict().items()}
    embedding: Any = model.get_input_embeddings()
    found.setdefault("lm_head.weight", embedding.weight.detach())
    return found


def _header(weights: Mapping[str, torch.Tensor], dtype: str) -> bytes:
    """What begins a safetensors file of these weights, one after another."""
    kind, size = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}[dtype]
    told: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, one in weights.items():
        begin, end = end, end + one.numel() * size
        told[name] = {"dtype": kind, "shape": list(one.shape), "data_offsets": [begin, end]}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_adapters(model: Any, folder: Path) -> None:
    """The trained adapters of `model` in a new `folder`, without those that TRL keeps for the KL term."""
    model.save_pretrained(str(folder), safe_serialization=True, selected_adapters=[TRAINED])
