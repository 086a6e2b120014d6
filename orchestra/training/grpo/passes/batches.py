"""TRL's batch of a step: rows of it, and the importance weights of its tokens."""

from __future__ import annotations

from typing import Any

import torch

IN_WIDTH = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "ref_per_token_logps",
    "sampling_per_token_logps",
)  # fmt: skip
"""What a batch holds for each token of the completions."""


def weighed(batch: dict[str, Any], logps: Any, cap: float) -> tuple[Any, Any]:
    """Truncated importance weights of a server's tokens, and the sums (KL, clipped, tokens) of the mismatch.

    `logps` are the trainer's, (row, time); those before the first step of a round where the batch has them. The KL is
    the estimator r - 1 - log r of the server's distribution from the trainer's. Unknown tokens weigh 1.
    """
    old = batch.get("old_per_token_logps")
    difference = (logps if old is None else old) - batch["sampling_per_token_logps"]
    known = torch.isfinite(difference) & (batch["completion_mask"] * batch["tool_mask"] > 0)
    difference = torch.where(known, difference, torch.zeros_like(difference)).clamp(-20.0, 20.0)
    ratio = difference.exp()
    sums = torch.stack([(difference.expm1() - difference).sum(), (ratio > cap).sum().float(), known.sum().float()])
    return ratio.clamp(max=cap), sums


def keep_rows(batch: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Every per-row tensor of a generation batch, for the chosen rows only, less the padding they no longer need."""
    total = batch["advantages"].shape[0]
    kept = {k: v[rows] if getattr(v, "ndim", 0) and v.shape[0] == total else v for k, v in batch.items()}
    width = int(kept["completion_mask"].sum(dim=1).max())
    left = kept["prompt_mask"].shape[1] - int(kept["prompt_mask"].sum(dim=1).max())
    for key in IN_WIDTH:
        if key in kept:
            kept[key] = kept[key][:, :width]
    for key in ("prompt_ids", "prompt_mask"):
        kept[key] = kept[key][:, left:]
    return kept
