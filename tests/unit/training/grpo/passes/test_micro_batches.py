"""Passes of a few rows that are one backward pass: no weight's gradient is ready before the last of them."""

from typing import Any

import torch

from orchestra.training.grpo.passes.micro_batches import in_micro_batches
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
