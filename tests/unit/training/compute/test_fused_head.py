"""TRL's fused head scores the tokens that learn, on a CPU too, and the same as when it scores every token."""

from typing import Any

import pytest
import torch
import trl.trainer.utils as trl_utils
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from orchestra.training.compute.fused_head import score_labels_alone
from tests.support.worlds import tiny_model

IGNORED = -100


def scored(monkeypatch: pytest.MonkeyPatch, *, alone: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Log-probabilities, the gradient of the embeddings, and how many positions went through the head."""
    monkeypatch.setattr(trl_utils, "_use_triton", lambda device: False)
    if alone:
        score_labels_alone()
    seen: list[int] = []
    apply: Any = ChunkedLogProbFunction.apply

    def counted(hidden: torch.Tensor, *rest: object) -> object:
        seen.append(len(hidden))
        return apply(hidden, *rest)

    monkeypatch.setattr(ChunkedLogProbFunction, "apply", counted)
    model = tiny_model(hidden=32)
    trl_utils.add_fused_lm_head(model)
    ids = torch.arange(24).view(2, 12) % 50
    labels = ids.clone()
    labels[:, :8] = IGNORED
    out = model(input_ids=ids, labels=labels, fused_lm_head=True)
    (-out.log_probs.sum()).backward()
    gradient = model.get_input_embeddings().weight.grad
    assert isinstance(gradient, torch.Tensor)
    return out.log_probs.detach(), gradient, sum(seen)


def test_only_labelled_positions_are_scored_and_nothing_else_changes() -> None:
    with pytest.MonkeyPatch.context() as patch:
        logps, gradient, every = scored(patch, alone=False)
    with pytest.MonkeyPatch.context() as patch:
        again, same, few = scored(patch, alone=True)
    torch.testing.assert_close(again, logps)
    torch.testing.assert_close(same, gradient)
    assert (every, few) == (22, 8)
