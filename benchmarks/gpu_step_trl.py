"""TRL's side of `benchmarks.gpu_step`, in an environment that has TRL and vLLM; it imports nothing of this project."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Work:
    """What a step is, for both sides."""

    examples: int = 8
    group: int = 8
    tokens: int = 512
    """Of an episode; a random model never ends one earlier."""
    steps: int = 8
    micro_batch: int = 4
    gpu_memory: float = 0.3
    """vLLM's share of the GPU."""
    lora: int | None = None
    """Rank of adapters; None: all weights are trained."""
    device: str = "gpu"

    def advantages(self, count: int) -> list[float]:
        """1 and -1 in turns."""
        return [1.0 - 2.0 * (row % 2) for row in range(count)]


@dataclass
class Timed:
    """Seconds and tokens of each step."""

    steps: list[float] = field(default_factory=list)
    generated: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    last: float = field(default_factory=time.perf_counter)

    @staticmethod
    def now() -> float:
        """The time once the GPU has done what it was asked."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def generating(self) -> Iterator[None]:
        began = self.now()
        yield
        self.generated.append(self.now() - began)

    def wrote(self, tokens: int) -> None:
        self.tokens.append(tokens)

    def step(self) -> None:
        now = self.now()
        self.steps.append(now - self.last)
        self.last = now
        # What was measured stays visible where the run ends before the last step.
        before = f", of it {self.generated[-1]:.2f} s before training" if self.generated else ""
        print(f"step {len(self.steps)}: {self.steps[-1]:.2f} s{before}", file=sys.stderr, flush=True)

    def means(self, warm: int) -> dict[str, float]:
        parts: dict[str, list[Any]] = {"step_s": self.steps, "generate_s": self.generated, "tokens": self.tokens}
        return {name: statistics.mean(values[warm:-1]) for name, values in parts.items()}


def peak_gib() -> float:
    """Most memory that this process's tensors took on the GPU; 0 without one."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Figures of TRL's own GRPO with colocated vLLM on the prompts of `task`."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    work, base, clock = Work(**task["work"]), task["base"], Timed()
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    texts = [tokenizer.decode(ids) for ids in task["prompts"]]
    rows = work.examples * work.group
    syncs: list[float] = []

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch: Any = super()._generate_and_score_completions(inputs)
            given = work.advantages(len(batch["advantages"]))
            batch["advantages"] = torch.tensor(given, device=batch["advantages"].device)
            return batch

        def _generate(self, prompts: Any) -> Any:
            with clock.generating():
                found: Any = super()._generate(prompts)
            clock.wrote(sum(map(len, found[1])))
            return found

    class Steps(TrainerCallback):
        def on_step_end(self, *given: Any, **named: Any) -> None:
            clock.step()

    from trl.generation import vllm_generation

    engine: Any = vllm_generation.VLLMGeneration
    synced = engine.sync_weights

    def timed_sync(self: Any) -> None:
        began = clock.now()
        synced(self)
        syncs.append(clock.now() - began)

    engine.sync_weights = timed_sync
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, report_to=[], disable_tqdm=True, save_strategy="no", logging_steps=1, seed=0,
            max_steps=work.steps + 1, per_device_train_batch_size=work.micro_batch,
            gradient_accumulation_steps=rows // work.micro_batch, num_generations=work.group,
            max_completion_length=work.tokens, temperature=1.0, beta=0.0, loss_type="dapo", learning_rate=2e-6,
            lr_scheduler_type="constant", bf16=True, use_cpu=not torch.cuda.is_available(), gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False}, shuffle_dataset=False, use_vllm=True,
            vllm_mode="colocate", vllm_gpu_memory_utilization=work.gpu_memory,
            vllm_max_model_length=max(map(len, task["prompts"])) + work.tokens + 8,
        )  # fmt: skip
        peft = None
        if work.lora is not None:
            from peft import LoraConfig

            peft = LoraConfig(r=work.lora, lora_alpha=2 * work.lora, target_modules="all-linear")
        dtype = torch.float32 if work.lora is None else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        trainer = Trainer(
            model=model, args=arguments, reward_funcs=[lambda completions, **row: [0.0] * len(completions)],
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]), processing_class=tokenizer,
            callbacks=[Steps()], peft_config=peft,
        )  # fmt: skip
        clock.last = clock.now()
        trainer.train()
    warm = task["warm"]
    return {**clock.means(warm), "sync_s": statistics.mean(syncs[warm : work.steps]), "peak_gib": peak_gib()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_step_trl", description=__doc__)
    parser.add_argument("file", type=Path, help="the task of benchmarks.gpu_step; the figures replace it")
    file = parser.parse_args().file
    file.write_text(json.dumps(measure(json.loads(file.read_text()))))
