"""The rows of a step in several passes, each of about as many tokens as memory has room for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch.utils.checkpoint import checkpoint

from orchestra.training.compute.accumulation import budgeted
from orchestra.training.grpo.passes.length_batching import Forward
from orchestra.training.grpo.passes.prefix_tree import equal_length


def parts_of(ids: torch.Tensor, mask: torch.Tensor, budget: int, *, shared: bool) -> list[list[int]]:
    """Rows (rows, time) in parts of at most `budget` tokens each, or of one row.

    `shared`: rows that begin alike go together, and count what they share once. Otherwise rows of about one length go
    together, and a part counts as its longest row times its rows.
    """
    table, kept = ids.cpu().numpy(), mask.cpu().numpy().astype(bool)
    rows = [row[chosen] for row, chosen in zip(table, kept, strict=True)]
    lengths = [len(row) for row in rows]
    if not shared:
        order = sorted(range(len(rows)), key=lambda row: lengths[row])
        ranges = budgeted(len(rows), budget, lambda first, end: (end - first) * lengths[order[end - 1]])
    else:
        order = sorted(range(len(rows)), key=lambda row: rows[row].tobytes())
        alike = [0, *(equal_length(rows[one], rows[other]) for one, other in pairwise(order))]
        own = [0, *accumulate(lengths[row] - same for row, same in zip(order, alike, strict=True))]
        ranges = budgeted(len(rows), budget, lambda first, end: own[end] - own[first] + alike[first])
    return [[order[place] for place in part] for part in ranges]


def in_micro_batches(
    forward: Forward, ids: torch.Tensor, mask: torch.Tensor, width: int, parts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`forward` over all rows, part by part, for a loss that compares rows of all parts.

    Of a pass only the result is kept; it runs again when its gradient is wanted (torch.utils.checkpoint). So the loss
    sees all rows of the step at once, and is the same number.
    """
    if len(parts) == 1:
        return forward(ids, mask, width)
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for part in parts:
        rows = torch.tensor(part, device=ids.device)
        arguments = ids[rows], mask[rows], width
        if torch.is_grad_enabled():
            found = checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            found = forward(*arguments)
        logps.append(found[0])
        entropies += [found[1]] if found[1] is not None else []
    back = torch.argsort(torch.tensor([row for part in parts for row in part], device=ids.device))
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None
