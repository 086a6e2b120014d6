"""Runs a benchmark: every question so many times, concurrently, resumed per attempt, under a cap of dollars."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import Params
from orchestra.errors import DataError, Fault, OrchestraError, ToolError
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Attempt, Benchmark, Question
from orchestra.evaluation.benchmarks.journal import Journal, Key, QuestionShard, shards
from orchestra.evaluation.benchmarks.models import ModelSettings, TestedModel, digest_of, file_name
from orchestra.evaluation.benchmarks.source import hashes
from orchestra.files.checkpoint import hash_file
from orchestra.rewards.judge import Judge
from orchestra.rewards.rubrics import rubric
from orchestra.system.workspace import alone
from orchestra.text import one_line
from orchestra.tools.experts.judging import JudgeEndpoint
from orchestra.tools.failures import ReplyError
from orchestra.tools.replay.cassette import Cassette, scope
from orchestra.tools.waiting import at_once
from orchestra.types import StopReason, add_up

OnAttempt = Callable[[Attempt], None]
WORK = "work/benchmarks"
OVER, LEDGER = "evaluation", "ledger"
LONGEST = 120
"""Characters of a readable variant."""


@dataclass(frozen=True)
class Evaluation:
    """One model on one benchmark. It can be sent to another process: what it holds are settings."""

    root: Path
    params: Params
    benchmark: str
    model: ModelSettings
    files: tuple[Path, ...]
    """The published files."""
    trials: int = 1
    limit: int | None = None
    """The first questions only."""
    only: tuple[str, ...] = ()
    """Questions of these groups only; empty: all."""
    user: str = "model"
    """Who plays the user of a dialogue: model, scripted, or solo for tasks that need none."""
    concurrency: int = 8
    """Attempts at once, in each process."""
    cap_usd: Decimal | None = None
    """Of this process: attempts, judges and simulated users together."""
    judge: JudgeSettings | None = None
    """In place of the protocol's."""
    ledger: str = LEDGER
    """Name of the ledger's file; processes have one each."""

    @cached_property
    def spec(self) -> Benchmark:
        return BENCHMARKS.find(self.benchmark)

    @cached_property
    def questions(self) -> list[Question]:
        """Those that are asked; raises `DataError` where the files hold none, or two of one id."""
        found = self.spec.load(self.files)
        if not found:
            raise DataError("no question in the files", where=self.benchmark, fix="name the published files: --data")
        ids = [question.id for question in found]
        if len(set(ids)) < len(ids):
            twice = next(one for one, count in Counter(ids).items() if count > 1)
            fix = "name each file once, and give each question an id of its own"
            raise DataError(f"two questions have the id {twice!r:.80}", where=self.benchmark, fix=fix)
        judged = found if self.judging is not None and not self.spec.play else []
        if empty := [one.id for one in judged if not (one.question.strip() and one.answer.strip())]:
            what = f"question {empty[0]!r:.80} has no text or no reference answer, so no verdict could be right"
            raise DataError(what, where=self.benchmark, fix="get the files again, or take it out")
        if unknown := set(self.only) - {question.group for question in found}:
            groups = ", ".join(sorted({question.group for question in found}))
            raise DataError(f"no group named {min(unknown)}", where=self.benchmark, fix=f"one of: {groups}")
        some = [question for question in found if not self.only or question.group in self.only]
        if self.user == "solo":
            some = [question for question in some if question.settings.get("solo")]
        return some[: self.limit]

    @cached_property
    def whole(self) -> list[Question]:
        """All questions of the files, asked or not."""
        return replace(self, limit=None, only=(), user="model").questions

    @property
    def judging(self) -> JudgeSettings | None:
        return self.judge or self.spec.protocol.judge

    @cached_property
    def folder(self) -> Path:
        """Where this evaluation's attempts are kept: by everything that decides one, but not by how many there are."""
        whole = self.whole
        digest = digest_of(
            self.spec.protocol.model_dump_json(),
            [question.model_dump_json() for question in whole],
            self.model.identity,
            *self._judged_by,
            self.user,
        )
        return self.root / WORK / self.benchmark / digest

    @property
    def _judged_by(self) -> tuple[str, ...]:
        """The judge and its price of the day."""
        judging = self.judging
        return (
            () if judging is None else (judging.model_dump_json(), self.model.price_of(judging.price).model_dump_json())
        )

    @cached_property
    def other_files(self) -> tuple[str, ...]:
        """Names of the files in place of the workspace's own, where the benchmark is about these; none: its own."""
        protocol = self.spec.protocol
        own = protocol.settings.get("file")
        if own is None or protocol.source is not None:
            return ()
        there = self.root / str(own)
        same = there.is_file() and [*hashes(self.files).values()] == [hash_file(there)]
        return () if same else tuple(file.stem for file in self.files)

    @property
    def variant(self) -> str:
        """What sets it apart from the protocol's evaluation of this model, as a part of a file's name; empty: nothing.

        So no part, and no result of other files, another judge or price, takes the place of a whole result.
        """
        parts = [*self.model.terms, *(f"data-{name}" for name in self.other_files)]
        if len(self.whole) != (self.spec.protocol.questions or len(self.whole)):
            parts.append(f"{len(self.whole)}-questions")
        parts += sorted(set(self.only))
        if len(self.questions) == self.limit:
            parts.append(f"first-{self.limit}")
        if self.trials != self.spec.protocol.trials:
            parts.append(f"{self.trials}-trials")
        if self.judge is not None:
            parts.append(f"judge-{self.judge.model}")
        if self.user != "model":
            parts.append(self.user)
        name = file_name("-".join(parts))
        return name if len(name) < LONGEST else digest_of(name)

    def alone(self) -> AbstractContextManager[None]:
        """One command at a time: two would ask for the same attempts, each under a cap of its own."""
        return alone(self.folder / "lock", self.folder, "on this evaluation")

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "attempts")

    @property
    def ledgers(self) -> list[Path]:
        """What it and the workers of a runner have booked in."""
        return sorted(self.folder.glob(f"{LEDGER}*.jsonl"))

    def budget(self) -> Budget:
        """Its cap over all that was booked, by workers too; one of these has its share of the cap for itself."""
        own = self.folder / f"{self.ledger}.jsonl"
        others = [file for file in self.ledgers if file != own] if self.ledger == LEDGER else []
        return Budget(own, self.cap_usd, "benchmark", others=others)

    @cached_property
    def shards(self) -> list[QuestionShard]:
        """Those with a question that is asked, numbered over all questions: a part finds the attempts of the whole."""
        asked = {question.id for question in self.questions}
        every = shards([question.id for question in self.whole])
        parts = [replace(shard, items=tuple(item for item in shard.items if item in asked)) for shard in every]
        return [shard for shard in parts if shard.items]

    def missing(self, shard: QuestionShard) -> list[Key]:
        """The attempts of a shard that are not there yet, or have no verdict yet."""
        there = self._decided(shard)
        return [key for item in shard.items for trial in range(self.trials) if (key := (item, trial)) not in there]

    def attempts(self) -> list[Attempt]:
        """All that are there, question by question and trial by trial: the same order whoever made them when."""
        found: list[Attempt] = []
        for shard in self.shards:
            there = self._decided(shard)
            found += [there[key] for item in shard.items for n in range(self.trials) if (key := (item, n)) in there]
        return found

    def _decided(self, shard: QuestionShard) -> dict[Key, Attempt]:
        return {key: attempt for key, attempt in self.journal.read(shard).items() if not attempt.unjudged}

    def attempt(self, some: Sequence[QuestionShard], on_attempt: OnAttempt = lambda _: None) -> int:
        """Make the missing attempts of these shards; returns how many were made.

        Raises `BudgetError` when the next call could cross the cap, after those under way have ended; what was made is
        kept, also answers that have no verdict yet. A failure of a tool, an endpoint or a judge is an attempt without a
        verdict; thoughts of the model that do not end, and its refusal, are a wrong one.
        """
        return asyncio.run(_OpenRun.open(self).make(some, on_attempt))


