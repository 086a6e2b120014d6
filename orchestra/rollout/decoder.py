"""A Qwen3's weights laid out for decoding: the model's own function in a third of the operations.

Rollouts of small models spend most of their time between operations, so projections that read the same input are
joined, rotary pairs lie side by side (one complex product turns them) and the scale of the scores is in the query norm.
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
        """Store one layer's keys and values (tokens, kv_heads, head_dim) and answer `queries` (tokens, heads, head_dim).

        Gives (tokens, heads x head_dim), or None when nothing is asked beyond storing.
        """
        ...


@dataclass(frozen=True)
class _Layer:
    before: torch.Tensor
    qkv: torch.Tensor
    """(heads + 2 kv_heads) x head_dim rows."""
    qk_norm: torch.Tensor
    """(heads + kv_heads, head_dim)."""
    out: torch.Tensor
    after: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Decoder:
    """A snapshot of a model's weights: made anew at each rollout, since training changes them."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = model.model.layers[0].self_attn.head_dim
        self.eps: float = config.rms_norm_eps
        self.embedding: torch.Tensor = model.model.embed_tokens.weight.detach()
        self.head: torch.Tensor = model.lm_head.weight.detach()
        self.norm: torch.Tensor = model.model.norm.weight.detach()
        self._rotary = model.model.rotary_emb
        self._angles = torch.empty(0)
        half = self.head_dim // 2
        # Channel i turns together with channel i + half: beside each other they are one complex number.
        self._pairs = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
        with torch.no_grad():
            self.layers = [self._layer(layer) for layer in model.model.layers]

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @classmethod
    def of(cls, model: PreTrainedModel) -> Decoder | None:
        """None for a model whose forward this does not repeat exactly: another architecture, adapters, hooks, weights
        that are spread over processes (ZeRO-3) or kept at a lower precision."""
        from transformers import Qwen3ForCausalLM

        if type(model) is not Qwen3ForCausalLM:
            return None
        config: Any = model.config
        plain = {torch.nn.Linear, torch.nn.Embedding}
        holders = [m for m in model.modules() if next(iter(m.parameters(recurse=False)), None) is not None]
        known = all(type(m) in plain or type(m).__name__ == "Qwen3RMSNorm" for m in holders)
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        parameters = list(model.parameters())
        whole = all(p.numel() and p.is_floating_point() and p.dtype == parameters[0].dtype for p in parameters)
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
            before=layer.input_layernorm.weight,
            qkv=torch.cat([q, k, a.v_proj.weight]),
            qk_norm=torch.cat([q_norm, k_norm]),
            out=a.o_proj.weight.t(),
            after=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=mlp.down_proj.weight.t(),
        )

    def reach(self, positions: int) -> None:
        """Have the turns of every rotary pair for at least this many positions: (positions, 1, head_dim / 2)."""
        if positions <= len(self._angles):
            return
        size = max(POSITIONS, len(self._angles))
        while size < positions:
            size *= 2
        # In the model's own precision first: its forward rounds cosines and sines to it.
        some = torch.empty(1, device=self.device, dtype=self.dtype)
        cos, sin = self._rotary(some, torch.arange(size, device=self.device)[None])
        half = self.head_dim // 2
        self._angles = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None]

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
            gate, up = functional.linear(self._normed(x, layer.after), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, functional.silu(gate) * up, layer.down)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, vocab) in float32."""
        return functional.linear(self._normed(hidden, self.norm), self.head).float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def _project(
        self, x: torch.Tensor, angles: torch.Tensor, layer: _Layer
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys (both normed and turned) and values: (tokens, heads, head_dim) each."""
        joined = functional.linear(self._normed(x, layer.before), layer.qkv)
        joined = joined.view(len(x), self.heads + 2 * self.kv_heads, self.head_dim)
        turning = self.heads + self.kv_heads
        normed = functional.rms_norm(joined[:, :turning], (self.head_dim,), None, self.eps) * layer.qk_norm
        turned = torch.view_as_complex(normed.float().view(len(x), turning, -1, 2)) * angles
        both = torch.view_as_real(turned).view(len(x), turning, self.head_dim).to(x.dtype)
        return both[:, : self.heads], both[:, self.heads :], joined[:, turning:]
