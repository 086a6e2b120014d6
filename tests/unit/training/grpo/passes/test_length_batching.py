"""Passing rows through the model by length changes no log-probability, no entropy and no gradient."""

import random

import torch

from orchestra.training.grpo.passes.length_batching import by_length
from tests.support.worlds import tiny_model

ROWS = 7


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Prompts padded on the left, completions on the right, as TRL hands them over; some completions are empty."""
    rng = random.Random(seed)
    prompts, completions = [rng.randint(1, 20) for _ in range(ROWS)], [rng.randint(0, 25) for _ in range(ROWS)]
    split, width = max(prompts) + 2, max(completions) + 3
    ids = torch.randint(8, 300, (ROWS, split + width), generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        mask[row, split - prompt : split + completion] = 1
    return ids * mask, mask, width


def test_nothing_changes_but_the_padding() -> None:
    model = tiny_model()
    fed: list[tuple[int, ...]] = []

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        fed.append(tuple(ids.shape))
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
        logps = torch.log_softmax(logits, -1)
        kept = mask[:, -width:]
        chosen = logps.gather(2, ids[:, -width:, None]).squeeze(2)
        return chosen * kept, -(logps.exp() * logps).sum(-1) * kept

    for seed in range(4):
        ids, mask, width = batch(seed)
        weights = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(seed))
        found = []
        for rows in (ROWS, 3):
            model.zero_grad()
            fed.clear()
            logps, entropies = by_length(forward, ids, mask, width, rows)
            assert entropies is not None
            torch.autograd.backward((logps * weights).sum())
            found.append(
                (logps.detach(), entropies.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None])
            )
        assert [shape[0] for shape in fed] == [3, 3, 1]
        assert sum(rows * wide for rows, wide in fed) < ids.numel()
        (one, entropy, gradient), (other, other_entropy, other_gradient) = found
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(entropy, other_entropy, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(gradient, other_gradient, atol=1e-4, rtol=1e-3)
