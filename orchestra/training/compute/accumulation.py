"""Rows in several passes that count as one step: each pass has a backward pass of its own, so nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def budgeted(rows: int, budget: int, cost_of: Callable[[int, int], int]) -> list[range]:
    """Neighbouring rows in parts: `cost_of(first, behind_last)` of each is at most `budget`, or it is one row."""
    parts: list[range] = []
    first = 0
    for end in range(1, rows + 1):
        if end == rows or cost_of(first, end + 1) > budget:
            parts.append(range(first, end))
            first = end
    return parts


def evened(parts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The parts as `count` of them, the largest halved; there are at least as many rows."""
    found = [list(part) for part in parts]
    while len(found) < count:
        at = max(range(len(found)), key=lambda part: len(found[part]))
        middle = len(found[at]) // 2
        found[at : at + 1] = [found[at][:middle], found[at][middle:]]
    return found


def most_of_all(accelerator: Any, count: int) -> int:
    """The largest `count` of any rank: passes in which ranks meet must be as many on each."""
    if accelerator.num_processes == 1:
        return count
    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())


def loss_in_parts(accelerator: Any, model: Any, count: int, loss_of: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The sum of `count` losses, as one whose backward pass is the last one's: the earlier ones have had theirs.

    Ranks share the gradients with the last part alone, where DDP and ZeRO-2 can wait.
    """
    state, earlier = accelerator.gradient_state, torch.zeros((), device=accelerator.device)
    # DeepSpeed divides by passes that a Trainer would count; here the losses are parts of one.
    settings = {"scale_wrt_gas": False} if str(accelerator.distributed_type).endswith("DEEPSPEED") else {}
    for part in range(count - 1):
        state._set_sync_gradients(False)
        try:
            with accelerator.no_sync(model):
                loss = loss_of(part)
                accelerator.backward(loss, **settings)
        finally:
            state._set_sync_gradients(True)
        earlier += loss.detach()
    return loss_of(count - 1) + earlier
