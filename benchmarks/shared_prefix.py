"""Training passes that compute what rows share once, beside plain ones: `python -m benchmarks.shared_prefix`."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, machine, open_bench, timed
from benchmarks.command import judge, run_benchmark, usage
from orchestra.system.environment import quiet

if TYPE_CHECKING:
    import torch

BAR = 1.5
"""How many times faster the passes of a step must be."""
NOISE = 1e-4
"""Largest difference of the gradients, as a share of their norm."""


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step, as TRL hands them over."""

    ids: torch.Tensor
    mask: torch.Tensor
    width: int


@dataclass(frozen=True)
class Line:
    """Both passes, forward and backward, over one step's rows."""

    rows: int
    tokens: int
    """Of all rows, without padding."""
    packed: int
    """Of what they share and what they do not."""
    plain_s: float
    shared_s: float
    difference: float
    """Of the gradients, as a share of their norm."""


def batches(bench: Bench, steps: int, work: Path) -> list[Batch]:
    """Of real GRPO steps on the bench's examples."""
    from orchestra.training.grpo.passes import tree_attention
    from orchestra.training.grpo.trainer import train_grpo

    found: list[Batch] = []
    module: Any = tree_attention
    original = module.scored

    def scored(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> Any:
        found.append(Batch(ids, mask, width))
        return original(model, ids, mask, width)

    settings = bench.params.grpo.model_copy(
        update={"steps": steps, "eval_every": steps + 1, "save_steps": steps + 1, "processes": 1}
    )
    module.scored = scored
    try:
        train_grpo(
            copy.deepcopy(bench.model), bench.codec, bench.toolkit, bench.examples, settings, bench.params.rollout,
            bench.price, work, log=lambda numbers, step: None, evaluate=lambda model: {},
        )  # fmt: skip
    finally:
        module.scored = original
    return found


def compare(bench: Bench, steps: Sequence[Batch]) -> list[Line]:
    """Each step's rows through both passes, with one gradient for every token's log-probability."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from orchestra.training.grpo.passes import tree_attention
    from orchestra.training.grpo.passes.length_batching import by_length
    from orchestra.training.grpo.passes.prefix_tree import prefix_tree

    plain, shared = copy.deepcopy(bench.model).train(), copy.deepcopy(bench.model).train()
    for model in (plain, shared):
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    tree_attention.enable(shared)

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :-width] = -100
        module: Any = plain
        out = module(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        return out.log_probs[:, -width:], out.entropy[:, -width:]

    def gradient(model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        if model is plain:
            logps, _ = by_length(forward, batch.ids, batch.mask, batch.width)
        else:
            logps, _ = tree_attention.scored(model, batch.ids, batch.mask, batch.width)
        torch.autograd.backward((logps * weights).sum())
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    found = []
    for number, batch in enumerate(steps):
        weights = torch.randn(len(batch.ids), batch.width, generator=torch.Generator().manual_seed(number))
        one, plainly = timed(lambda: gradient(plain, batch, weights))  # noqa: B023
        other, sharing = timed(lambda: gradient(shared, batch, weights))  # noqa: B023
        packed = prefix_tree(batch.ids, batch.mask, batch.width).ids.numel()
        difference = float((one - other).norm() / one.norm())
        found.append(
            Line(len(batch.ids), int(batch.mask.sum()), packed, plainly.cpu_s, sharing.cpu_s, difference)
        )  # fmt: skip
    return found


def faster(lines: Sequence[Line]) -> float:
    """How many times, over all steps."""
    return sum(one.plain_s for one in lines) / sum(one.shared_s for one in lines)


def bars(lines: Sequence[Line]) -> dict[str, bool]:
    """By name, whether each is met."""
    return {"faster": faster(lines) >= BAR, "same gradients": max(one.difference for one in lines) <= NOISE}


def report(lines: Sequence[Line], what: str) -> str:
    """A row a step in Markdown, and whether the bars are met."""
    rows = [what, "", "| rows | tokens | computed | plain, s | shared, s | faster | gradients differ by |"]
    rows += ["|---|---|---|---|---|---|---|"]
    rows += [
        f"| {one.rows} | {one.tokens} | {one.packed} | {one.plain_s:.3f} | {one.shared_s:.3f} | "
        f"{one.plain_s / one.shared_s:.1f} x | {one.difference:.1e} |"
        for one in lines
    ]
    worst = max(one.difference for one in lines)
    return "\n".join(
        [
            *rows,
            "",
            f"Faster: {faster(lines):.1f} x (bar: {BAR} x). "
            f"Gradients differ by {worst:.1e} at most (bar: {NOISE:.0e}).",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    bench = open_bench(max(chosen.steps * 16, 64), threads=chosen.threads)
    with tempfile.TemporaryDirectory() as work:
        lines = compare(bench, batches(bench, chosen.steps, Path(work)))
    settings = bench.params.grpo
    what = f"{settings.examples_per_step} examples x {settings.group_size} samples, CPU time; {machine()}"
    print(report(lines, what))
    return judge(bars(lines))


if __name__ == "__main__":
    run_benchmark(main)
