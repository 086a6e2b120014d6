"""Proof that a server has the trainer's weights: both score the same fixed sequences after every sync."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestra.errors import TrainingError
from orchestra.serving.releases.vllm import Tolerance, root_mean_square

if TYPE_CHECKING:
    import torch

MOST_TOKENS = 512
"""Of one sequence."""
NOISE = {"float32": 2e-5, "bfloat16": 0.05}
"""By which two kernels differ in a token's log-probability, as a standard deviation."""
MEASURABLE = 8.0
"""Times the noise that the trainer must have moved before a server can be caught standing still."""
FOLLOWED = 0.5
"""Share of the trainer's movement that the server must have made; a server with the old weights has made none."""


@dataclass
class WeightCanary:
    """Compares both sides' log-probabilities, and what changed in them since the sync before."""

    sequences: list[list[int]]
    """Token ids: (sequence, time)."""
    dtype: str
    tolerance: Tolerance
    _before: tuple[list[float], list[float]] | None = field(default=None)

    def check(self, trainer: Sequence[float], served: Sequence[float]) -> dict[str, float]:
        """Measures of a sync; raises `TrainingError` when the server does not have the trainer's weights."""
        if len(trainer) != len(served) or not all(map(math.isfinite, [*trainer, *served])):
            raise _failure("the server did not score every token of the canary")
        apart = [a - b for a, b in zip(trainer, served, strict=True)]
        if (why := self.tolerance.exceeded(apart)) is not None:
            raise _failure(why)
        measures = {
            "engine/canary_gap": max(map(abs, apart)), "engine/canary_rms": root_mean_square(apart),
            "engine/canary_proven": 0.0,
        }  # fmt: skip
        if self._before is not None:
            ours, theirs = self._before
            moved = [a - b for a, b in zip(trainer, ours, strict=True)]
            size = sum(x * x for x in moved)
            if math.sqrt(size) > MEASURABLE * NOISE[self.dtype] * math.sqrt(len(moved)):
                change = [a - b for a, b in zip(served, theirs, strict=True)]
                share = sum(x * y for x, y in zip(moved, change, strict=True)) / size
                if share < FOLLOWED:
                    raise _failure(f"the server followed {share:.0%} of the trainer's last movement")
                measures["engine/canary_proven"] = 1.0
        self._before = list(trainer), list(served)
        return measures

    def trainer_scores(self, model: Any) -> list[float]:
        """Log-probability of every token but the first of each sequence, as `model` finds it."""
        import torch

        was = model.training
        model.eval()
        device = next(model.parameters()).device
        # One pass has fewer kernels for a GPU to start; a CPU would only compute the padding besides.
        passes = [[ids] for ids in self.sequences] if device.type == "cpu" else [self.sequences]
        try:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.dtype == "bfloat16"):
                return [score for some in passes for score in _scores(model, some)]
        finally:
            model.train(was)


def _scores(model: Any, sequences: Sequence[Sequence[int]]) -> list[float]:
    """`trainer_scores` of sequences in one pass: the padding comes last, where no token attends to it."""
    import torch

    device = next(model.parameters()).device
    rows = [torch.tensor(ids, device=device) for ids in sequences]
    logits = model(input_ids=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), use_cache=False).logits
    scores: list[torch.Tensor] = []
    for row, found in zip(rows, logits, strict=True):
        known = found[: len(row) - 1].float()
        scores.append(known.gather(1, row[1:, None])[:, 0] - known.logsumexp(dim=-1))
    return torch.cat(scores).tolist()


def _failure(what: str) -> TrainingError:
    return TrainingError(
        f"the rollout server does not have the trainer's weights: {what}",
        where="grpo.engine", fix="run the stage again: it continues; or set grpo.engine to in_process",
    )  # fmt: skip
