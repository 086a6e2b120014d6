"""Attention over a prefix tree as one of transformers' attention functions, so that any of its models can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from orchestra.training.grpo.passes.prefix_tree import Bucket, PrefixTree, prefix_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "prefix_tree"


def enable(model: PreTrainedModel) -> bool:
    """Have `model` attend over prefix trees where its forward is given one, and as ever where not.

    False for a model that does not attend to all that came before, such as one with a sliding window.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and not hasattr(config, "layer_types")
    if kinds != {"full_attention"} or windowed or not getattr(model, "_supports_attention_backend", False):
        return False
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


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
    **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Of packed queries, keys and values (1, heads, tokens, head_dim): (1, tokens, heads, head_dim).

    Without a tree it is the attention that transformers takes by itself.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    # Under autocast Qwen3's norms leave queries and keys in float32, and sdpa compares types before autocast casts.
    query, key, value = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    return torch.cat([_attend(bucket, query, key, value, scaling) for bucket in prefix_tree.buckets])[None], None


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
