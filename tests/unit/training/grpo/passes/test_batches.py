"""Rows of a step's batch: the chosen ones whole, without the padding that only the others needed."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestra.training.grpo.passes.batches import IN_WIDTH, keep_rows

SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=2, max_size=6)
"""Tokens of each row's prompt and completion."""


@given(SIZES, st.data())
def test_kept_rows_lose_padding_and_nothing_else(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    left, width = (max(column) for column in zip(*sizes, strict=True))
    prompts = torch.tensor([[place >= left - prompt for place in range(left)] for prompt, _ in sizes]).long()
    completions = torch.tensor([[place < size for place in range(width)] for _, size in sizes]).long()
    values = torch.arange(1, len(sizes) * max(left, width) + 1).view(len(sizes), -1)
    batch: dict[str, Any] = {
        "prompt_ids": prompts * values[:, :left], "prompt_mask": prompts, "completion_mask": completions,
        "completion_ids": completions * values[:, :width], "old_per_token_logps": -1.5 * completions,
        "advantages": torch.arange(float(len(sizes))), "num_items_in_batch": torch.tensor(7), "steps": 3,
        "of_another_size": torch.arange(len(sizes) + 1),
    }  # fmt: skip
    kept = keep_rows(batch, torch.tensor(rows))
    assert kept.keys() == batch.keys() and kept["advantages"].tolist() == [float(row) for row in rows]
    assert (kept["num_items_in_batch"], kept["steps"]) == (7, 3)
    assert torch.equal(kept["of_another_size"], batch["of_another_size"])
    most = [max(sizes[row][side] for row in rows) for side in (0, 1)]
    for name in ("prompt_ids", "prompt_mask"):
        assert torch.equal(kept[name], batch[name][rows, left - most[0] :])
    for name in set(IN_WIDTH) & batch.keys():
        assert torch.equal(kept[name], batch[name][rows, : most[1]])
