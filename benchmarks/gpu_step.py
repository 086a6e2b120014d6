"""A GRPO step through vLLM on a GPU, beside TRL's own: `python -m benchmarks.gpu_step BASE --trl PYTHON`.

Both train the same checkpoint on the same prompts, with groups, lengths and precision alike. TRL's passes have
`--micro-batch` rows; this project's have at most the tokens of as many of the longest rows. Both give their episodes
the advantages 1 and -1 in turns, so both train every row. BASE should hold random weights: such a model ends no episode
early. PYTHON is an interpreter with TRL and vLLM in one environment, as TRL's colocated vLLM needs; this project's
server runs in .venv-vllm.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.bench import ROOT, open_world
from benchmarks.command import run_benchmark, usage
from benchmarks.gpu_step_trl import Timed, Work, peak_gib
from orchestra.config.compute import Lora
from orchestra.config.engine import RolloutServer
from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError
from orchestra.rollout.render import Codec
from orchestra.system.environment import quiet
from orchestra.system.machine import plan_of
from orchestra.system.memory import GIB, ModelShape, training
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example

PROFILE = "models/recipes/qwen3-0.6b/params.yaml"
WARM = 2
"""First steps that are not counted: they compile and allocate. Nor is one after the last: a training ends with weights
for a development check."""
SPARE = 4
"""Examples that are made for each that is needed: about half read the same as text."""
PARTS = ("write", "load", "canary")
"""Of giving the weights to the server: the files, the server that reads them, the proof."""
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
    sync_parts: dict[str, float] = field(default_factory=dict)
    """Seconds of `PARTS`."""

    @property
    def rate(self) -> float:
        """Tokens a second while episodes are played."""
        return self.tokens / max(self.generate_s - self.sync_s, 1e-9)


def params_of(params: Params, work: Work, longest: int) -> Params:
    """The profile with that work a step; the longest prompt has so many tokens."""
    limits = {"max_turns": 1, "max_turn_tokens": work.tokens, "max_tokens": longest + work.tokens + 8}
    server = RolloutServer.model_validate(
        {"device": work.device, "dtype": "bfloat16", "gpu_memory": work.gpu_memory, "sequences": 256}
    )
    settings = {
        "steps": work.steps + 1, "examples_per_step": work.examples, "group_size": work.group, "engine": "vllm",
        "server": server, "micro_batch": work.micro_batch, "eval_every": work.steps + 2,
        "save_steps": work.steps + 2, "max_infrastructure_failures": 1.0,
        "lora": None if work.lora is None else Lora(rank=work.lora, alpha=2 * work.lora),
    }  # fmt: skip
    changed = {
        "rollout": params.rollout.model_copy(update=limits),
        "grpo": params.grpo.model_copy(update=settings),
    }
    return params.model_copy(update=changed)


def ours(base: Path, work: Work, examples: Sequence[Example], toolkit: Toolkit, params: Params) -> Figures:
    """Steps of the real trainer with its rollout server."""
    from orchestra.rollout.policies.transformers import load_model
    from orchestra.training.compute.arguments import training_dtype
    from orchestra.training.compute.lora import adapted
    from orchestra.training.grpo import rollouts
    from orchestra.training.grpo.engine.canary import MOST_TOKENS
    from orchestra.training.grpo.engine.sync import RolloutEngine
    from orchestra.training.grpo.trainer import train_grpo
    from tasks.grpo import CANARIES

    codec, settings, limits = Codec.load(base), params.grpo, params.rollout
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
        canaries = [codec.prompt(example)[:MOST_TOKENS] for example in examples[:CANARIES]]
        engine = RolloutEngine(
            ROOT, Path(folder), base, codec, settings, canaries, max_len=limits.max_tokens, say=print
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
    print(f"attention of training: {model.config._attn_implementation}", flush=True)
    counted = measured[WARM : work.steps]
    sync_s, *parts = (statistics.mean(one[f"train/engine/{of}_s"] for one in counted) for of in ("sync", *PARTS))
    last = {name: value for name, value in counted[-1].items() if "engine" in name or name == "train/grad_norm"}
    return Figures(
        **clock.means(WARM), sync_s=sync_s, peak_gib=peak_gib(), measures=last,
        sync_parts=dict(zip(PARTS, parts, strict=True)),
    )  # fmt: skip


def same_as_text(codec: Codec, examples: Sequence[Example], count: int) -> list[Example]:
    """The first examples whose prompts are the same tokens when they are read as one text, as TRL reads them.

    This project cuts the user's words apart from what stands around them.
    """
    tokenizer: Any = codec.tokenizer
    prompts = ((one, codec.prompt(one)) for one in examples)
    found = [one for one, ids in prompts if tokenizer(tokenizer.decode(ids))["input_ids"] == ids]
    if len(found) < count:
        what = f"{len(found)} prompts read the same as text, not {count}"
        raise DataError(what, where="--steps", fix="ask for fewer")
    return found[:count]


def table(found: dict[str, Figures], told: float) -> str:
    """The figures in Markdown, beside the forecast in GiB; ratios above 1 where this project is ahead."""
    rows = ["| | s a step | s of it before training | weights to vLLM, s | tokens/s written | peak, GiB |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for name, one in found.items():
        numbers = f"{one.step_s:.2f} | {one.generate_s:.2f} | {one.sync_s:.2f} | {one.rate:,.0f} | {one.peak_gib:.1f}"
        rows.append(f"| {TITLES[name]} | {numbers} |")
    if len(found) > 1:
        rows += ["", f"TRL's step takes {found['trl'].step_s / found['ours'].step_s:.2f} times as long."]
    if parts := found["ours"].sync_parts:
        rows.append("Its weights to vLLM: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()))
    rows.append(f"Forecast of the trainer's peak: {told:.1f} GiB, measured {found['ours'].peak_gib:.1f}.")
    rows.append(f"The last step: {found['ours'].measures}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("base", type=Path, help="folder of a checkpoint")
    parser.add_argument("--trl", type=Path, help="an interpreter with TRL and vLLM; without it ours is measured alone")
    for one in fields(Work):
        kind = int if one.default is None else type(one.default)
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=kind, default=one.default)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(arguments)
    work = Work(**{one.name: getattr(chosen, one.name) for one in fields(Work)})
    count = work.examples * (work.steps + 1)
    params, toolkit, examples = open_world(load_params(ROOT / PROFILE), SPARE * count)
    codec = Codec.load(chosen.base)
    examples = same_as_text(codec, examples, count)
    prompts = [codec.prompt(example) for example in examples]
    lengths = [len(ids) for ids in prompts]
    params = params_of(params, work, max(lengths))
    told = training(ModelShape.load(chosen.base), plan_of(params, "grpo", gpu=work.device == "gpu")).total / GIB
    print(f"{work.examples} prompts of {min(lengths)} to {max(lengths)} tokens, {work.group} times each", flush=True)
    sides: dict[str, Callable[[], Figures]] = {"ours": lambda: ours(chosen.base, work, examples, toolkit, params)}
    if chosen.trl is not None:
        sides["trl"] = lambda: theirs(chosen.trl, chosen.base, work, prompts)
    found: dict[str, Figures] = {}
    for name, measure in sides.items():
        found[name] = measure()
        print(f"\n{table(found, told)}", flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps({one: asdict(of) for one, of in found.items()}, indent=1))
    return 0


def theirs(python: Path, base: Path, work: Work, prompts: Sequence[Sequence[int]]) -> Figures:
    """Steps of TRL's trainer, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        task.write_text(
            json.dumps({"base": str(base.resolve()), "work": asdict(work), "prompts": prompts, "warm": WARM})
        )
        command = [str(python), "-m", "benchmarks.gpu_step_trl", str(task)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        return Figures(**json.loads(task.read_text()))


if __name__ == "__main__":
    run_benchmark(main)
