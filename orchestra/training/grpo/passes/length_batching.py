"""Rows of about the same length go through the model together: a batch is as wide as its longest row."""

from __future__ import annotations

from collections.abc import Callable

import torch

ROWS = 16
"""Rows in one pass: fewer would pad less and keep the processor less busy (64 rows of the embedded profile)."""

Forward = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor | None]]
"""From ids, attention mask (both rows, time) and the completion's width to log-probabilities and entropies of the
completion's tokens: (rows, width) each."""


def by_length(
    forward: Forward, ids: torch.Tensor, mask: torch.Tensor, width: int, rows: int = ROWS
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`forward` over all rows, `rows` at a time from short to long, each part without the padding it does not need.

    Prompts are padded on the left and the last `width` columns, the completions, on the right. Padded places give 0.
    """
    if len(ids) <= rows:
        return forward(ids, mask, width)
    split = ids.shape[1] - width
    prompts, completions = mask[:, :split].sum(1), mask[:, split:].sum(1)
    order = torch.argsort(prompts + completions, stable=True)
    found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for part in torch.split(order, rows):
        left, wide = split - int(prompts[part].max()), max(1, int(completions[part].max()))
        columns = slice(left, split + wide)
        logps, entropies = forward(ids[part, columns], mask[part, columns], wide)
        found.append((_widen(logps, width), None if entropies is None else _widen(entropies, width)))
    back = torch.argsort(order)
    known = [entropies for _, entropies in found if entropies is not None]
    return torch.cat([logps for logps, _ in found])[back], torch.cat(known)[back] if known else None


def _widen(values: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))