@dataclass(frozen=True)
class _OpenRun:
    """An evaluation with its model and its judge open."""

    evaluation: Evaluation
    model: TestedModel
    judge: Judge | None
    budget: Budget
    questions: dict[str, Question]

    @classmethod
    def open(cls, evaluation: Evaluation) -> _OpenRun:
        cassette = cassette_of(evaluation)
        budget = evaluation.budget()
        # What is played is scored by the benchmark's own code.
        judge = None if evaluation.spec.play else judge_for(evaluation, evaluation.judging, budget, cassette)
        questions = {question.id: question for question in evaluation.questions}
        play = _player(evaluation.spec.play)
        model = evaluation.model.open(budget, cassette) if play is None else play(evaluation, budget, cassette)
        return cls(evaluation, model, judge, budget, questions)

    async def make(self, some: Sequence[QuestionShard], on_attempt: OnAttempt) -> int:
        async def one(shard: QuestionShard, key: Key, answered: Attempt | None) -> None:
            attempt = await self._attempt(shard, key, answered)
            self.evaluation.journal.write(shard, attempt)
            on_attempt(attempt)

        jobs = []
        for shard in some:
            there = self.evaluation.journal.read(shard)
            jobs += [one(shard, key, there.get(key)) for key in self.evaluation.missing(shard)]
        try:
            with phase(OVER):
                return len(await at_once(jobs, self.evaluation.concurrency))
        finally:
            await self.model.aclose()
            if self.judge is not None:
                await self.judge.chat.aclose()
            self.budget.close()

    async def _attempt(self, shard: QuestionShard, key: Key, answered: Attempt | None) -> Attempt:
        """One attempt with its verdict; raises what the caller must act on, such as a cap or a wrong setting.

        `answered`: an earlier command's attempt, whose verdict is missing.
        """
        (item, trial), question = key, self.questions[key[0]]
        with scope(f"{item}/{trial}"):
            try:
                attempt = answered or await self.model.attempt(question, trial)
            except OrchestraError as error:
                if error.fault is Fault.CALLER:
                    raise
                charges = error.charges if isinstance(error, ToolError) else ()
                usd, failure = add_up(charge.cost_usd for charge in charges), one_line(str(error))
                made = Attempt(item=item, trial=trial, group=question.group, cost_usd=usd)
                if isinstance(error, ReplyError) and error.own is not None:
                    own = {"solved": False, "why": error.own, "stop": StopReason.TOKEN_LIMIT.value}
                    return made.model_copy(update=own | {"latency_s": error.seconds})
                return made.model_copy(update={"failure": failure})
            told: Attempt | None = None
            try:
                told = await decided(attempt, question, self.judge)
                return told
            finally:
                if attempt.unjudged and answered is None and (told is None or told.failure):
                    self.evaluation.journal.write(shard, attempt)  # It is paid for: only the judge is asked again.


