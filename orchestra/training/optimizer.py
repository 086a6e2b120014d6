"""Muon for the hidden matrices, AdamW for the rest, as one optimizer that a Trainer can save and resume.

torch.optim.Muon orthogonalises in bfloat16, which CPUs without AMX emulate: 5-7 times slower than float32 at these
sizes (measured, one thread). Ours does the same steps in the weights' precision, all matrices of one shape at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from orchestra.config.compute import Compute

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration (Jordan et al., Muon)."""
STEPS = 5
MOMENTUM = 0.95


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest semi-orthogonal matrices, approximately (singular values within about 0.7-1.2): (n, rows, cols)."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + torch.baddbmm(b * gram, gram, gram, alpha=c) @ x
    result: torch.Tensor = x.transpose(1, 2) if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Nesterov form), for 2-D weights; tall matrices step by sqrt(rows / cols) more."""

    def __init__(self, params: list[torch.nn.Parameter], *, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    assert p.grad is not None
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - MOMENTUM)
                    updates.append(p.grad.lerp(buffer, MOMENTUM))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.add_(update, alpha=-scale)


class OwnOptimizer:
    """What a Trainer inherits first so that it steps with `new_optimizer()`, which is set after the Trainer is made."""

    new_optimizer: Callable[[], torch.optim.Optimizer]
    optimizer: torch.optim.Optimizer | None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        # With DeepSpeed, transformers drops an optimizer that it was handed and silently takes its own default.
        if self.optimizer is None:
            self.optimizer = self.new_optimizer()
        return self.optimizer

    def _get_learning_rate(self) -> float:
        """What is logged: AdamW's, as the parameter has it. transformers takes the first group's, which is Muon's."""
        own = getattr(self.optimizer, "optimizer", self.optimizer)
        if isinstance(own, MuonAdamW):
            return float(own.param_groups[-1]["lr"])
        found: float = super()._get_learning_rate()  # type: ignore[misc]
        return found


def adamw(params: list[torch.nn.Parameter], *, lr: float) -> torch.optim.AdamW:
    """AdamW as every training here uses it: quick second moments, no weight decay.

    On a GPU torch's own choice copies all second moments in each step, 4 bytes a weight; its fused kernel does not.
    """
    fused = True if params and all(p.is_cuda for p in params) else None
    return torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)


class MuonAdamW(torch.optim.Optimizer):
    """Hidden 2-D weights step with Muon, embeddings and norms with AdamW; one learning-rate schedule scales both."""

    def __init__(self, model: torch.nn.Module, *, lr: float, muon_ratio: float = 5.0) -> None:
        tied = {id(p) for name, p in model.named_parameters() if "embed" in name or "lm_head" in name}
        hidden = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tied]
        rest = [p for p in model.parameters() if p.ndim != 2 or id(p) in tied]
        self.parts = [
            Muon(hidden, lr=lr * muon_ratio),
            adamw(rest, lr=lr),
        ]
        super().__init__([{"params": hidden, "lr": lr * muon_ratio}, {"params": rest, "lr": lr}], {})
        # One list of groups, so that a scheduler that writes here reaches the optimizers that step.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def new_optimizer(model: torch.nn.Module, compute: Compute, lr: float) -> torch.optim.Optimizer:
    """The optimizer of a training, over the weights that it trains."""
    if compute.optimizer == "adamw":
        return adamw([p for p in model.parameters() if p.requires_grad], lr=lr)
    return MuonAdamW(model, lr=lr, muon_ratio=compute.muon_ratio)
