"""GRPO: TRL's GRPOTrainer over the one multi-turn loop; TRL's seam is here and in `group_trainer`.

TRL asks `rollout_func` for whole episodes (ids, mask, rewards). It computes rewards per process before it gathers them,
so every group must be whole on its process; advantages, filters and clipping (Eq. 3) are ours, applied before the
backward pass.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.config.schema import Grpo, Rollout
from orchestra.errors import ConfigError, DataError, TrainingError
from orchestra.training.compute.arguments import common_arguments, on_one_gpu
from orchestra.training.compute.lora import base_of
from orchestra.training.distributed import settle, whole_weights
from orchestra.training.grpo.budgets import with_budgets
from orchestra.training.grpo.callbacks import HISTORY, MEANS, TRAINING, Evaluate, Log, identity, watch
from orchestra.training.grpo.group_trainer import trainer_class
from orchestra.training.grpo.health import declined
from orchestra.training.grpo.order import training_rows
from orchestra.training.grpo.passes import tree_attention
from orchestra.training.grpo.rollouts import Rounds, eq2
from orchestra.training.grpo.spent import StepSpending
from orchestra.training.optimizer import new_optimizer
from orchestra.training.resume import complete_marker, last_complete
from orchestra.types import Example, Price

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit
    from orchestra.training.grpo.engine.sync import RolloutEngine


@dataclass(frozen=True)
class GrpoResult:
    steps: int
    resumed_from: int
    stopped: str | None
    """Why training ended early; None when it ran to its end."""
    history: list[dict[str, float]]
    kept_step: int
    """Step whose weights are the result: the last one or, after a decline, that of the last good checkpoint."""
    kept: Path | None
    """After a decline, where those weights are; None with `kept_step` 0: none was good, what it began from is."""
    whole: Callable[[], AbstractContextManager[PreTrainedModel]]
    """Opens the trained model; under ZeRO-3 it is whole only inside, and every rank must enter (`whole_weights`)."""


def train_grpo(
    model: PreTrainedModel,
    codec: Codec,
    toolkit: Toolkit,
    examples: Sequence[Example],
    settings: Grpo,
    limits: Rollout,
    price: Price,
    work: Path | str,
    log: Log,
    evaluate: Evaluate,
    deepspeed: Path | None = None,
    engine: RolloutEngine | None = None,
    spent: StepSpending | None = None,
) -> GrpoResult:
    """Train `model` in place, together with the other ranks if there are any.

    Checkpoints in the folder `work` let a killed training continue exactly. Raises `ConfigError` where they are of one
    with other settings, limits or examples, and `DataError` where two examples have one id. `evaluate` measures the
    model every `eval_every` steps, `log` gets everything by step: both on rank 0 alone. `deepspeed` is the file with
    its settings, for the strategies zero2 and zero3. `engine` plays the episodes, and has the weights of that step when
    `evaluate` is called; None: `model` plays. With `spent` each step logs its dollars, `spent_usd`; what was played
    ahead for no step is logged with the last one.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    from orchestra.rollout.policies.transformers import TransformersPolicy

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_of_no_left_out_row)
    settings = settings.resolved()
    work, by_id = Path(work), _by_id(with_budgets(examples, settings.budget_share, settings.seed, limits, price))
    policy = TransformersPolicy("", name="grpo", model=model, temperature=settings.temperature, eos_id=codec.eos_id)
    rounds = Rounds(by_id, codec, toolkit, limits, price, settings, policy, engine, spent)
    checkpoints = work / "checkpoints"
    checkpoint = last_complete(checkpoints)
    if checkpoint is not None:
        _take_up(rounds, checkpoint)
    arguments = _arguments(settings, limits, work, deepspeed)
    rows = training_rows(list(by_id.values()), settings)
    rounds.order = [row["prompt"][0]["example_id"] for row in rows]

    def whole() -> AbstractContextManager[PreTrainedModel]:
        return whole_weights(trainer)

    def playable() -> AbstractContextManager[PreTrainedModel]:
        return rounds.playable(trainer)

    watcher = watch(rounds, settings, checkpoints, log, evaluate, playable)
    trainer = trainer_class()(
        model=model,
        args=arguments,
        reward_funcs=[eq2],
        rollout_func=rounds,
        train_dataset=Dataset.from_list(rows),
        processing_class=codec.tokenizer,
        callbacks=[watcher, complete_marker()],
    )
    trainer.rounds = rounds
    if settings.micro_batch is not None:
        trainer.budget = settings.micro_batch * limits.max_tokens
    if settings.shared_prefix:
        # The reference model of a KL term is wrapped already where ranks train with DeepSpeed.
        known = [trainer.accelerator.unwrap_model(one) for one in (model, trainer.ref_model) if one is not None]
        device = trainer.accelerator.device
        trainer.sharing = [one for one in known if tree_attention.enable(base_of(one), device)]
    trainer.new_optimizer = partial(new_optimizer, model, settings, settings.learning_rate)
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BaseException:
        # Other ranks wait for this one to say why, and what it plays ahead is paid for nothing.
        rounds.close(wait=False)
        raise
    rounds.close()
    rounds.book()
    if rounds.unlogged_usd and trainer.is_world_process_zero():
        log({f"ahead/{name}": usd for name, usd in rounds.logged().items()}, trainer.state.global_step)
    stopped = watcher.stopped[0] if watcher.stopped else None
    _refuse_failed(stopped, rounds, toolkit.resources.failures.most_frequent)
    good = (watcher.best.last() or (0, None)) if declined(stopped) else (trainer.state.global_step, None)
    return GrpoResult(
        steps=trainer.state.global_step,
        resumed_from=int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0,
        stopped=stopped,
        history=rounds.history,
        kept_step=good[0],
        kept=good[1],
        whole=whole,
    )


