"""Memory forecast against measured peaks of a training step: `python -m benchmarks.memory`.

Each shape trains in a process of its own, after a tiny one has loaded every library: what the process grows by from
there to its peak is what the step needs. Linux only, since the kernel tells the peak.
"""

import gc
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clock import resident
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
)
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

    from orchestra.training.optimizer import MuonAdamW, adamw

    model = AutoModelForCausalLM.from_config(config(case.shape), dtype=torch.float32)
    model.train()
    if case.plan.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = MuonAdamW(model, lr=1e-4) if case.plan.muon else adamw(list(model.parameters()), lr=1e-4)
    for _ in range(steps):
        ids = torch.randint(1, case.shape.vocabulary, (case.plan.rows, case.plan.tokens))
        model(input_ids=ids, labels=ids).loss.backward()
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


def main() -> int:
    """Print a row for each case; exit code 1 when a forecast is off by more than the bar."""
    print("| shape | forecast, MiB | measured, MiB | off by |\n| --- | --- | --- | --- |")
    off = []
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", case.name]
        env = {**os.environ, **RETURNING}
        measured = int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)
        told = training(case.shape, case.plan)
        off.append(told.total / measured - 1)
        print(f"| {case.name} | {told.total / MIB:.0f} | {measured / MIB:.0f} | {off[-1]:+.1%} |")
    return int(max(map(abs, off)) > BAR)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(sys.argv[1]))
    else:
        sys.exit(main())
