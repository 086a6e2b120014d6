"""SFT warm-up: TRL's SFTTrainer on a teacher's episodes; loss only on the policy's own tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.config.schema import Sft
from orchestra.training.compute.accumulation import as_one, in_budget, least_of_all, loss_in_parts
from orchestra.training.compute.arguments import common_arguments, on_one_gpu
from orchestra.training.distributed import settle, whole_weights
from orchestra.training.optimizer import OwnOptimizer, new_optimizer
from orchestra.training.resume import complete_marker, last_complete
from orchestra.types import Episode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec

IGNORED = -100
"""The label that the loss skips."""
POOLED_BATCHES = 50
"""Batches' worth of rows that are sorted by length together."""

Log = Callable[[dict[str, float], int], None]


Row = dict[str, list[int]]


def sft_row(episode: Episode) -> Row:
    """One training row: `input_ids` (time,) and `labels` (time,), which ignore every token the policy did not write."""
    completion, mask = episode.completion_ids, episode.mask
    labels = [token if own else IGNORED for token, own in zip(completion, mask, strict=True)]
    return {
        "input_ids": [*episode.prompt_ids, *completion],
        "labels": [*([IGNORED] * len(episode.prompt_ids)), *labels],
    }


def new_model(recipe: Path, seed: int) -> PreTrainedModel:
    """Random float32 weights of the recipe's architecture, the same for the same seed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    set_seed(seed)
    config = AutoConfig.from_pretrained(str(recipe), trust_remote_code=False, local_files_only=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


@dataclass(frozen=True)
class SftResult:
    loss: float
    """Mean training loss over the last tenth of the steps, nats a token."""
    steps: int
    resumed_from: int
    """The step that training continued from; 0 for a fresh start."""
    whole: Callable[[], AbstractContextManager[PreTrainedModel]]
    """Opens the trained model, as in `GrpoResult`."""


def training_order(lengths: Sequence[int], settings: Sft) -> list[int]:
    """The rows of all epochs as one, in a seeded order, each batch of about one length so that little is padded.

    Resuming replays a trainer's own order only within the first epoch, so the whole training is one.
    """
    rng = random.Random(settings.seed)
    stream = [row for _ in range(settings.epochs) for row in rng.sample(range(len(lengths)), len(lengths))]
    order: list[int] = []
    pool = settings.batch_size * POOLED_BATCHES
    for start in range(0, len(stream), pool):
        rows = sorted(stream[start : start + pool], key=lambda row: lengths[row])
        batches = [rows[i : i + settings.batch_size] for i in range(0, len(rows), settings.batch_size)]
        # A batch that is not full must come last, or every later one would straddle two lengths.
        last = [batches.pop()] if len(rows) % settings.batch_size else []
        rng.shuffle(batches)
        order += [row for batch in batches + last for row in batch]
    return order


def batch_in_parts(inputs: dict[str, Any], budget: int, accelerator: Any) -> list[dict[str, Any]]:
    """A batch, padded on the right, in parts of rows of about one length, with as much padding as each part needs.

    A part has at most `budget` tokens, padding included, or one row; the parts of every rank have as many rows.
    """
    lengths = inputs["attention_mask"].sum(dim=1)
    order = lengths.argsort(stable=True)
    sizes = lengths[order].tolist()
    agree = partial(least_of_all, accelerator)
    found = []
    for part in in_budget(len(sizes), budget, lambda first, end: (end - first) * sizes[end - 1], agree):
        rows, width = order[part.start : part.stop], sizes[part.stop - 1]
        found.append({name: values[rows, :width] for name, values in inputs.items()})
    return found


def train_sft(
    model: PreTrainedModel, codec: Codec, episodes: Sequence[Episode], settings: Sft, work: Path, log: Log
) -> SftResult:
    """`train_rows` on a teacher's episodes."""
    return train_rows(model, codec, [sft_row(episode) for episode in episodes], settings, work, log)


def train_rows(
    model: PreTrainedModel,
    codec: Codec,
    rows: Sequence[Row],
    settings: Sft,
    work: Path,
    log: Log,
    deepspeed: Path | None = None,
) -> SftResult:
    """Train `model` in place on rows of `sft_row`, together with the other ranks if there are any.

    Checkpoints under `work` let a killed run continue exactly. Each optimizer step has `batch_size` rows, however many
    ranks and passes share them; with several ranks the last one may repeat some. `deepspeed` is the file with its
    settings, for the strategies zero2 and zero3.
    """
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class Logger(TrainerCallback):
        def on_log(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            logs: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> None:
            self._tell(logs or {}, state, state.global_step)

        def on_train_begin(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
        ) -> None:
            for logs in state.log_history:  # Of an attempt that was ended, up to its checkpoint.
                self._tell({k: v for k, v in logs.items() if k != "step"}, state, int(logs["step"]))

        def _tell(self, logs: dict[str, Any], state: TrainerState, step: int) -> None:
            numbers = {k: float(v) for k, v in logs.items() if isinstance(v, int | float)}
            if "loss" in numbers:
                log({f"train/{k}": v for k, v in numbers.items()} | {"max_steps": state.max_steps}, step)

    settled = settle(settings, "sft")
    from trl import SFTConfig, SFTTrainer

    from orchestra.training.compute.fused_head import adapt_head

    adapt_head()

    longest = max(len(row["input_ids"]) for row in rows)
    budget = None if settings.micro_batch is None else settings.micro_batch * longest
    arguments = SFTConfig(
        **common_arguments(work, seed=settings.seed, save_steps=settings.save_steps, compute=settings),
        num_train_epochs=1,
        per_device_train_batch_size=settings.batch_size // settings.processes,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        max_length=None,
        train_sampling_strategy="sequential",
        logging_first_step=True,
        logging_steps=10 if len(rows) * settings.epochs >= 20 * settings.batch_size else 1,
        data_seed=settings.seed,
        ddp_find_unused_parameters=False,
        deepspeed=None if deepspeed is None else str(deepspeed),
        **settled,
    )

    class Trainer(OwnOptimizer, SFTTrainer):
        def compute_loss(
            self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            whole: Any = super().compute_loss
            if budget is None or return_outputs or num_items_in_batch is None:
                return whole(model, inputs, return_outputs, num_items_in_batch)
            parts = batch_in_parts(inputs, budget, self.accelerator)
            learnt = torch.stack([(one["labels"] != IGNORED).sum() for one in parts]).float()
            with as_one(self._metrics["train"], self.accelerator.reduce(learnt, reduction="sum").tolist()):
                return loss_in_parts(
                    self.accelerator, model, len(parts),
                    lambda part: whole(model, parts[part], False, num_items_in_batch),
                )  # fmt: skip

    trainer = Trainer(
        model=model,
        args=on_one_gpu(arguments),
        train_dataset=Dataset.from_list(rows).select(training_order([len(row["labels"]) for row in rows], settings)),
        processing_class=codec.tokenizer,
        callbacks=[Logger(), complete_marker()],
    )
    trainer.new_optimizer = partial(new_optimizer, model, settings, settings.learning_rate)
    trainer.remove_callback(PrinterCallback)
    checkpoint = last_complete(work / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    # The trainer's own history, which a checkpoint keeps: a run that resumed after its last log has the same loss.
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    tail = losses[-max(1, len(losses) // 10) :]
    return SftResult(
        loss=sum(tail) / len(tail),
        steps=trainer.state.global_step,
        resumed_from=int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0,
        whole=lambda: whole_weights(trainer),
    )
