"""Memory forecast against measured peaks of a training step: `python -m benchmarks.memory`.

Each shape trains in a process of its own, after a tiny one has loaded every library: what the process grows by from
there to its peak is what the step needs. Linux only, since the kernel tells the peak.
"""

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clock import resident
from benchmarks.command import judge, run_benchmark, usage
from orchestra.system.memory import ModelShape, TrainingPlan, training

BAR = 0.15
"""Most that a forecast may be off."""
MIB = 1 << 20
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Settings of glibc under which freed tensors go back to the kernel at once, so that the peak is of what is alive."""


@dataclass(frozen=True)
class Case:
    """One shape and the way it is trained."""

    name: str
    shape: ModelShape
    plan: TrainingPlan


CASES = (
    Case("wide, adamw", ModelShape(2, 1024, 3072, 16, 8, 64, 4096, False), TrainingPlan(rows=2, tokens=128)),
    Case("long, muon", ModelShape(4, 256, 768, 4, 2, 64, 2048, True), TrainingPlan(rows=4, tokens=512, muon=True)),
    Case(
        "large vocabulary, checkpointing",
        ModelShape(3, 256, 768, 4, 2, 64, 40_000, True),
        TrainingPlan(rows=2, tokens=384, checkpointing=True),
    ),
    Case(
        "wide, several passes in one backward pass",
        ModelShape(2, 1024, 3072, 16, 8, 64, 4096, False),
        TrainingPlan(rows=1, tokens=128, accumulates=True, one_backward=True, checkpointing=True),
    ),
    Case(
        "wide, several passes with a backward pass each",
        ModelShape(2, 1024, 3072, 16, 8, 64, 4096, False),
        TrainingPlan(rows=1, tokens=128, accumulates=True, checkpointing=True),
    ),
)
PASSES = 4
"""Of a step that has several."""
WARM_UP = Case("warm-up", ModelShape(1, 64, 64, 2, 1, 32, 256, True), TrainingPlan(rows=1, tokens=8))


def config(shape: ModelShape) -> Any:
    """The shape as transformers reads it."""
    from transformers import Qwen3Config

    return Qwen3Config(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=4096,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, use_cache=False,
    )  # fmt: skip


def train(case: Case, steps: int = 2) -> None:
    """Optimizer steps on random tokens: the first makes the optimizer's state, the second is at the peak."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    from orchestra.training.compute.fused_head import adapt_head
    from orchestra.training.grpo.passes.micro_batches import in_micro_batches
    from orchestra.training.optimizer import MuonAdamW, adamw

    adapt_head()
    model = AutoModelForCausalLM.from_config(config(case.shape), dtype=torch.float32)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model.train()

    def forward(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(input_ids=ids, labels=ids, attention_mask=mask, fused_lm_head=True)
        return out.log_probs, out.entropy

    if case.plan.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = MuonAdamW(model, lr=1e-4) if case.plan.muon else adamw(list(model.parameters()), lr=1e-4)
    for _ in range(steps):
        rows = case.plan.rows * (PASSES if case.plan.accumulates else 1)
        ids = torch.randint(1, case.shape.vocabulary, (rows, case.plan.tokens))
        parts = [list(range(at, at + case.plan.rows)) for at in range(0, rows, case.plan.rows)]
        if case.plan.accumulates and not case.plan.one_backward:
            for part in parts:
                torch.autograd.backward(-forward(ids[part], torch.ones_like(ids[part]), case.plan.tokens)[0].mean())
        else:
            logps, _ = in_micro_batches(forward, ids, torch.ones_like(ids), case.plan.tokens, parts)
            torch.autograd.backward(-logps.mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def measure(name: str) -> int:
    """Bytes that the step of a case needs at its peak; in a process that did nothing else."""
    train(WARM_UP)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    train(next(case for case in CASES if case.name == name))
    return resident("VmHWM") - before


def bars(off: dict[str, float]) -> dict[str, bool]:
    """By case, whether its forecast is off by no more than it may be."""
    return {name: abs(share) <= BAR for name, share in off.items()}


def main(given: Sequence[str] | None = None) -> int:
    """Print a row for each case."""
    parser = usage(__doc__)
    parser.add_argument("--case", choices=[case.name for case in CASES], help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if chosen.case is not None:
        print(measure(chosen.case))
        return 0
    print("| shape | forecast, MiB | measured, MiB | off by |\n| --- | --- | --- | --- |")
    off: dict[str, float] = {}
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--case", case.name]
        env = {**os.environ, **RETURNING}
        measured = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout)
        told = training(case.shape, case.plan)
        off[case.name] = told.total / measured - 1
        print(f"| {case.name} | {told.total / MIB:.0f} | {measured / MIB:.0f} | {off[case.name]:+.1%} |")
    return judge(bars(off))


if __name__ == "__main__":
    run_benchmark(main)
