"""The grpo stage: GRPO from the SFT checkpoint over the one loop, with a development check every few steps."""

import json
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import phase
from orchestra.config.schema import Grpo
from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.files.examples import in_range, read_examples, split_watched, with_difficulties
from orchestra.files.jsonl import end_with_a_line
from orchestra.rewards.properties import check_weights
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.serving.engines.orphans import end_orphans
from orchestra.synthesis.preferences.sentences import WORDS, stated
from orchestra.system.machine import check_ranks, torch_beside_gpu, torch_gpus
from orchestra.tools.toolkit import Toolkit
from orchestra.training import distributed
from orchestra.training.grpo.best_checkpoint import restore
from orchestra.training.grpo.health import averages, outcomes
from orchestra.training.grpo.spent import CHECKS, StepSpending
from orchestra.training.resume import last_step
from orchestra.types import Episode, Example
from tasks.platform.checkpoints import save_checkpoint, tell_changed, tell_resumed
from tasks.platform.ledger import KeptReplies, open_budget, tell
from tasks.platform.stage import Stage, run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.training.grpo.engine.sync import RolloutEngine
    from orchestra.training.grpo.trainer import GrpoResult

BASE = "models/sft"
DEEPSPEED = "models/recipes/deepspeed"
STEPS = "steps.jsonl"
"""In the work folder: a line of measures for each step, again where a training continued."""
LEDGER, SPENT = "ledger", "/spent_usd"
"""In such a line: the file that the attempt booked in, and how the names of dollars end."""
CANARIES = 4
"""Prompts that the trainer and its rollout server both score."""


def main(stage: Stage) -> None:
    """models/sft, data/validated/train.jsonl → models/grpo, reports/grpo.json, reports/grpo_steps.jsonl."""
    settings = stage.params.grpo
    # What a killed attempt left of its server has memory that the model needs.
    end_orphans(stage.root)
    if distributed.joined() or (settings.processes == 1 and settings.strategy == "ddp"):
        train(stage)
    else:
        check_ranks(settings, stage.name, torch_gpus())
        distributed.launch([sys.executable, "-m", "tasks.grpo"], settings.processes, stage.work_dir())


