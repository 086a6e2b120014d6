"""Rows of about the same length go through the model together: a batch is as wide as its longest row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    return part_by_part(forward, ids, mask, width, torch.split(torch.argsort(mask.sum(1), stable=True), rows))


def part_by_part(
    forward: Forward, ids: torch.Tensor, mask: torch.Tensor, width: int, parts: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`forward` over the rows of each part, with the padding that they need; the results in the order of the rows."""
    found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for part in parts:
        logps, entropies = forward(*cut(ids, mask, width, part))
        found.append((widened(logps, width), None if entropies is None else widened(entropies, width)))
    back = torch.argsort(torch.cat(list(parts)))
    known = [entropies for _, entropies in found if entropies is not None]
    return torch.cat([logps for logps, _ in found])[back], torch.cat(known)[back] if known else None


def cut(
    ids: torch.Tensor, mask: torch.Tensor, width: int, part: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The rows of a part without the padding that none of them needs, and the width of its completions."""
    split = ids.shape[1] - width
    prompts, completions = mask[part, :split].sum(1), mask[part, split:].sum(1)
    left, wide = split - int(prompts.max()), max(1, int(completions.max()))
    columns = slice(left, split + wide)
    return ids[part, columns], mask[part, columns], wide


def widened(values: torch.Tensor, width: int) -> torch.Tensor:
    """With columns of 0 on the right."""
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))
