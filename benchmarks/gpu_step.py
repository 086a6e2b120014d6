"""A GRPO step through vLLM on a GPU, beside TRL's own: `python -m benchmarks.gpu_step BASE --trl PYTHON`.

Both train the same checkpoint on the same prompts, with groups, lengths, micro-batches and precision alike. Both
give their episodes the advantages 1 and -1 in turns, so both train every row. BASE should hold random weights: such a
model ends no episode early. PYTHON is an interpreter with TRL and vLLM in one environment, as TRL's colocated vLLM
needs; this project's server runs in .venv-vllm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_step_trl import Timed, Work
from orchestra.config.engine import RolloutServer
from orchestra.config.schema import Params, load_params
from orchestra.rollout.render import Codec
from orchestra.system.environment import quiet
from orchestra.system.memory import GIB, ModelShape, TrainingPlan, training
from orchestra.types import Example

ROOT = Path(__file__).parents[1]
PROFILE = "models/recipes/qwen3-0.6b/params.yaml"
WARM = 2
"""Steps that are not counted: the first ones compile and allocate."""
TITLES = {"ours": "this project", "trl": "TRL, vLLM colocated"}


@dataclass(frozen=True)
class Figures:
    """Means of the counted steps, in seconds and GiB."""

    step_s: float
    generate_s: float
    """Weights to the server and episodes."""
    sync_s: float
    tokens: float
    """Written in a step."""
    peak_gib: float
    """Most memory that the trainer's tensors took on the GPU; with TRL they include vLLM's, in the same process."""
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second while episodes are played."""
        return self.tokens / max(self.generate_s - self.sync_s, 1e-9)


def examples_of(params: Params, count: int) -> tuple[list[Example], Any]:
    """New training examples of the profile with its simulated tools, and their toolkit."""
    from orchestra.synthesis.dataset.generate import generate
    from orchestra.tools.toolkit import Toolkit

    toolkit = Toolkit.from_params(params, ROOT)
    made = generate(params, toolkit)
    return made.examples["train"][:count], made.known_to(toolkit)


def ours(base: Path, work: Work, examples: Sequence[Example], toolkit: Any, params: Params) -> Figures:
    """Steps of the real trainer with its rollout server."""
    import torch

    from orchestra.rollout.policies.transformers import load_model
    from orchestra.training import rollouts
    from orchestra.training.compute.arguments import training_dtype
    from orchestra.training.compute.lora import adapted
    from orchestra.training.engine.sync import RolloutEngine
    from orchestra.training.grpo import train_grpo

    codec = Codec.load(base)
    prompts = [codec.prompt(example) for example in examples]
    most = max(map(len, prompts)) + work.tokens
    limits = params.rollout.model_copy(update={"max_turns": 1, "max_turn_tokens": work.tokens, "max_tokens": most + 8})
    server = RolloutServer.model_validate(
        {"device": work.device, "dtype": "bfloat16", "gpu_memory": work.gpu_memory, "sequences": 256}
    )
    settings = params.grpo.model_copy(
        update={
            "steps": work.steps, "examples_per_step": work.examples, "group_size": work.group, "engine": "vllm",
            "server": server, "micro_batch": work.micro_batch, "eval_every": work.steps + 1,
            "save_steps": work.steps + 1, "max_infrastructure_failures": 1.0, "lora": work.adapters,
        }
    )  # fmt: skip
    clock = Timed()
    module: Any = rollouts
    called = module.Rounds.__call__

    def with_advantages(self: Any, *given: Any, **named: Any) -> Any:
        with clock.generating():
            found = called(self, *given, **named)
        self.advantages = work.advantages(len(self.advantages))
        clock.wrote(sum(map(len, found["completion_ids"])))
        return found

    measured: list[dict[str, float]] = []

    def log(metrics: dict[str, float], step: int) -> None:
        if "train/reward" in metrics:
            clock.step()
            measured.append(metrics)

    with tempfile.TemporaryDirectory() as folder:
        model: Any = load_model(base, training_dtype(settings), settings.attention)
        if settings.lora is not None:
            model = adapted(model, settings.lora, settings.seed)
        engine = RolloutEngine(
            ROOT, Path(folder), base, codec, settings, [ids[:512] for ids in prompts[:4]], max_len=most + 8, say=print
        )
        module.Rounds.__call__ = with_advantages
        try:
            train_grpo(
                model, codec, toolkit, examples, settings, limits, toolkit.catalogue.policy_price, Path(folder),
                log=log, evaluate=lambda current: {}, engine=engine,
            )  # fmt: skip
        finally:
            module.Rounds.__call__ = called
            engine.close()
    syncs = [one.get("train/engine/sync_s", 0.0) for one in measured[WARM:]]
    last = {name: value for name, value in measured[-1].items() if "engine" in name or name == "train/grad_norm"}
    peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0
    return Figures(**clock.means(WARM), sync_s=statistics.mean(syncs), peak_gib=peak, measures=last)


def forecast(base: Path, work: Work, longest: int) -> float:
    """GiB that the step's forecast tells."""
    plan = TrainingPlan(
        rows=work.micro_batch, tokens=longest, accumulates=True, bfloat16=True, checkpointing=True, lora=work.lora
    )
    return training(ModelShape.load(base), plan).total / GIB


def table(found: dict[str, Figures], told: float) -> str:
    """The figures in Markdown; ratios above 1 where this project is ahead."""
    rows = ["| | s a step | s of it before training | weights to vLLM, s | tokens/s written | peak, GiB |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for name, one in found.items():
        numbers = f"{one.step_s:.2f} | {one.generate_s:.2f} | {one.sync_s:.2f} | {one.rate:,.0f} | {one.peak_gib:.1f}"
        rows.append(f"| {TITLES[name]} | {numbers} |")
    if len(found) > 1:
        rows += ["", f"TRL's step takes {found['trl'].step_s / found['ours'].step_s:.2f} times as long."]
    if "ours" in found:
        rows.append(f"Forecast of the trainer's peak: {told:.1f} GiB, measured {found['ours'].peak_gib:.1f}.")
        rows.append(f"The last step: {found['ours'].measures}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="folder of a checkpoint")
    parser.add_argument("--trl", type=Path, help="an interpreter with TRL and vLLM; without it ours is measured alone")
    for name, kind in Work.OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Work, name))
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(arguments)
    work = Work(**{name: getattr(chosen, name) for name in Work.OPTIONS})
    params = load_params(ROOT / PROFILE)
    examples, toolkit = examples_of(params, work.examples * work.steps)
    codec = Codec.load(chosen.base)
    prompts = [codec.prompt(example) for example in examples]
    found = {"ours": ours(chosen.base, work, examples, toolkit, params)}
    if chosen.trl is not None:
        found["trl"] = theirs(chosen.trl, chosen.base, work, prompts)
    lengths = [len(ids) for ids in prompts]
    print(f"{work.examples} prompts of {min(lengths)} to {max(lengths)} tokens, {work.group} times each\n")
    print(table(found, forecast(chosen.base, work, max(lengths) + work.tokens)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
    return 0


def theirs(python: Path, base: Path, work: Work, prompts: Sequence[Sequence[int]]) -> Figures:
    """Steps of TRL's trainer, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        task.write_text(json.dumps({"base": str(base), "work": asdict(work), "prompts": prompts, "warm": WARM}))
        command = [str(python), "-m", "benchmarks.gpu_step_trl", str(task)]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        return Figures(**json.loads(task.read_text()))


if __name__ == "__main__":
    sys.exit(main())
