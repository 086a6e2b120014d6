"""Rows in several passes that count as one: the gradient is that of all rows, the memory that of a few.

A pass keeps nothing but its result, and runs again when its gradient is wanted (torch.utils.checkpoint). So the loss
sees all rows of the step at once, whatever it compares them by, and is the same number.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from orchestra.training.grpo.passes.length_batching import Forward


def in_micro_batches(
    forward: Forward, ids: torch.Tensor, mask: torch.Tensor, width: int, rows: int | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`forward` over all rows, `rows` at a time; rows that begin alike go together. None: all in one pass."""
    if rows is None or len(ids) <= rows:
        return forward(ids, mask, width)
    table, kept = ids.cpu().numpy(), mask.cpu().numpy().astype(bool)
    order = torch.tensor(sorted(range(len(ids)), key=lambda row: table[row][kept[row]].tobytes()), device=ids.device)
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for part in torch.split(order, rows):
        arguments = ids[part], mask[part], width
        if torch.is_grad_enabled():
            found = checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            found = forward(*arguments)
        logps.append(found[0])
        entropies += [found[1]] if found[1] is not None else []
    back = torch.argsort(order)
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None
