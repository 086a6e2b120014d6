"""Models of other sizes that act as the shipped base does, so that large shapes run real multi-turn episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from orchestra.rollout.policies.transformers import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHAPES: dict[str, dict[str, Any]] = {
    "embedded": {},
    "double": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6, "head_dim": 64},
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""`qwen3-0.6b` has every size of Qwen3-0.6B but its vocabulary, which is the base's (its head is that much cheaper)."""


def model_of(shape: str, folder: Path, device: str) -> PreTrainedModel:
    """The base in `folder`, grown to `shape`, in float32 on `device`."""
    model = load_model(folder).float()
    if SHAPES[shape]:
        model = grow(model, SHAPES[shape])
    moved: Any = model.to(device)
    grown: PreTrainedModel = moved.eval()
    return grown


def grow(small: PreTrainedModel, sizes: dict[str, Any]) -> PreTrainedModel:
    """A larger Qwen3 that computes the same function: its additional weights are 0, its norms and queries rescaled.

    Every matrix has its full size, so it costs what a model of that shape costs. Head h of the small model becomes a
    head of the same key-value group; rotary pair i of d becomes pair i D / d of D, which turns at the same frequency.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    old: Any = small.config
    new = Qwen3Config(**{**old.to_dict(), **sizes, "layer_types": ["full_attention"] * sizes["num_hidden_layers"]})
    big: Any = Qwen3ForCausalLM(new)
    place = _Places(old, new)
    with torch.no_grad():
        for p in big.parameters():
            p.zero_()
        rows, columns = torch.arange(old.vocab_size), torch.arange(old.hidden_size)
        source: Any = small
        big.model.embed_tokens.weight[rows[:, None], columns] = source.model.embed_tokens.weight
        big.model.norm.weight[columns] = source.model.norm.weight * place.hidden_scale
        for target, layer in zip(big.model.layers, source.model.layers, strict=False):
            place.layer(target, layer)
    return big  # type: ignore[no-any-return]


class _Places:
    """Where the small model's weights go in the large one."""

    def __init__(self, old: Any, new: Any) -> None:
        # A norm divides by the root mean square over all channels, most of which are 0 now.
        self.hidden_scale = (old.hidden_size / new.hidden_size) ** 0.5
        self.head_scale = (old.head_dim / new.head_dim) ** 0.5
        # Scores are divided by the root of the head's size.
        self.query_scale = (new.head_dim / old.head_dim) ** 0.5
        half, step = old.head_dim // 2, new.head_dim // old.head_dim
        pairs = torch.arange(half) * step
        self.within = torch.cat([pairs, pairs + new.head_dim // 2])
        self.hidden = torch.arange(old.hidden_size)
        self.middle = torch.arange(old.intermediate_size)
        share_old = old.num_attention_heads // old.num_key_value_heads
        share_new = new.num_attention_heads // new.num_key_value_heads
        heads = [h // share_old * share_new + h % share_old for h in range(old.num_attention_heads)]
        self.queries = self._rows(heads, new.head_dim)
        self.keys = self._rows(list(range(old.num_key_value_heads)), new.head_dim)

    def _rows(self, heads: list[int], size: int) -> torch.Tensor:
        return torch.cat([h * size + self.within for h in heads])

    def layer(self, target: Any, source: Any) -> None:
        """Copy one layer's weights; layers beyond the small model's stay 0, which passes the residual on."""
        a, b = target.self_attn, source.self_attn
        hidden = self.hidden
        a.q_proj.weight[self.queries[:, None], hidden] = b.q_proj.weight
        a.k_proj.weight[self.keys[:, None], hidden] = b.k_proj.weight
        a.v_proj.weight[self.keys[:, None], hidden] = b.v_proj.weight
        a.o_proj.weight[hidden[:, None], self.queries] = b.o_proj.weight
        a.q_norm.weight[self.within] = b.q_norm.weight * self.head_scale * self.query_scale
        a.k_norm.weight[self.within] = b.k_norm.weight * self.head_scale
        target.input_layernorm.weight[hidden] = source.input_layernorm.weight * self.hidden_scale
        target.post_attention_layernorm.weight[hidden] = source.post_attention_layernorm.weight * self.hidden_scale
        target.mlp.gate_proj.weight[self.middle[:, None], hidden] = source.mlp.gate_proj.weight
        target.mlp.up_proj.weight[self.middle[:, None], hidden] = source.mlp.up_proj.weight
        target.mlp.down_proj.weight[hidden[:, None], self.middle] = source.mlp.down_proj.weight
