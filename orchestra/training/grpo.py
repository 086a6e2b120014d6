"""GRPO: TRL's GRPOTrainer over the one multi-turn loop; the one file that knows TRL's seam.

TRL asks `rollout_func` for whole episodes (ids, mask, rewards). It computes rewards per process before it gathers them,
so every group must be whole on its process; advantages, filters and clipping (Eq. 3) are ours, applied before the
backward pass.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.config import Grpo, Rollout
from orchestra.errors import TrainingError
from orchestra.rewards.group import Reward, advantages, group_rewards, weights
from orchestra.rollout.loop import rollout
from orchestra.training.health import measure, reason_to_stop
from orchestra.training.resume import common_arguments, complete_marker, last_complete
from orchestra.types import Example, Price

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec
    from orchestra.rollout.transformers_policy import TransformersPolicy
    from orchestra.tools.toolkit import Toolkit

HISTORY = "history.json"
"""In each checkpoint: the measures of every step up to it, so that a continued run reports all of them."""

Log = Callable[[dict[str, float], int], None]


@dataclass
class Rounds:
    """Runs each generation round's episodes and keeps what the trainer's filters need."""

    examples: Mapping[str, Example]
    codec: Codec
    toolkit: Toolkit
    limits: Rollout
    price: Price
    settings: Grpo
    policy: TransformersPolicy
    history: list[dict[str, float]] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """Of the last round, in the order TRL asked for."""

    def __call__(self, prompts: Sequence[Sequence[dict[str, Any]]], trainer: Any) -> dict[str, Any]:
        """TRL's rollout function: `prompts` repeats each example `group_size` times, a group's copies together."""
        size = self.settings.group_size
        ids = [prompt[0]["example_id"] for prompt in prompts]
        if any(len(set(ids[i : i + size])) != 1 for i in range(0, len(ids), size)):
            raise TrainingError("a group is split over processes", where="grpo", fix="see the batch sizes")
        self.policy.model = trainer.accelerator.unwrap_model(trainer.model)
        self.policy.seed = self.settings.seed * 1_000_003 + trainer.state.global_step
        chosen = [self.examples[name] for name in ids[::size]]
        episodes = rollout(
            chosen, self.policy, self.codec, self.toolkit, self.limits, price=self.price, samples=size, batch=len(ids)
        )
        groups = [episodes[i : i + size] for i in range(0, len(episodes), size)]
        rewards = [
            group_rewards(group, example.preference, malformed=self.settings.malformed, parts=self.settings.reward)
            for group, example in zip(groups, chosen, strict=True)
        ]
        clipped = [
            advantages(
                group, weights(example.preference, self.settings.reward), min_std=self.settings.min_group_std,
                clip=self.settings.advantage_clip, normalise=self.settings.normalise,
            )
            for group, example in zip(rewards, chosen, strict=True)
        ]  # fmt: skip
        self.advantages = [a for group in clipped for a in group]
        self.history.append(measure(groups, rewards, clipped))
        flat: list[Reward] = [r for group in rewards for r in group]
        return {
            "prompt_ids": [list(e.prompt_ids) for e in episodes],
            # TRL needs at least one token; an episode without any has advantage 0 and a mask of 0.
            "completion_ids": [e.completion_ids or [self.codec.eos_id] for e in episodes],
            "env_mask": [e.mask or [0] for e in episodes],
            "logprobs": None,
            "eq2": [r.value for r in flat],
        }


def eq2(prompts: Any, completions: Any, eq2: list[float | None], **kwargs: Any) -> list[float | None]:
    """TRL's reward function: what the rollout already computed per group. None leaves a row out."""
    return eq2


@dataclass(frozen=True)
class GrpoResult:
    steps: int
    resumed_from: int
    stopped: str | None
    """Why training ended early; None when it ran to its end."""
    history: list[dict[str, float]]


def training_rows(examples: Sequence[Example], settings: Grpo) -> list[dict[str, Any]]:
    """One epoch's rows: exactly as many examples as the steps take, in a seeded order, repeated when there are few.

    Resuming replays the order only within the first epoch, so the whole training is one.
    """
    import random

    need = settings.steps * settings.examples_per_step
    order: list[Example] = []
    rng = random.Random(settings.seed)
    while len(order) < need:
        order += rng.sample(list(examples), len(examples))
    return [{"prompt": [{"role": "user", "content": "", "example_id": e.id}]} for e in order[:need]]


