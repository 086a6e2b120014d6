"""Rows in several passes that count as one step: each pass has a backward pass of its own, so nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def least_of_all(accelerator: Any, count: int) -> int:
    """The smallest `count` of any rank."""
    if accelerator.num_processes == 1:
        return count
    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).min())


def most_of_all(accelerator: Any, count: int) -> int:
    """The largest `count` of any rank."""
    return -least_of_all(accelerator, -count)


def in_budget(
    rows: int, budget: int, cost_of: Callable[[int, int], int], agree: Callable[[int], int] = int
) -> list[range]:
    """Neighbouring rows in parts: `cost_of(first, behind_last)` of each is at most `budget`, or it is one row.

    With several ranks, `agree` returns the smallest number of any of them. All have as many rows, and so get parts of
    the same sizes: ranks meet in every pass, and gather a number for each of its rows.
    """
    parts: list[range] = []
    first = 0
    while first < rows:
        end = first + 1
        while end < rows and cost_of(first, end + 1) <= budget:
            end += 1
        end = first + agree(end - first)
        parts.append(range(first, end))
        first = end
    return parts


def loss_in_parts(accelerator: Any, model: Any, count: int, loss_of: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The sum of `count` losses, as one whose backward pass is the last one's: the earlier ones have had theirs.

    DDP's ranks share gradients with the last part alone; those of ZeRO share each part's, and keep shares.
    """
    from accelerate.utils import DistributedType

    state, earlier = accelerator.gradient_state, torch.zeros((), device=accelerator.device)
    # DeepSpeed divides by passes that a Trainer would count; here the losses are parts of one.
    deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    settings = {"scale_wrt_gas": False} if deepspeed else {}
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


@contextmanager
def as_one(measures: dict[str, list[float]], tokens: Sequence[float]) -> Iterator[None]:
    """What each part of a step adds to the lists of `measures` becomes one value: their mean by tokens, least or most.

    `tokens` of each part, on all ranks together.
    """
    before = {name: len(values) for name, values in measures.items()}
    yield
    for name, values in measures.items():
        start = before.get(name, 0)
        added = values[start:]
        if len(added) != len(tokens):
            continue
        if name.endswith("_min"):
            one = min(added)
        elif name.endswith("_max"):
            one = max(added)
        else:
            one = sum(value * count for value, count in zip(added, tokens, strict=True)) / max(sum(tokens), 1.0)
        values[start:] = [one]