def train(stage: Stage) -> None:
    """One rank's part of the training; rank 0 writes the outputs."""
    from orchestra.rollout.policies.transformers import load_model
    from orchestra.training.compute.arguments import released, training_dtype
    from orchestra.training.compute.lora import adapted
    from orchestra.training.grpo.trainer import train_grpo

    params, settings = stage.params, stage.params.grpo
    # Before a rank loads the model onto a GPU that is not there.
    distributed.settle(settings, stage.name)
    if distributed.rank() == 0:
        tell_changed(stage)
        tell_resumed(stage)
        log_earlier(stage)
        if idle := torch_beside_gpu():
            stage.say(idle)
    codec = Codec.load(stage.root / BASE)
    budget = open_budget(stage, rank=distributed.rank(), shares=episodes(settings))
    work = stage.work_dir()
    replies = KeptReplies(stage, rank=distributed.rank(), since=lambda: last_saved(work / "checkpoints"))
    toolkit = Toolkit.from_params(params, stage.root, budget=budget, cassette=replies)
    data = stage.root / "data/validated/train.jsonl"
    examples, watched = split_watched(read_examples(data), settings.eval_examples, where=str(data))
    examples = chosen(stage, examples)
    for note in check_preferences(settings, examples):
        if distributed.rank() == 0:
            stage.say(note)
    spent = StepSpending(budget, stage.name, told(work / STEPS, budget.path.name) if distributed.rank() == 0 else None)
    model = load_model(stage.root / BASE, training_dtype(settings), settings.attention)
    if settings.lora is not None:
        model = adapted(model, settings.lora, settings.seed)
    price = toolkit.catalogue.policy_price
    engine = rollout_engine(stage, codec, examples) if settings.engine == "vllm" else None

    def evaluate(current: "PreTrainedModel") -> dict[str, float]:
        with phase(CHECKS):
            episodes = watch(watched, current, engine, codec, toolkit, RolloutOptions(params.rollout, price))
        found = outcomes(episodes, {example.id: example for example in watched})
        stage.say("watched examples: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items() if "/" not in k))
        return found | {"spent_usd": float(spent.checks())}

    meter = stage.progress(settings.steps, "grpo")

    def log(metrics: dict[str, float], step: int) -> None:
        stage.log_metrics(metrics, step)
        remember_simulated(work, budget)
        atomic.append_text(work / STEPS, json.dumps({"step": step, LEDGER: budget.path.name, **metrics}) + "\n")
        if "train/reward" in metrics:
            shown = {k: metrics.get(f"train/{k}", 0.0) for k in ("reward", "accuracy", "valid", "cost_usd")}
            meter(step, note=", ".join(f"{k} {v:.3g}" for k, v in shown.items()))

    deepspeed = None if settings.strategy == "ddp" else stage.root / DEEPSPEED / f"{settings.strategy}.json"
    try:
        result = train_grpo(
            model, codec, toolkit, examples, settings, params.rollout, price, work, log, evaluate, deepspeed, engine,
            spent,
        )  # fmt: skip
    finally:
        if engine is not None:
            engine.close()
    with result.whole() as trained:
        if distributed.rank() == 0:
            if result.kept_step < result.steps:
                restore(trained, result.kept or stage.root / BASE)
            written = released(trained, settings)
            save_checkpoint(stage, written, codec, "models/grpo", base=BASE, base_dir=stage.root / BASE, data=data)
    if distributed.rank() == 0:
        tell(stage, budget, toolkit.cassette)
        report(stage, result, simulated=remember_simulated(work, budget))


def episodes(settings: Grpo) -> list[int]:
    """How many each rank pays for: those of its groups, and rank 0 those of every development check."""
    rounds = settings.steps // settings.num_iterations
    own = rounds * settings.examples_per_step * settings.group_size // settings.processes
    checks = sum(step % settings.eval_every == 0 for step in range(1, settings.steps)) + 1
    return [own + checks * settings.eval_examples, *[own] * (settings.processes - 1)]


def check_preferences(settings: Grpo, examples: Sequence[Example] = ()) -> list[str]:
    """`check_weights` on each kind of preference that a user may state, and on those of the examples."""
    configured = [stated(kind, "", ["a", "b", "c"], "a") for kind in ("neutral", *WORDS)]
    return check_weights([*configured, *(example.preference for example in examples)], settings.resolved())


def watch(
    watched: Sequence[Example], model: "PreTrainedModel", engine: "RolloutEngine | None", codec: Codec,
    toolkit: Toolkit, options: RolloutOptions,
) -> list[Episode]:  # fmt: skip
    """Greedy episodes of the watched examples, by the engine where there is one: beside it the trainer has no room."""
    from orchestra.rollout.policies.transformers import TransformersPolicy

    served = None if engine is None else engine.policy(0.0, 0)
    policy = served or TransformersPolicy("", name="grpo", model=model, eos_id=codec.eos_id)
    return rollout(watched, policy, codec, toolkit, options)


def rollout_engine(stage: Stage, codec: Codec, examples: Sequence[Example]) -> "RolloutEngine":
    """The server that plays the episodes, with prompts of the first examples to prove its weights by."""
    from orchestra.training.grpo.engine.canary import MOST_TOKENS
    from orchestra.training.grpo.engine.sync import RolloutEngine

    prompts = [codec.prompt(example) for example in examples[:CANARIES]]
    return RolloutEngine(
        stage.root, stage.work_dir(), stage.root / BASE, codec, stage.params.grpo,
        [ids[:MOST_TOKENS] for ids in prompts], max_len=stage.params.rollout.max_tokens, say=stage.say,
    )  # fmt: skip


def report(stage: Stage, result: "GrpoResult", *, simulated: bool) -> None:
    """Say how the training ended, and write its reports."""
    if result.stopped:
        kept = f"the model is that of step {result.kept_step}"
        stage.say(f"stopped early at step {result.steps}: {result.stopped}; {kept}")
    rows = _last_of_each_step(stage.work_dir() / STEPS)
    stage.write_text("reports/grpo_steps.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    means = averages(result.history[: result.kept_step // stage.params.grpo.num_iterations][-10:])
    facts = {
        "simulated": simulated,
        "steps": result.steps,
        "stopped": result.stopped or "",
        "kept_step": result.kept_step,
    }
    stage.write_json("reports/grpo.json", facts | means)


def log_earlier(stage: Stage) -> None:
    """Send the steps of attempts that were ended, up to the checkpoint, to this attempt's MLflow run: its curves are
    whole then."""
    file, last = stage.work_dir() / STEPS, last_step(stage.work_dir() / "checkpoints")
    if not file.is_file():
        return
    end_with_a_line(file)
    for row in _last_of_each_step(file):
        if row["step"] <= last:
            stage.log_metrics({name: value for name, value in row.items() if name != "step"}, row["step"])


def last_saved(checkpoints: Path) -> str:
    """The step of the last whole checkpoint, from which a training that was killed goes on."""
    return f"step {last_step(checkpoints)}"


def remember_simulated(work: Path, budget: Budget) -> bool:
    """Whether this attempt or one before it used anything simulated: an attempt that continues books only its own."""
    mark = work / "simulated"
    if not mark.exists() and any(part.simulated for part in budget.by_component().values()):
        atomic.write_text(mark, "")
    return mark.exists()


def chosen(stage: Stage, examples: list[Example]) -> list[Example]:
    """The examples with a difficulty in grpo.difficulty_range or without one; says how many of each.

    Raises `DataError` when none is left.
    """
    settings = stage.params.grpo
    if settings.difficulty_range is None:
        return examples
    if settings.difficulty_file is not None:
        examples = with_difficulties(examples, stage.root / settings.difficulty_file)
    kept, unmeasured = in_range(examples, settings.difficulty_range), sum(one.difficulty is None for one in examples)
    band = "{:g} to {:g}".format(*settings.difficulty_range)
    if not kept:
        raise DataError(
            f"no example's difficulty is within {band}", where="grpo.difficulty_range", fix="widen the range"
        )
    if distributed.rank() == 0:
        within, outside = len(kept) - unmeasured, len(examples) - len(kept)
        stage.say(f"difficulty {band}: {within} examples; {outside} others left out; {unmeasured} not measured, kept")
    return kept


def told(file: Path, ledger: str) -> dict[bool, Decimal]:
    """Dollars of a ledger that the lines of earlier attempts tell, of checks (True) and of steps (False)."""
    found = {True: Decimal(0), False: Decimal(0)}
    for row in _lines(file) if file.is_file() else ():
        for name, usd in row.items():
            if name.endswith(SPENT) and row[LEDGER] == ledger:
                found[name == f"dev{SPENT}"] += Decimal(str(usd))
    return found


def _last_of_each_step(file: Path) -> list[dict[str, Any]]:
    """A resumed run repeats the steps after its checkpoint: the later line of a step and kind holds, with the dollars
    of all of them."""
    kept: dict[tuple[int, str], dict[str, Any]] = {}
    for row in _lines(file):
        del row[LEDGER]
        place = row["step"], next(key for key in row if key != "step").partition("/")[0]
        before = kept.get(place, {})
        kept[place] = row | {name: usd + before.get(name, 0.0) for name, usd in row.items() if name.endswith(SPENT)}
    return [kept[place] for place in sorted(kept)]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    run("grpo", main)
