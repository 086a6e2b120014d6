"""The rows of a step in several passes, each of about as many tokens as memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch.utils.checkpoint import checkpoint

from orchestra.training.compute.accumulation import in_budget
from orchestra.training.grpo.passes.length_batching import Forward, cut, widened
from orchestra.training.grpo.passes.prefix_tree import equal_length


def parts_of(
    ids: torch.Tensor, mask: torch.Tensor, width: int, budget: int, *, shared: bool, agree: Callable[[int], int] = int
) -> list[list[int]]:
    """Rows (rows, time), completions in the last `width` columns, in parts of at most `budget` tokens, or of one row.

    `shared`: rows that begin alike go together, and count what they share once. Otherwise rows of about one length go
    together, and a part counts its padding too. `agree` as in `in_budget`.
    """
    table, kept = ids.cpu().numpy(), mask.cpu().numpy().astype(bool)
    if shared:
        rows = [row[chosen] for row, chosen in zip(table, kept, strict=True)]
        order = sorted(range(len(rows)), key=lambda row: rows[row].tobytes())
        alike = [0, *(equal_length(rows[one], rows[other]) for one, other in pairwise(order))]
        own = [0, *accumulate(len(rows[row]) - same for row, same in zip(order, alike, strict=True))]
        found = in_budget(len(rows), budget, lambda first, end: own[end] - own[first] + alike[first], agree)
    else:
        prompts, completions = kept[:, :-width].sum(1), kept[:, -width:].sum(1)
        order = sorted(range(len(kept)), key=lambda row: prompts[row] + completions[row])

        def padded(first: int, end: int) -> int:
            part = order[first:end]
            return len(part) * int(prompts[part].max() + completions[part].max())

        found = in_budget(len(order), budget, padded, agree)
    return [[order[place] for place in part] for part in found]


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
        arguments = cut(ids, mask, width, torch.tensor(part, device=ids.device))
        if torch.is_grad_enabled():
            found = checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            found = forward(*arguments)
        logps.append(widened(found[0], width))
        entropies += [widened(found[1], width)] if found[1] is not None else []
    back = torch.argsort(torch.tensor([row for part in parts for row in part], device=ids.device))
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None
