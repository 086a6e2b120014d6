"""`orchestra evaluate`: a model on a published benchmark, its figures in reports/benchmarks and in MLflow."""

import math
import os
import sys
from decimal import Decimal
from pathlib import Path

from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import load_params
from orchestra.errors import EXIT_ERROR, BudgetError, ConfigError, ServiceError
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Attempt
from orchestra.evaluation.benchmarks.hle.harness import Harnessed, harnessed
from orchestra.evaluation.benchmarks.judges import check_judges
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.report import (
    FAILURES,
    REPORTS,
    Summary,
    metrics,
    other_judge,
    results,
    summarise,
    table,
    write,
)
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.second import judge_again
from orchestra.evaluation.benchmarks.source import files_of, hashes
from orchestra.system.environment import quiet
from orchestra.system.workspace import Screen, workspace_id
from tasks.experiments.wanted import Wanted, options
from tasks.platform.commands import run_command
from tasks.platform.pages import renew_benchmarks
from tasks.platform.registry import Registry
from tasks.platform.stage import Meter

screen = Screen()
EXPERIMENT = "orchestra benchmarks"
INSPECT = "inspect"


def prepare(wanted: Wanted, root: Path) -> Evaluation:
    """The evaluation that is asked for; raises `OrchestraError` of one line for what is missing."""
    params = load_params(root / "params.yaml")
    protocol = BENCHMARKS.find(wanted.benchmark).protocol
    judge = _judge(wanted, protocol.judge, params.world.judge)
    _check_second(wanted, judge or protocol.judge, protocol.second_judge)
    folder = _checkpoint_of(wanted.model, root, params.promote.model_name)
    model = ModelSettings(
        root=root,
        params=params,
        model=folder,
        price=wanted.price,
        question_usd=None if wanted.question_usd is None else Decimal(wanted.question_usd),
        max_tokens=protocol.max_output_tokens,
        deadline_s=wanted.deadline,
        named=f"version-{wanted.model}" if wanted.model.isdigit() else "",
    )
    return Evaluation(
        root=root,
        params=params,
        benchmark=wanted.benchmark,
        model=model,
        files=files_of(protocol, root, [Path(name) for name in wanted.data]),
        trials=wanted.trials or protocol.trials,
        limit=wanted.limit,
        only=tuple(wanted.only),
        user=wanted.user,
        concurrency=wanted.concurrency,
        cap_usd=None if wanted.cap_usd is None else Decimal(wanted.cap_usd),
        judge=judge,
    )


def _check_second(wanted: Wanted, first: JudgeSettings | None, second: JudgeSettings | None) -> None:
    """Raises `ConfigError` where an agreement is asked for that there is none of, before anything is paid."""
    if wanted.agreement and second is None:
        raise ConfigError("this benchmark has no second judge", where="--agreement", fix="leave it out")
    if wanted.agreement and first is not None and second is not None and first.model == second.model:
        what = f"the second judge is {second.model} too, and a judge agrees with itself"
        raise ConfigError(what, where="--agreement", fix="leave it out, or name another --judge")


def _judge(wanted: Wanted, official: JudgeSettings | None, known: JudgeSettings | None) -> JudgeSettings | None:
    """Another judge than the protocol's, where one is named: its figures are not comparable, and say so."""
    if wanted.judge is None:
        return None
    if official is None:
        raise ConfigError("rules decide this benchmark", where="--judge", fix="leave it out")
    if wanted.judge_price is None:
        raise ConfigError("the judge's price is unknown", where="--judge", fix="name its row: --judge-price")
    named = JudgeSettings.named(wanted.judge, wanted.judge_price, known)
    return official.model_copy(update=named.model_dump(exclude_unset=True, exclude={"rubric"}))


def _checkpoint_of(model: str, root: Path, registered: str) -> str:
    """The folder of a registered version, checked; anything else as it is."""
    if not model.isdigit():
        return model
    registry = Registry(root, registered)
    version = registry.version(int(model))
    if version is None:
        raise ConfigError(f"no version {model}", where="--model", fix="see the registry: orchestra status")
    return str(registry.fetch(version).verified())


def progress(evaluation: Evaluation) -> "Progress":
    """Counts the attempts of an evaluation on the screen."""
    total = len(evaluation.questions) * evaluation.trials
    left = sum(len(evaluation.missing(shard)) for shard in evaluation.shards)
    return Progress(evaluation.benchmark, total, total - left)