def _player(name: str) -> Callable[..., TestedModel] | None:
    """The function that `Benchmark.play` names, imported at its first use."""
    module, _, function = name.partition(":")
    found: Callable[..., TestedModel] | None = getattr(import_module(module), function) if name else None
    return found


async def decided(attempt: Attempt, question: Question, judge: Judge | None) -> Attempt:
    """The attempt with the judge's verdict, where it has none yet; no answer is not solved, whoever judges."""
    if attempt.solved is not None or attempt.failure:
        return attempt
    if attempt.answer is None or not attempt.answer.strip():
        return attempt.model_copy(update={"solved": False, "why": attempt.stop or "no answer"})
    if judge is None:
        return attempt.model_copy(update={"failure": "no judge is configured"})
    try:
        said = await judge(question.question, attempt.answer, question.answer)
    except OrchestraError as error:
        if error.fault is Fault.CALLER:
            raise
        return attempt.model_copy(update={"failure": one_line(str(error))})
    why = "right" if said.solved else "wrong answer"
    return attempt.model_copy(update={"solved": said.solved, "why": why, "judged": said})


def cassette_of(evaluation: Evaluation) -> Cassette | None:
    """What records or replays the evaluation, or None."""
    return evaluation.model.cassette()


def judge_for(
    evaluation: Evaluation, settings: JudgeSettings | None, budget: Budget, cassette: Cassette | None
) -> Judge | None:
    """The judge of these settings under the evaluation's cap; None without settings. Raises `ConfigError`."""
    if settings is None:
        return None
    model = evaluation.model
    chat = JudgeEndpoint.of(settings, model.params.world, model.root).chat(budget, cassette)
    return Judge(chat, rubric(settings.rubric), settings.max_output_tokens)