def train_grpo(
    model: PreTrainedModel,
    codec: Codec,
    toolkit: Toolkit,
    examples: Sequence[Example],
    settings: Grpo,
    limits: Rollout,
    price: Price,
    work: Path,
    log: Log,
    evaluate: Callable[[PreTrainedModel], dict[str, float]],
) -> GrpoResult:
    """Train `model` in place. `evaluate` measures it every `eval_every` steps; `log` gets everything by step."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from trl import GRPOConfig

    from orchestra.rollout.transformers_policy import TransformersPolicy
    from orchestra.training.optimizer import MuonAdamW

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    policy = TransformersPolicy("", name="grpo", model=model, temperature=settings.temperature, eos_id=codec.eos_id)
    rounds = Rounds({e.id: e for e in examples}, codec, toolkit, limits, price, settings, policy)
    checkpoint = last_complete(work / "checkpoints")
    stopped: list[str] = []

    class Watch(TrainerCallback):
        """Logs health, evaluates, and stops a run that has gone wrong."""

        def on_log(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            logs: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> None:
            kept = ("loss", "grad_norm", "entropy", "learning_rate", "step_time", "clip_ratio/region_mean")
            numbers = {f"train/{k}": float(v) for k, v in (logs or {}).items() if k in kept}
            if rounds.history and numbers:
                numbers |= {f"train/{k}": v for k, v in rounds.history[-1].items()}
                log(numbers | {"max_steps": settings.steps}, state.global_step)

        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
        ) -> None:
            # Steps before a restart do not count: what stopped the run then may have been mended.
            reason = reason_to_stop(rounds.history[restored:], settings.max_infrastructure_failures)
            if reason is not None:
                stopped.append(reason)
                control.should_training_stop = True
            if state.global_step % settings.eval_every == 0 or state.global_step == settings.steps:
                log({f"dev/{k}": v for k, v in evaluate(model).items()}, state.global_step)

        def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            text = json.dumps(rounds.history)
            (work / "checkpoints" / f"checkpoint-{state.global_step}" / HISTORY).write_text(text, encoding="utf-8")

    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = settings.examples_per_step * settings.group_size
    if rows % (world * settings.group_size):
        raise TrainingError(
            f"{settings.examples_per_step} examples a step cannot be shared by {world} processes in whole groups",
            where="params.yaml grpo.examples_per_step", fix=f"use a multiple of {world}",
        )  # fmt: skip
    arguments = GRPOConfig(
        **common_arguments(work, seed=settings.seed, save_steps=settings.save_steps),
        max_steps=settings.steps,
        per_device_train_batch_size=rows // world,
        steps_per_generation=1,
        num_generations=settings.group_size,
        max_completion_length=limits.max_tokens,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=min(5, settings.steps // 10),
        beta=settings.kl,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        loss_type="dapo",
        logging_steps=1,
        shuffle_dataset=False,
    )
    trainer = _trainer_class()(
        model=model,
        args=arguments,
        reward_funcs=[eq2],
        rollout_func=rounds,
        train_dataset=Dataset.from_list(training_rows(examples, settings)),
        processing_class=codec.tokenizer,
        callbacks=[Watch(), complete_marker()],
        optimizers=(MuonAdamW(model, lr=settings.learning_rate), None),
    )
    trainer.rounds = rounds
    trainer.remove_callback(PrinterCallback)
    if checkpoint is not None:
        rounds.history += json.loads((checkpoint / HISTORY).read_text(encoding="utf-8"))
    restored = len(rounds.history)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stopped and stopped[0].startswith("infrastructure"):
        raise TrainingError(stopped[0], where="grpo", fix="mend the tools, then run the stage again: it continues")
    if not all(math.isfinite(row["reward"]) for row in rounds.history):
        raise TrainingError("a reward is not finite", where="grpo", fix="check prices and preferences in the data")
    return GrpoResult(
        steps=trainer.state.global_step,
        resumed_from=int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0,
        stopped=stopped[0] if stopped else None,
        history=rounds.history,
    )


def _trainer_class() -> Any:
    """TRL's trainer with our advantages in place of its own (imported late: TRL takes seconds)."""
    import torch
    from trl import GRPOTrainer

    class GroupTrainer(GRPOTrainer):
        rounds: Rounds

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
            ours = torch.tensor(self.rounds.advantages, dtype=torch.float32, device=batch["advantages"].device)
            batch["advantages"] = ours
            # The DAPO loss divides by the tokens of the whole batch, so rows without advantage add nothing to the
            # gradient (without a KL term): leaving them out of the forward pass changes no number.
            if self.beta == 0.0 and self.accelerator.num_processes == 1:
                rows = torch.nonzero(ours).flatten()
                return _keep_rows(batch, rows if len(rows) else torch.tensor([0]))
            return batch

    return GroupTrainer


def _keep_rows(batch: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Every per-row tensor of a generation batch, for the chosen rows only, less the padding they no longer need."""
    total = batch["advantages"].shape[0]
    kept = {k: v[rows] if getattr(v, "ndim", 0) and v.shape[0] == total else v for k, v in batch.items()}
    width = int(kept["completion_mask"].sum(dim=1).max())
    left = kept["prompt_mask"].shape[1] - int(kept["prompt_mask"].sum(dim=1).max())
    for key in ("completion_ids", "completion_mask", "tool_mask"):
        kept[key] = kept[key][:, :width]
    for key in ("prompt_ids", "prompt_mask"):
        kept[key] = kept[key][:, left:]
    return kept
