"""Callbacks of a GRPO run: measures at every step, development checks, and the reason of an early stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from orchestra.config.schema import Grpo
from orchestra.text import digest
from orchestra.training.distributed import wait_for_all
from orchestra.training.grpo.best_checkpoint import BestCheckpoint
from orchestra.training.grpo.health import RECENT, failed_to_the_end, is_good, reason_to_stop, trends
from orchestra.training.grpo.rollouts import Rounds

HISTORY = "history.json"
"""In each checkpoint: the measures of every step up to it, so that a continued run reports all of them."""

MEANS = "choices.json"
"""In each checkpoint: what the choices earned before it, where `grpo.branch.mean_of` asks for that."""

TRAINING = "training.txt"
"""In each checkpoint: whose it is (`identity`), so that no other training goes on from it."""

Log = Callable[[dict[str, float], int], None]
Evaluate = Callable[[Any], dict[str, float] | None]
"""From the current model to the measures of a development check; None: there are none."""

LOGGED = ("loss", "grad_norm", "entropy", "learning_rate", "step_time", "clip_ratio/region_mean")


def identity(rounds: Rounds) -> str:
    """The same for trainings with the same settings, limits and examples, by their ids."""
    said = [rounds.settings.model_dump_json(), rounds.limits.model_dump_json(), *rounds.examples]
    return digest(json.dumps(said))


def watch(
    rounds: Rounds,
    settings: Grpo,
    checkpoints: Path,
    log: Log,
    evaluate: Evaluate,
    playable: Callable[[], AbstractContextManager[Any]],
) -> Any:
    """A Trainer callback with a list `stopped`: the named reason why the run ended early, or nothing.

    Every rank decides alike when to stop; rank 0 alone logs, evaluates and writes. Every rank enters `playable`,
    which opens the model for a development check.
    """
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.stopped: list[str] = []
            # Failures before a restart do not count: what stopped the run then may have been fixed.
            self.restored = len(rounds.history)
            # What a checkpoint's weights do shows in rounds, each of which may have several steps.
            self.best = BestCheckpoint(checkpoints, after=RECENT * settings.num_iterations)

        def on_log(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            logs: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> None:
            if not state.is_world_process_zero:
                return
            numbers = {f"train/{k}": float(v) for k, v in (logs or {}).items() if k in LOGGED}
            if rounds.history and numbers:
                measured = rounds.history[-1] | trends(rounds.history) | rounds.logged()
                numbers |= {f"train/{k}": v for k, v in measured.items()}
                log(numbers | {"max_steps": settings.steps}, state.global_step)

        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
        ) -> None:
            most, last = settings.max_infrastructure_failures, state.global_step == settings.steps
            reason = reason_to_stop(rounds.history, most, since=self.restored)
            if last and (failed := failed_to_the_end(rounds.history, most, since=self.restored)) is not None:
                # The next attempt plays these steps again; from a checkpoint of the last one nothing would be left.
                reason, control.should_save = failed, False
            if state.is_world_process_zero:
                self.best.decide(state.global_step, is_good(rounds.history, most))
            if reason is not None:
                self.stopped.append(reason)
                control.should_training_stop = True
            if state.global_step % settings.eval_every == 0 or last:
                with playable() as model:
                    if state.is_world_process_zero:
                        log({f"dev/{k}": v for k, v in (evaluate(model) or {}).items()}, state.global_step)
                # In the next step they would wait in NCCL, on the GPUs with which the rollout server plays the check.
                wait_for_all()

        def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            if not state.is_world_process_zero:
                return
            text = json.dumps(rounds.history)
            saved = checkpoints / f"checkpoint-{state.global_step}"
            (saved / HISTORY).write_text(text, encoding="utf-8")
            (saved / TRAINING).write_text(identity(rounds), encoding="utf-8")
            if rounds.means is not None:
                (saved / MEANS).write_text(json.dumps(rounds.means.state()), encoding="utf-8")
            self.best.propose(saved)

    return Watch()
