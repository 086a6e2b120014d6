"""Muon for the hidden matrices, AdamW for the rest, as one optimizer that a Trainer can save and resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class MuonAdamW(torch.optim.Optimizer):
    """Hidden 2-D weights step with Muon, embeddings and norms with AdamW; one learning-rate schedule scales both."""

    def __init__(
        self, model: torch.nn.Module, *, lr: float, muon_ratio: float = 5.0, weight_decay: float = 0.0
    ) -> None:
        tied = {id(p) for name, p in model.named_parameters() if "embed" in name or "lm_head" in name}
        hidden = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tied]
        rest = [p for p in model.parameters() if p.ndim != 2 or id(p) in tied]
        self.parts = [
            torch.optim.Muon(hidden, lr=lr * muon_ratio, momentum=0.95, weight_decay=weight_decay),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
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
