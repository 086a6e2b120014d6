"""A Qwen3's weights laid out for decoding: the model's own function in a third of the operations.

Rollouts of small models spend most of their time between operations, so projections that read the same input are
joined, norms' weights are multiplied into the projections behind them, matrices lie transposed (faster for few rows),
rotary pairs lie side by side (one complex product turns them) and the scale of the scores is in the query norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_PARAMETERS = 2_000_000_000
"""Larger models decode through their own forward: their time is in the products, and a second copy costs memory."""
POSITIONS = 512
"""Rotary angles are computed for this many positions at first, then for twice as many whenever they run out."""

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Angles that depend on the position alone, not on how long the context has become."""


class Attention(Protocol):
    """What a layer hands its queries to."""

    def __call__(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor | None:
        """Store one layer's keys and values (tokens, kv_heads, head_dim), answer queries (tokens, heads, head_dim).

        Gives (tokens, heads x head_dim), or None when nothing is asked beyond storing.
        """
        ...


@dataclass(frozen=True)
class _Layer:
    """Matrices as (inputs, outputs)."""

    qkv: torch.Tensor
    """Outputs: (heads + 2 kv_heads) x head_dim."""
    qk_norm: torch.Tensor
    """(heads + kv_heads, head_dim)."""
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Decoder:
    """A snapshot of a model's weights: made again at each rollout, since training changes them."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = model.model.layers[0].self_attn.head_dim
        self.embedding: torch.Tensor = model.model.embed_tokens.weight.detach()
        self._rotary = model.model.rotary_emb
        self._angles = torch.empty(0)
        half = self.head_dim // 2
        # Channel i turns together with channel i + half: beside each other they are one complex number.
        self._pairs = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
        with torch.no_grad():
            self.layers = [self._layer(layer) for layer in model.model.layers]
            self._head = _behind(model.model.norm, model.lm_head.weight)
        self._eps = torch.full((1,), config.rms_norm_eps, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @classmethod
    def of(cls, model: PreTrainedModel) -> Decoder | None:
        """None for a model whose forward this does not repeat to rounding: another architecture, adapters, hooks,
        weights that are spread over processes (ZeRO-3) or not in float32."""
        from transformers import Qwen3ForCausalLM

        if type(model) is not Qwen3ForCausalLM:
            return None
        config: Any = model.config
        plain = {torch.nn.Linear, torch.nn.Embedding}
        # A layer with adapters has no weights itself: it shows those of the layer that it wraps.
        holders = [
            m
            for m in model.modules()
            if next(iter(m.parameters(recurse=False)), getattr(m, "weight", None)) is not None
        ]
        known = all(type(m) in plain or type(m).__name__ == "Qwen3RMSNorm" for m in holders)
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        parameters = list(model.parameters())
        whole = all(p.numel() and p.dtype == torch.float32 for p in parameters)
        static = config.rope_parameters["rope_type"] in STATIC_ROPE
        usual = config.hidden_act == "silu" and not config.attention_bias and static
        full = all(kind == "full_attention" for kind in config.layer_types)
        small = sum(p.numel() for p in parameters) <= MAX_PARAMETERS
        return cls(model) if known and not hooked and whole and usual and full and small else None

    def _layer(self, layer: Any) -> _Layer:
        a, mlp, scale = layer.self_attn, layer.mlp, layer.self_attn.scaling
        pairs = self._pairs.to(self.device)

        def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
            return weight.view(heads, self.head_dim, -1)[:, pairs].flatten(0, 1)

        q, k = paired(a.q_proj.weight, self.heads), paired(a.k_proj.weight, self.kv_heads)
        q_norm = (a.q_norm.weight * scale)[pairs].expand(self.heads, -1)
        k_norm = a.k_norm.weight[pairs].expand(self.kv_heads, -1)
        return _Layer(
            qkv=_behind(layer.input_layernorm, q, k, a.v_proj.weight),
            qk_norm=torch.cat([q_norm, k_norm]),
            out=a.o_proj.weight.t().contiguous(),
            gate_up=_behind(layer.post_attention_layernorm, mlp.gate_proj.weight, mlp.up_proj.weight),
            down=mlp.down_proj.weight.t().contiguous(),
        )

    def reach(self, positions: int) -> None:
        """Have the turns of every rotary pair for at least this many positions: (positions, 1, head_dim / 2)."""
        if positions <= len(self._angles):
            return
        size = max(POSITIONS, len(self._angles))
        while size < positions:
            size *= 2
        cos, sin = self._rotary(self._eps, torch.arange(size, device=self.device)[None])
        half = self.head_dim // 2
        self._angles = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention, last: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Run the layers over packed tokens `ids` (tokens,) at `positions` (tokens,).

        Keys and values of all tokens are stored; of the last layer's output only the tokens `last` (rows,) are
        computed, or none at all: (rows, hidden) before the final norm, or None. `reach` the positions first.
        """
        x = functional.embedding(ids, self.embedding)
        angles = self._angles[positions]
        for index, layer in enumerate(self.layers):
            final = index == len(self.layers) - 1
            queries, keys, values = self._project(x, angles, layer)
            if final:
                if last is None:
                    attention(index, queries[:0], keys, values)
                    return None
                if len(last) != len(x):
                    x, queries = x[last], queries[last]
            mixed = attention(index, queries, keys, values)
            assert mixed is not None
            x = torch.addmm(x, mixed, layer.out)
            gate, up = (self._normed(x) @ layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, functional.silu(gate) * up, layer.down)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, vocab)."""
        return self._normed(hidden) @ self._head

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        """One over the root mean square of the last axis (kept as 1)."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, size, size, value=1 / x.shape[-1]).rsqrt_()

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return x * self._scale(x)

    def _project(
        self, x: torch.Tensor, angles: torch.Tensor, layer: _Layer
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys (both normed and turned) and values: (tokens, heads, head_dim) each."""
        turning, heads = self.heads + self.kv_heads, self.heads + 2 * self.kv_heads
        joined = (self._normed(x) @ layer.qkv).view(len(x), heads, self.head_dim)
        qk = joined[:, :turning]
        qk.mul_(self._scale(qk)).mul_(layer.qk_norm)
        torch.view_as_complex(joined.view(len(x), heads, self.head_dim // 2, 2))[:, :turning].mul_(angles)
        return joined[:, : self.heads], joined[:, self.heads : turning], joined[:, turning:]


def _behind(norm: Any, *weights: torch.Tensor) -> torch.Tensor:
    """Weights (outputs, inputs) joined, with the weight of the norm before them, as (inputs, outputs)."""
    joined: torch.Tensor = torch.cat(weights) * norm.weight
    return joined.t().contiguous()