class Progress:
    """Attempts done, failed and to do, with the time that is left."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self.failed, self._before = 0, done
        self._meter = Meter(screen, f"evaluate: {label}", total - done)
        if done:
            screen(f"evaluate: {done} of {total} attempts are there already")

    def __call__(self, attempt: Attempt) -> None:
        self.failed += bool(attempt.failure)
        note = f"{self.failed} failed" if self.failed else ""
        self._meter(self._meter.done + 1, note=note)


def check(evaluation: Evaluation, wanted: Wanted) -> None:
    """Raises `ServiceError` where a judge that this command needs gives no reply: nothing is paid for it then."""
    second = evaluation.spec.protocol.second_judge if wanted.agreement else None
    check_judges(evaluation, second, wanted.agreement or 0, harness=wanted.harness is not None)


def forget(evaluation: Evaluation) -> None:
    """Take failures out, so that they are attempted again."""
    count = sum(evaluation.journal.forget_failures(shard) for shard in evaluation.shards)
    screen(f"evaluate: {count} failures are attempted again")


def finish(evaluation: Evaluation, wanted: Wanted, other: Harnessed | None = None) -> Summary:
    """Put the attempts together: the second judge, the figures, the report's files, and MLflow's run.

    `other`: those of a harness, whose code decided, in place of ours.
    """
    attempts, spec = evaluation.attempts() if other is None else _ordered(evaluation, other), evaluation.spec
    failed = [attempt.failure for attempt in attempts if attempt.solved is None]
    if failed:
        what = f"{len(failed)} of {len(attempts)} attempts have no verdict"
        again = "add --retry-failures" if other is None else "run it again"
        if len(failed) == len(attempts):
            fix = f"see that the model and its judge answer, then {again}"
            raise ServiceError(f"{what}: {failed[-1]}", where=evaluation.model.label, fix=fix)
        screen(f"evaluate: {what}, see {FAILURES}; to repeat them, {again}")
    second, count = spec.protocol.second_judge, wanted.agreement
    agreed = judge_again(evaluation, attempts, count, second, screen) if second and count else None
    judging = evaluation.judging
    variant = "-".join(filter(None, (evaluation.variant, "" if other is None else INSPECT)))
    summary = summarise(
        spec,
        attempts,
        model=evaluation.model.label,
        identity=evaluation.folder.name if other is None else f"{evaluation.folder.name}-{wanted.harness}",
        judge=None if judging is None else judging.model,
        data_sha256=hashes(evaluation.files),
        questions=len(evaluation.questions),
        there=len(evaluation.whole),
        trials=evaluation.trials,
        checkpoint=evaluation.model.checkpoint_hash,
        agreement=agreed,
        user=evaluation.user,
        variant=variant,
        own_data=not evaluation.other_files,
    )
    protocol = spec.protocol
    if other is not None:
        own = {f"{wanted.harness}_{name.rpartition('/')[2]}": value for name, value in other.figures.items()}
        finite = {name: value for name, value in own.items() if math.isfinite(value)}
        summary = summary.model_copy(update={"figures": {**summary.figures, **finite}})
        protocol = protocol.model_copy(update={"scorer": other.scorer})
    if other_by := other_judge(summary):
        screen(f"evaluate: {other_by}: compare them with no published figure")
        update = {"judge": judging, "notes": (*protocol.notes, f"Another judge: {other_by}.")}
        protocol = protocol.model_copy(update=update)
    folder = evaluation.root / REPORTS / evaluation.benchmark / summary.name
    write(folder, summary, protocol, attempts)
    log(evaluation.root, summary, folder)
    renew_benchmarks(Registry(evaluation.root, evaluation.params.promote.model_name))
    print("\n".join(table(results(evaluation.root))))
    screen(f"evaluate: {folder.relative_to(evaluation.root)} holds the attempts, the failures and the figures")
    return summary


def _ordered(evaluation: Evaluation, other: Harnessed) -> list[Attempt]:
    """Its attempts as the questions stand in the file: inspect lists them as they ended."""
    place = {question.id: index for index, question in enumerate(evaluation.questions)}
    return sorted(other.attempts, key=lambda attempt: place[attempt.item])


def log(root: Path, summary: Summary, folder: Path) -> None:
    """A run in MLflow for each result, all in one experiment, so that they stand beside each other.

    It takes the place of the run of the same evaluation before, as the result's folder does: a command that continued,
    or had failures repeated, would be a second result there.
    """
    from tasks.platform.tracking import LONGEST_NAME, WORKSPACE, connect, experiment, log_all, said

    client = connect(root)
    where = experiment(client, root, EXPERIMENT)
    called, own = said(f"{summary.benchmark} {summary.name}", LONGEST_NAME), workspace_id(root)
    identity = said(summary.identity)
    # A filter cannot hold every name that a user may give, so what is of outside is compared here.
    earlier = [
        one
        for one in client.search_runs([where], f"tags.`{WORKSPACE}` = '{own}'")
        if one.info.run_name == called and one.data.tags.get("identity") == identity
    ]
    run = client.create_run(where, run_name=called).info.run_id
    told = summary.model_dump(mode="json", include={"benchmark", "model", "judge", "questions", "trials", "split"})
    tags = {f"data.{name}": value for name, value in summary.data_sha256.items()}
    tags |= {"identity": summary.identity, "whole": str(summary.whole), "simulated": str(summary.simulated)}
    tags |= {WORKSPACE: own, "variant": summary.variant}
    tags |= {} if summary.protocol_judge is None else {"protocol_judge": summary.protocol_judge}
    log_all(client, run, metrics=metrics(summary), params=told, tags=tags)
    client.log_artifacts(run, str(folder))
    client.set_terminated(run)
    for one in earlier:
        client.delete_run(one.info.run_id)


def main(arguments: list[str]) -> None:
    """One process; a killed one continues."""
    wanted, root = Wanted(**vars(options().parse_args(arguments))), Path.cwd()
    if wanted.harness not in (None, INSPECT):
        raise ConfigError(f"no harness named {wanted.harness}", where="--harness", fix=f"{INSPECT}, or leave it out")
    if wanted.harness is not None and wanted.retry_failures:
        what = "inspect asks every question again, so it has no failures to repeat"
        raise ConfigError(what, where="--retry-failures", fix="leave it or --harness out")
    evaluation = prepare(wanted, root)
    with evaluation.alone():
        if wanted.harness is not None:
            check(evaluation, wanted)
            screen(f"evaluate: {len(evaluation.questions)} questions by inspect_evals")
            finish(evaluation, wanted, harnessed(evaluation))
            return
        if wanted.retry_failures:
            forget(evaluation)
        try:
            check(evaluation, wanted)
            evaluation.attempt(evaluation.shards, progress(evaluation))
        except BudgetError as end:
            screen(f"error: evaluate: capped: {end}")
            sys.exit(EXIT_ERROR)
        finish(evaluation, wanted)


if __name__ == "__main__":
    quiet()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_command(main)
