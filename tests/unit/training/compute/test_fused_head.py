"""TRL's fused head scores the tokens that learn, on a CPU too, and the same as when it scores every token; where
ZeRO-3 splits its weight, it also takes the whole copy that a pass of several keeps."""

import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import trl.trainer.utils as trl_utils
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from orchestra.training.compute.fused_head import adapt_head
from orchestra.training.grpo.passes.micro_batches import in_micro_batches
from tests.support.worlds import tiny_model

IGNORED = -100


def scored(monkeypatch: pytest.MonkeyPatch, *, alone: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Log-probabilities, the gradient of the embeddings, and how many positions went through the head."""
    monkeypatch.setattr(trl_utils, "_use_triton", lambda device: False)
    if alone:
        adapt_head()
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


class Status(enum.Enum):
    """DeepSpeed's states of a weight, as far as TRL asks for them."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose head weight is whole only while it is gathered, as under ZeRO-3."""
    model: Any = tiny_model()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    weight = model.lm_head.weight
    whole, empty = weight.data, weight.data.new_empty(0)

    @contextmanager
    def gathered(weights: list[Any]) -> Iterator[None]:
        (one,) = weights
        one.data, one.ds_status = whole, Status.AVAILABLE
        yield
        one.data, one.ds_status = empty, Status.NOT_AVAILABLE

    zero = "deepspeed.runtime.zero"
    for name in ("deepspeed", "deepspeed.runtime", zero, f"{zero}.partition_parameters"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    names: Any = sys.modules
    names["deepspeed"].zero = SimpleNamespace(GatheredParameters=gathered)
    names[f"{zero}.partition_parameters"].ZeroParamStatus = Status
    monkeypatch.setattr("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled", lambda: True)
    weight.data, weight.ds_status = empty, Status.NOT_AVAILABLE
    return model


def head_gradient(model: Any, parts: int) -> torch.Tensor:
    """Of the log-probabilities of six rows' last four tokens, in so many passes."""
    ids = torch.randint(8, 300, (6, 12), generator=torch.Generator().manual_seed(0))

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, None]:
        labels = ids.clone()
        labels[:, :-width] = IGNORED
        return model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs[:, -width:], None

    logps, _ = in_micro_batches(forward, ids, torch.ones_like(ids), 4, torch.arange(6).view(parts, -1).tolist())
    (found,) = torch.autograd.grad(logps.sum(), [model.lm_head.weight])
    return found


@pytest.mark.parametrize("parts", [1, 6])
def test_a_split_weight_has_the_gradient_of_a_whole_one(parts: int, split: Any) -> None:
    adapt_head()
    adapt_head()
    whole: Any = tiny_model()
    whole.lm_head.weight = torch.nn.Parameter(whole.lm_head.weight.detach().clone())
    whole.lm_head.weight.ds_status = Status.AVAILABLE
    for model in (split, whole):
        trl_utils.add_fused_lm_head(model)
    torch.testing.assert_close(head_gradient(split, parts), head_gradient(whole, 1))
    assert not split.lm_head.weight.numel()