def _by_id(examples: Sequence[Example]) -> dict[str, Example]:
    """Raises `DataError` where two have one id: what is trained on is named by it."""
    counts = Counter(example.id for example in examples)
    if twice := [name for name, count in counts.items() if count > 1]:
        what = f"{counts[twice[0]]} examples have the id {twice[0]!r:.80}"
        raise DataError(what, where="train_grpo", fix="give each an id of its own; `question` takes one")
    return {example.id: example for example in examples}


def _take_up(rounds: Rounds, checkpoint: Path) -> None:
    """Go on from what the rounds before that checkpoint left beside its weights.

    Raises `ConfigError` where they were another training's.
    """
    means, mark = checkpoint / MEANS, checkpoint / TRAINING
    if not mark.is_file() or mark.read_text(encoding="utf-8") != identity(rounds):
        what = "this checkpoint is of a training with other settings, limits or examples"
        raise ConfigError(what, where=str(checkpoint), fix="name another work folder, or delete this one")
    rounds.resume(
        json.loads((checkpoint / HISTORY).read_text(encoding="utf-8")),
        json.loads(means.read_text(encoding="utf-8")) if means.is_file() else (),
    )


def _refuse_failed(stopped: str | None, rounds: Rounds, failure: str | None) -> None:
    """Raises `TrainingError` where no weights of the training are worth keeping; `failure`: the most frequent one."""
    if stopped is not None and stopped.startswith("infrastructure"):
        stopped += "" if failure is None else f"; most frequent: {failure}"
        raise TrainingError(stopped, where="grpo", fix="fix the tools, then run the stage again: it continues")
    if not all(math.isfinite(row["reward"]) for row in rounds.history):
        raise TrainingError("a reward is not finite", where="grpo", fix="check prices and preferences in the data")


def _arguments(settings: Grpo, limits: Rollout, work: Path, deepspeed: Path | None) -> Any:
    """TRL's arguments: `num_iterations` optimizer steps a generation round, and whole groups on every process.

    With one step a round TRL's ratio of probabilities is 1 everywhere, so `clip_low` and `clip_high` do nothing. From
    two on, the ratio compares with the log-probabilities before the first step.
    """
    settled = settle(settings, "grpo")
    from trl import GRPOConfig

    from orchestra.training.compute.fused_head import adapt_head

    adapt_head()

    rows = settings.examples_per_step * settings.group_size
    arguments = GRPOConfig(
        **common_arguments(work, seed=settings.seed, save_steps=settings.save_steps, compute=settings),
        max_steps=settings.steps,
        per_device_train_batch_size=rows // settings.processes,
        steps_per_generation=1,
        num_iterations=settings.num_iterations,
        num_generations=settings.group_size,
        max_completion_length=limits.max_tokens,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup", "linear": "linear"}[settings.schedule],
        warmup_steps=min(5, settings.steps // 10),
        beta=settings.kl,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        top_entropy_quantile=settings.top_entropy_quantile,
        entropy_coef=settings.entropy,
        loss_type="dapo",
        logging_steps=1,
        shuffle_dataset=False,
        ddp_find_unused_parameters=False,
        deepspeed=None if deepspeed is None else str(deepspeed),
        **settled,
    )
    return on_one_gpu(arguments)


def _of_no_left_out_row(record: logging.LogRecord) -> bool:
    """Hides TRL's warning, with a whole text, of a row without a reward: `grpo.malformed: drop` asks for such rows."""
    return "All reward functions returned None" not in record.getMessage()
