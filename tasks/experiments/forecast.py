"""`orchestra forecast STAGE`: runs a sample of sft, grpo or evaluate, and says what the whole will cost and take.

The sample is the stage's own code on a few of its batches or steps, in a folder that is thrown away. What it spends is
booked in work/forecast, and `budget.run_usd` caps all forecasts of a workspace together.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestra.accounting.budget import Budget
from orchestra.accounting.forecast import Forecast, Piece
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation import run as running
from orchestra.evaluation import safety
from orchestra.evaluation.baselines.base import needed
from orchestra.evaluation.baselines.knowledge import lesson_questions, take_lessons, who_is_right
from orchestra.evaluation.report import REFERENCE, TRAINED
from orchestra.evaluation.run import Contender
from orchestra.files.examples import read_examples, split_watched
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.render import Codec
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example
from tasks import evaluate, grpo
from tasks.platform.ledger import open_budget
from tasks.platform.stage import Stage, run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
BATCH = 16
"""Examples of one sampled batch. The stages take larger ones, so that their time is rather less than is forecast."""

LEDGER = "work/forecast"
"""The folder of its ledger."""

LOGGED_STEPS = 10
"""SFT says every so many steps how it goes."""


@dataclass
class Sampled:
    """Dollars and seconds of units that were run one after another."""

    budget: Budget
    usd: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @contextmanager
    def unit(self) -> Iterator[None]:
        began, before = time.monotonic(), self.budget.spent_usd
        yield
        self.usd.append(float(self.budget.spent_usd - before))
        self.seconds.append(time.monotonic() - began)

    def piece(self, name: str, unit: str, units: float) -> Piece:
        return Piece(name, unit, units, self.usd, self.seconds)


@dataclass
class Forecaster:
    """Runs samples of a workspace's stages."""

    stage: Stage
    sample: int
    """Batches or steps to run, at least 2."""
    work: Path
    """Where what the sample writes is kept."""

    @cached_property
    def budget(self) -> Budget:
        return open_budget(self.stage, self.stage.root / LEDGER)

    @cached_property
    def toolkit(self) -> Toolkit:
        return Toolkit.from_params(self.stage.params, self.stage.root, budget=self.budget)

    def sampled(self) -> Sampled:
        return Sampled(self.budget)

    def batches(self, examples: Sequence[T]) -> list[list[T]]:
        """Batches drawn evenly over the examples."""
        size = min(BATCH, max(1, len(examples) // self.sample))
        starts = [index * (len(examples) - size) // max(1, self.sample - 1) for index in range(self.sample)]
        return [list(examples[start : start + size]) for start in starts]

    def sft(self) -> list[Piece]:
        """The teacher's episodes; the steps of the training."""
        from orchestra.rollout.policies.transformers import load_model
        from orchestra.training.sft import new_model, train_sft
        from orchestra.training.teacher import teacher_policy

        params, root = self.stage.params, self.stage.root
        source = params.model.folder(root)
        codec, episodes = Codec.load(source), list[Episode]()
        examples = self._training()
        teacher = teacher_policy(self.toolkit.catalogue, params.sft.teacher, params.sft.seed, codec.turn)
        batches = self.batches(examples)
        options = RolloutOptions(params.rollout, self.toolkit.catalogue.policy_price)
        found = self._each(
            batches,
            lambda batch: episodes.extend(rollout(batch, teacher, codec, self.toolkit, options)),
        )
        model = load_model(source) if params.model.base else new_model(source, params.sft.seed)
        need = (self.sample + 1) * LOGGED_STEPS * params.sft.batch_size
        few = [episodes[index % len(episodes)] for index in range(need)]
        steps = self._steps(
            lambda log: train_sft(model, codec, few, params.sft.model_copy(update={"epochs": 1}), self.work, log)
        )
        total = -(-len(examples) * params.sft.epochs // params.sft.batch_size)
        size = len(batches[0])
        return [
            found.piece("teacher episodes", f"batch of {size}", len(examples) / size),
            steps.piece("training", "step", total),
        ]

    def grpo(self) -> list[Piece]:
        """The steps of the training, and its checks on watched examples."""
        from orchestra.rollout.policies.transformers import TransformersPolicy, load_model
        from orchestra.training.grpo.trainer import train_grpo

        params, settings = self.stage.params, self.stage.params.grpo
        if settings.processes > 1 or settings.strategy != "ddp":
            raise ConfigError(
                "a sample runs in one process", where="forecast", fix="set grpo.processes: 1 in params.yaml first"
            )
        base = self._checkpoint(grpo.BASE)
        codec, price = Codec.load(base), self.toolkit.catalogue.policy_price
        examples, watched = split_watched(read_examples(self._train_file), settings.eval_examples, where="forecast")
        model = load_model(base)
        policy = TransformersPolicy("", name="grpo", model=model, eos_id=codec.eos_id)
        batches = self.batches(watched)
        options = RolloutOptions(params.rollout, price)
        checks = self._each(batches, lambda batch: rollout(batch, policy, codec, self.toolkit, options))
        # A first step also warms up; no check and no checkpoint falls into the sample.
        count = (self.sample + 1) * settings.num_iterations
        few = settings.model_copy(update={"steps": count, "eval_every": count + 1, "save_steps": count + 1})

        def unwatched(_: "PreTrainedModel") -> dict[str, float]:
            return {}

        steps = self._steps(
            lambda log: train_grpo(
                model, codec, self.toolkit, examples, few, params.rollout, price, self.work, log, unwatched
            )
        )
        size = len(batches[0])
        times = settings.steps // settings.eval_every + 1
        return [
            steps.piece("training", "step", settings.steps),
            checks.piece("checks", f"batch of {size} watched examples", times * len(watched) / size),
        ]

    def evaluate(self) -> list[Piece]:
        """Each policy over the held-out examples, what rules are told beforehand, and the safety set."""
        stage, toolkit, params = self.stage, self.toolkit, self.stage.params
        examples = evaluate.heldout(stage)
        for name in (REFERENCE, TRAINED):
            if name == REFERENCE or name in params.evaluate.policies:  # Rules are written with the reference's tokens.
                self._checkpoint(f"models/{name}")
        batches, needs = self.batches(examples), needed(params.evaluate.baselines)
        train = read_examples(self._train_file)
        asked, size = lesson_questions(train, params.evaluate.lessons), len(batches[0])
        pieces = []
        if "right" in needs:
            told = self._each(batches, lambda batch: asyncio.run(who_is_right(batch, toolkit)))
            pieces.append(told.piece("what the oracle knows", f"batch of {size}", len(examples) / size))
        if "lessons" in needs and asked:
            lessons = self.batches(asked)
            told, each = self._each(lessons, lambda batch: asyncio.run(take_lessons(batch, toolkit))), len(lessons[0])
            pieces.append(told.piece("what routers learn from", f"batch of {each}", len(asked) / each))
        contenders = evaluate.rules(stage, batches[0], toolkit, train=self.batches(train)[0])
        price = toolkit.catalogue.policy_price
        models = [evaluate.contender(name, stage.root, price, self.toolkit) for name in params.evaluate.policies]
        for contender in [*models, *contenders]:
            file, clean = self.work / f"{contender.name}.jsonl", list[Episode]()
            built = contender.build()
            ready = Contender(contender.name, partial(_same, built), contender.codec, contender.price)

            def attempt(
                batch: list[Example], ready: Contender = ready, file: Path = file, clean: list[Episode] = clean
            ) -> None:
                file.unlink(missing_ok=True)
                clean += running.evaluate([ready], batch, toolkit, params.rollout, file=file)[ready.name]

            tried = self._each(batches, attempt)
            pieces.append(tried.piece(contender.name, f"batch of {size}", len(examples) / size))
            if contender.name == TRAINED and params.evaluate.safety is not None:
                pieces.append(self._safety(ready, clean, examples, stage.root / params.evaluate.safety))
        return pieces

    def _safety(self, trained: Contender, clean: Sequence[Episode], examples: list[Example], file: Path) -> Piece:
        """The safety set, on the examples of the sample."""
        cases, limits = safety.read_cases(file), self.stage.params.rollout
        batches = self.batches(cases)
        tried = self._each(batches, lambda batch: safety.check(trained, batch, clean, examples, self.toolkit, limits))
        size = len(batches[0])
        return tried.piece("safety set", f"batch of {size} cases", len(cases) / size)

    def _checkpoint(self, name: str) -> Path:
        """The checkpoint of the stage that its folder is named after; raises `DataError` before it has run."""
        folder = self.stage.root / name
        if not (folder / "config.json").is_file():
            raise DataError(
                "no checkpoint yet", where=name, fix=f"run that stage first: orchestra run --until {folder.name}"
            )
        return folder

    @property
    def _train_file(self) -> Path:
        return self.stage.root / "data/validated/train.jsonl"

    def _training(self) -> list[Example]:
        watched = self.stage.params.grpo.eval_examples
        return split_watched(read_examples(self._train_file), watched, where=str(self._train_file))[0]

    def _each(self, batches: list[list[T]], work: Callable[[list[T]], object]) -> Sampled:
        found = self.sampled()
        for batch in batches:
            with found.unit():
                work(batch)
        return found

    def _steps(self, train: Callable[[Callable[[dict[str, float], int], None]], object]) -> Sampled:
        """Train, and take what passes between the first step's end and each later one's."""
        found = self.sampled()
        marks: list[tuple[int, float, float]] = []

        def log(metrics: dict[str, float], step: int) -> None:
            if not marks or step > marks[-1][0]:
                marks.append((step, time.monotonic(), float(found.budget.spent_usd)))

        train(log)
        for (first, began, before), (last, ended, after) in pairwise(marks):
            found.seconds.append((ended - began) / (last - first))
            found.usd.append((after - before) / (last - first))
        return found


def _same(policy: Policy) -> Policy:
    return policy


def main(stage: Stage) -> None:
    """Prints the forecast of the stage that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tasks.experiments.forecast")
    parser.add_argument("of", choices=("sft", "grpo", "evaluate"))
    parser.add_argument("--sample", type=int, default=4)
    options = parser.parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        forecaster = Forecaster(stage, options.sample, Path(folder))
        toolkit, before = forecaster.toolkit, forecaster.budget.spent_usd
        pieces: list[Piece] = getattr(forecaster, options.of)()
        spent_usd = forecaster.budget.spent_usd - before
    found = Forecast.of(pieces)
    print("\n".join([f"{options.of}: {found.lines()[0]}", *found.lines()[1:]]))
    if any(toolkit.catalogue.is_simulated(name) for name in toolkit.catalogue.entries):
        print("simulated experts: their dollars are not charged, and their seconds are not waited for")
    print(f"the sample cost {spent_usd:f} USD")
    cap = stage.params.budget.run_usd
    if cap is not None and found.usd.high > float(cap):
        print(f"warning: it could cross the cap of {cap:f} USD (budget.run_usd)")


if __name__ == "__main__":
    run("forecast", main)
