"""The rows of a step in several passes, each of about as many tokens as memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from orchestra.system.memory import GATHERED
from orchestra.training.compute.accumulation import in_budget
from orchestra.training.grpo.passes.length_batching import Forward, part_by_part
from orchestra.training.grpo.passes.prefix_tree import equal_length, sorted_rows


def parts_of(
    ids: torch.Tensor, mask: torch.Tensor, width: int, budget: int, *, shared: bool, agree: Callable[[int], int] = int
) -> list[list[int]]:
    """Rows (rows, time), completions in the last `width` columns, in parts of at most `budget` tokens, or of one row.

    `shared`: rows that begin alike go together, and count what they share once; but each gathers all that it attends
    to, so that a part's rows have at most `GATHERED` times the budget. Otherwise rows of about one length go
    together, and a part counts its padding too. `agree` as in `in_budget`.
    """
    if shared:
        rows, order = sorted_rows(ids, mask)
        alike = [0, *(equal_length(rows[one], rows[other]) for one, other in pairwise(order))]
        lengths = [len(rows[row]) for row in order]
        own = [0, *accumulate(length - same for length, same in zip(lengths, alike, strict=True))]
        whole = [0, *accumulate(lengths)]

        def cost(first: int, end: int) -> int:
            return max(own[end] - own[first] + alike[first], (whole[end] - whole[first]) // GATHERED)

        found = in_budget(len(rows), budget, cost, agree)
    else:
        prompts, completions = (part.sum(1).cpu().numpy() for part in (mask[:, :-width], mask[:, -width:]))
        order = sorted(range(len(mask)), key=lambda row: prompts[row] + completions[row])

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

    def again(*arguments: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)

    run = again if torch.is_grad_enabled() else forward
    return part_by_part(run, ids, mask, width, [torch.tensor(part, device=ids.device) for part in parts])
