"""The sft stage: a teacher's episodes through the one loop, then SFT warm-up from recipe or base weights."""

import json
import sys
import time
from collections import Counter
from typing import Any

from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.files.examples import read_examples, split_watched
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.system.machine import check_packages, check_ranks, torch_beside_gpu, torch_gpus
from orchestra.tools.toolkit import Toolkit
from orchestra.training import distributed
from orchestra.training.resume import last_step
from orchestra.training.sft import sft_row
from orchestra.training.teacher import teacher_policy
from tasks.platform.checkpoints import save_checkpoint, tell_changed, tell_resumed
from tasks.platform.ledger import KeptReplies, open_budget, tell
from tasks.platform.stage import Stage, run

DATA = "data/validated/train.jsonl"
DEEPSPEED = "models/recipes/deepspeed"
TAUGHT = "taught.json"
"""In the stage's work folder: what the teacher's episodes gave, for ranks that did not run them."""

Taught = dict[str, Any]
"""`rows` of `sft_row`, and `facts` for the report."""


def main(stage: Stage) -> None:
    """data/validated/train.jsonl → models/sft, reports/sft.json."""
    settings = stage.params.sft
    if not distributed.joined() and settings.processes == 1 and settings.strategy == "ddp":
        check_packages(settings, stage.name)  # Before the teacher is paid.
        train(stage, teach(stage))
    elif not distributed.joined():
        check_ranks(settings, stage.name, torch_gpus())
        _share(stage, teach(stage))
        distributed.launch([sys.executable, "-m", "tasks.sft"], settings.processes, stage.work_dir())
    else:
        # Before the teacher is paid, and before a rank loads the model onto a GPU that is not there.
        distributed.settle(settings, stage.name)
        # The ranks of `launch` find the rows; of torchrun's, rank 0 makes them and the others wait.
        if distributed.rank() == 0 and not (stage.work_dir() / TAUGHT).is_file():
            _share(stage, teach(stage))
        train(stage, _shared(stage))


def teach(stage: Stage) -> Taught:
    """Run the teacher over the training examples; its well-formed episodes become rows."""
    tell_changed(stage)
    params = stage.params
    codec = Codec.load(params.model.folder(stage.root))
    budget = open_budget(stage)
    toolkit = Toolkit.from_params(params, stage.root, budget=budget, cassette=KeptReplies(stage))
    data = stage.root / DATA
    examples, _ = split_watched(read_examples(data), params.grpo.eval_examples, where=str(data))
    teacher = teacher_policy(toolkit.catalogue, params.sft.teacher, params.sft.seed, codec.turn)
    meter = stage.progress(len(examples), "teacher episodes")
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price, on_progress=meter.advance)
    episodes = rollout(examples, teacher, codec, toolkit, options)
    kept = [e for e in episodes if e.counted and e.well_formed]
    tell(stage, budget, toolkit.cassette)
    if not kept:
        (why, count), *_ = Counter(e.stop.value for e in episodes).most_common(1)
        raise DataError(
            f"none of the teacher's {len(episodes)} episodes can be imitated: {count} end by {why}", where="rollout",
            fix="give them room (rollout.max_tokens, max_turn_tokens, max_turns), or fix the tools that fail",
        )  # fmt: skip
    solved = sum(e.solved for e in kept) / max(1, len(kept))
    stage.say(f"teacher solved {solved:.1%} of {len(kept)} episodes; training on all of them")
    facts = {
        "episodes": len(kept),
        "teacher_accuracy": solved,
        "spent_usd": float(sum(e.cost_usd for e in episodes)),
        "simulated": any(e.simulated for e in episodes),
    }
    return {"rows": [sft_row(episode) for episode in kept], "facts": facts}


def train(stage: Stage, taught: Taught) -> None:
    """One rank's part of the training; rank 0 writes the outputs."""
    from orchestra.rollout.policies.transformers import load_model
    from orchestra.training.compute.arguments import released, training_dtype
    from orchestra.training.compute.lora import adapted
    from orchestra.training.sft import new_model, train_rows

    params, settings, rows = stage.params, stage.params.sft, taught["rows"]
    if distributed.rank() == 0:
        tell_resumed(stage)
        if idle := torch_beside_gpu():
            stage.say(idle)
    source = params.model.folder(stage.root)
    codec = Codec.load(source)
    if params.model.base:
        model = load_model(source, training_dtype(settings), settings.attention)
    else:
        model = new_model(source, settings.seed)
    if settings.lora is not None:
        model = adapted(model, settings.lora, settings.seed)
    steps = -(-len(rows) * settings.epochs // settings.batch_size)
    meter = stage.progress(steps, "sft", last_step(stage.work_dir() / "checkpoints"))

    def log(metrics: dict[str, float], step: int) -> None:
        if distributed.rank() == 0:
            stage.log_metrics(metrics, step)
            meter(step, note=f"loss {metrics['train/loss']:.3f}")

    deepspeed = None if settings.strategy == "ddp" else stage.root / DEEPSPEED / f"{settings.strategy}.json"
    result = train_rows(model, codec, rows, settings, stage.work_dir(), log, deepspeed)
    with result.whole() as trained:
        if distributed.rank() == 0:
            written = released(trained, settings)
            base, data = params.model.base, stage.root / DATA
            save_checkpoint(stage, written, codec, "models/sft", base=base, base_dir=source, data=data)
    if distributed.rank() != 0:
        return
    stage.write_json("reports/sft.json", taught["facts"] | {"loss": result.loss, "steps": result.steps})


def _share(stage: Stage, taught: Taught) -> None:
    atomic.write_text(stage.work_dir() / TAUGHT, json.dumps(taught))


def _shared(stage: Stage) -> Taught:
    """What rank 0 or the process that started the ranks wrote; waits for it."""
    file = stage.work_dir() / TAUGHT
    while not file.is_file():
        time.sleep(0.2)
    taught: Taught = json.loads(file.read_text(encoding="utf-8"))
    return taught


if __name__ == "__main__":
    run("sft", main)
