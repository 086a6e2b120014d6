"""Passes of a few rows that are one backward pass: no weight's gradient is ready before the last of them."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestra.training.grpo.passes.length_batching import cut
from orchestra.training.grpo.passes.micro_batches import in_micro_batches, parts_of
from orchestra.training.grpo.passes.prefix_tree import prefix_tree
from tests.support.worlds import tiny_model


def test_no_gradient_is_ready_before_the_last_pass() -> None:
    model: Any = tiny_model()
    seen: list[str] = []
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: seen.append("ready"))

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, None]:
        seen.append("pass")
        return model(ids).logits[:, -width:].mean(-1), None

    ids = torch.arange(24).view(3, 8)
    logps, _ = in_micro_batches(forward, ids, torch.ones_like(ids), 4, [[0], [1], [2]])
    torch.autograd.backward(logps.sum())
    # Three passes, and each again on the way back.
    assert seen == ["pass"] * 6 + ["ready"] * len(list(model.parameters()))


ROWS = st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=6),
                          st.lists(st.integers(1, 2), min_size=1, max_size=6)), min_size=1, max_size=9)  # fmt: skip
"""Prompts and completions of two words, so that many begin alike."""


@given(ROWS, st.integers(1, 60), st.booleans())
def test_a_part_has_at_most_the_budget_or_one_row(
    rows: list[tuple[list[int], list[int]]], budget: int, shared: bool
) -> None:
    left, width = max(len(prompt) for prompt, _ in rows), max(len(completion) for _, completion in rows)
    ids, mask = torch.zeros(len(rows), left + width, dtype=torch.long), torch.zeros(len(rows), left + width).long()
    for row, (prompt, completion) in enumerate(rows):
        span = slice(left - len(prompt), left + len(completion))
        ids[row, span], mask[row, span] = torch.tensor([*prompt, *completion]), 1
    parts = parts_of(ids, mask, width, budget, shared=shared)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        # The last token of a row predicts nothing, so a tree has fewer than the rows have.
        tree = prefix_tree(ids[part], mask[part], width).ids
        passed, _, _ = cut(ids, mask, width, torch.tensor(part))
        assert len(part) == 1 or (tree if shared else passed).numel() <= budget


def test_rows_that_begin_alike_are_one_part() -> None:
    rows = torch.tensor([[1, 1, 1, 1, 2], [5, 5, 5, 5, 1], [1, 1, 1, 1, 3], [5, 5, 5, 5, 2]])
    assert sorted(map(sorted, parts_of(rows, torch.ones_like(rows), 2, 6, shared=True))) == [[0, 2], [1, 3]]
    assert len(parts_of(rows, torch.ones_like(rows), 2, 6, shared=False)) == 4


def test_a_pass_has_only_the_padding_that_its_rows_need() -> None:
    """One long row made every pass as wide as itself."""
    mask = torch.zeros(9, 60, dtype=torch.long)
    mask[:, 28:36] = 1
    mask[4] = 1
    seen: list[int] = []

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(ids.numel())
        return ids[:, -width:].float(), ids[:, -width:].float()

    ids = torch.arange(540).view(9, 60)
    parts = parts_of(ids, mask, 30, 64, shared=False)
    logps, entropies = in_micro_batches(forward, ids, mask, 30, parts)
    assert seen == [64, 60]
    expected = (ids * mask)[:, 30:]
    assert entropies is not None
    torch.testing.assert_close(logps * mask[:, 30:], expected.float())
    torch.testing.assert_close(entropies * mask[:, 30:], expected.float())
