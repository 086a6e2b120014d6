"""Attention over a prefix tree as one of transformers' attention functions, so that any of its models can run it.

In half precision on a GPU all segments are one product of torch's `varlen_attn`, elsewhere a product for each bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn

from orchestra.training.grpo.passes.prefix_tree import Bucket, PrefixTree, prefix_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUCKETS, PATHS = "prefix_tree", "prefix_tree_paths"
"""Names of the two ways in transformers."""
HALF = (torch.bfloat16, torch.float16)
"""What the kernel of `varlen_attn` computes in."""
FAR = 0.05
"""Share of their norm by which numbers of both ways may differ: in bfloat16 one is right to 0.004."""

Attend = Callable[[PrefixTree, torch.Tensor, torch.Tensor, torch.Tensor, float | None], torch.Tensor]
"""From a tree and packed queries, keys and values (tokens, heads, head_dim) to (tokens, heads, head_dim)."""


def enable(model: PreTrainedModel, device: torch.device | None = None) -> bool:
    """Have `model` attend over prefix trees where its forward is given one, and as ever where not.

    False for a model that does not attend to all that came before, such as one with a sliding window. `device` is where
    it will run; a GPU shows first on a small tree that both ways agree there.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and not hasattr(config, "layer_types")
    if kinds != {"full_attention"} or windowed or not getattr(model, "_supports_attention_backend", False):
        return False
    for name, attend in ((BUCKETS, by_bucket), (PATHS, by_path)):
        AttentionInterface.register(name, partial(tree_attention, attend=attend))
        AttentionMaskInterface.register(name, sdpa_mask)
    on_gpu = device is not None and device.type == "cuda"
    model.set_attn_implementation(PATHS if on_gpu and agree(config, device) else BUCKETS)
    return True


def agree(config: Any, device: torch.device | None) -> bool:
    """Whether both ways have the same numbers and gradients on that device, with that model's heads; warns if not."""
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    ids = torch.arange(120, device=device).view(3, 40)
    ids[:, :24] = ids[0, :24]
    tree = prefix_tree(ids, torch.ones_like(ids), 20)
    length, random = tree.ids.numel(), torch.Generator().manual_seed(0)
    tokens, upstream = (
        torch.randn(length, several, dim, generator=random).to(device, HALF[0]) for several in (heads + 2 * kv, heads)
    )

    def numbers(attend: Attend) -> torch.Tensor:
        given = tokens.clone().requires_grad_()
        queries, keys, values = torch.split(given, [heads, kv, kv], dim=1)
        mixed = attend(tree, queries, keys, values, None)
        torch.autograd.backward(mixed, upstream)
        assert given.grad is not None
        return torch.cat([mixed.detach().flatten(), given.grad.flatten()]).float()

    exact = numbers(by_bucket)
    try:
        away = float((numbers(by_path) - exact).norm() / exact.norm())
    except RuntimeError as error:
        # An older GPU, or a shape that the kernel does not know.
        reason = str(error).splitlines()[0]
    else:
        if away <= FAR:
            return True
        reason = f"its numbers differ by {away:.2g} of their size"
    logging.getLogger(__name__).warning("attention by buckets, which is slower: varlen_attn: %s", reason)
    return False


def scored(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities and entropies of the completions' tokens, (rows, width) each, 0 in padding.

    `ids` and `mask` (rows, time): prompts padded on the left, completions (`width` columns) on the right. `model` has
    TRL's fused head, which decides whether there are entropies. It may be wrapped for several ranks: this is one pass.
    """
    tree = prefix_tree(ids, mask, width)
    # Four dimensions keep transformers from making a mask of tokens x tokens.
    unused = torch.zeros(1, 1, 1, 1, device=ids.device)
    out = model(
        input_ids=tree.ids, position_ids=tree.positions, attention_mask=unused, shift_labels=tree.labels,
        fused_lm_head=True, prefix_tree=tree,
    )  # fmt: skip
    return tree.by_row(out.log_probs[0]), None if out.entropy is None else tree.by_row(out.entropy[0])


def tree_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, prefix_tree: PrefixTree | None = None,
    *, attend: Attend, **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Of packed queries, keys and values (1, heads, tokens, head_dim): (1, tokens, heads, head_dim).

    Without a tree it is the attention that transformers takes by itself.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    # Under autocast Qwen3's norms leave queries and keys in float32, and sdpa compares types before autocast casts.
    query, key, value = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    return attend(prefix_tree, query, key, value, scaling)[None], None


def by_path(
    tree: PrefixTree, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One product for all segments; in float32, which the kernel does not know, `by_bucket`."""
    if queries.dtype not in HALF:
        return by_bucket(tree, queries, keys, values, scaling)
    paths = tree.paths
    keys, values = (part.index_select(0, paths.keys) for part in (keys, values))
    # The window lets each query see what is before it, counted from the segment's last key.
    mixed = varlen_attn(
        queries, keys, values, paths.query_ends, paths.key_ends, paths.width, paths.reach,
        scale=scaling, window_size=(-1, 0), enable_gqa=True,
    )  # fmt: skip
    assert isinstance(mixed, torch.Tensor)
    return mixed


def by_bucket(
    tree: PrefixTree, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One product for each bucket."""
    return torch.cat([_attend(bucket, queries, keys, values, scaling) for bucket in tree.buckets])


def _attend(
    bucket: Bucket, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """From packed (tokens, heads, head_dim) each to the bucket's own tokens, alike."""
    heads, kv, dim = queries.shape[1], keys.shape[1], queries.shape[2]
    keys, values = (_gathered(part, bucket.keys, bucket.segments).transpose(1, 2) for part in (keys, values))
    asked = _gathered(queries, bucket.queries, bucket.segments)
    width, reach = asked.shape[1], keys.shape[2]
    if bucket.mask is None:
        # With this form of a mask a GPU computes only what is below it.
        causal = causal_lower_right(width, reach)
        mixed = functional.scaled_dot_product_attention(
            asked.transpose(1, 2), keys, values, attn_mask=causal, scale=scaling, enable_gqa=True
        )
    else:
        # Heads that share keys are queries of one product: a mask rules out sdpa's own grouping, which repeats keys.
        folded = asked.view(-1, width, kv, heads // kv, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = bucket.mask.to(queries.dtype).repeat(1, 1, heads // kv, 1)
        mixed = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        mixed = mixed.view(-1, heads, width, dim)
    mixed = mixed.transpose(1, 2).reshape(-1, heads, dim)
    return mixed if bucket.inside is None else mixed.index_select(0, bucket.inside)


def _gathered(states: torch.Tensor, places: torch.Tensor, segments: int) -> torch.Tensor:
    """(tokens, heads, head_dim) at `places` (segments x width,): (segments, width, heads, head_dim)."""
    return states.index_select(0, places).view(segments, -1, *states.shape[1:])
