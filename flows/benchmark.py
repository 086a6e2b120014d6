"""The benchmark flow: one task per shard of questions, on the configured task runner.

On a cluster, every worker must see the workspace, because attempts are written there.
"""

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.states import Completed

from flows._runs import under_way
from flows.synthesize import SETTING, task_runner
from orchestra.accounting.ledger import total
from orchestra.errors import ConfigError
from orchestra.evaluation.benchmarks.journal import QuestionShard
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.files.jsonl import stream_jsonl
from orchestra.system.workspace import Screen
from orchestra.tools.replay.cassette import SETTING as CASSETTE
from orchestra.types import Charge, add_up
from tasks.experiments.benchmark import check, finish, forget, prepare
from tasks.experiments.wanted import Wanted

screen = Screen()


@task(cache_policy=NONE)
def attempt_shard(evaluation: Evaluation, shard: QuestionShard, cap_usd: Decimal | None) -> int:
    """Make a shard's missing attempts, on whichever machine this runs; returns how many were made."""
    own = replace(evaluation, ledger=f"ledger-{shard.index:05d}", cap_usd=cap_usd)
    return own.attempt([shard])


@flow(name="benchmark", task_runner=task_runner(os.environ.get(SETTING) or "processes"))
def benchmark(wanted: dict[str, Any]) -> State[Any]:
    """Every missing attempt, then the figures; the cap is shared among the shards by what they have to do.

    `wanted` are the fields of `Wanted`.
    """
    root, began = Path.cwd(), time.monotonic()
    asked = Wanted(**wanted)
    if os.environ.get(CASSETTE, "replay").partition(":")[0] != "replay":
        fix = "record in one process, without --runner; then replay"
        raise ConfigError("several processes cannot write one cassette", where=CASSETTE, fix=fix)
    with under_way(root, alone=True), ExitStack() as stack:
        evaluation = prepare(asked, root)
        stack.enter_context(evaluation.alone())
        if asked.retry_failures:
            forget(evaluation)
        check(evaluation, asked)
        todo = [shard for shard in evaluation.shards if evaluation.missing(shard)]
        caps = shares(evaluation, todo)
        every, done = len(evaluation.questions) * evaluation.trials, 0
        left = sum(len(evaluation.missing(shard)) for shard in todo)
        for future in as_completed(attempt_shard.map(unmapped(evaluation), todo, caps) if todo else []):
            done += future.result()
            made = every - left + done
            eta = (time.monotonic() - began) / max(done, 1) * (left - done)
            screen(f"benchmark: {made}/{every} attempts ({100 * made // every}%), {eta:.0f} s left")
        summary = finish(evaluation, asked)
    message = f"{summary.benchmark}: {summary.scored} verdicts, {summary.failures} failures"
    return Completed(message=message, data=summary.model_dump(mode="json"))


def shares(evaluation: Evaluation, todo: list[QuestionShard]) -> list[Decimal | None]:
    """Each shard's own cap: what it has spent, and its part of what is left, by the attempts it lacks."""
    if evaluation.cap_usd is None:
        return [None] * len(todo)
    spent = {file.stem: total(stream_jsonl(file, Charge)) for file in evaluation.ledgers}
    left_usd = max(Decimal(0), evaluation.cap_usd - add_up(spent.values()))
    counts = [len(evaluation.missing(shard)) for shard in todo]
    with localcontext(prec=50):
        parts = [(left_usd * count / sum(counts)).quantize(Decimal("1e-9")) for count in counts]
    return [part + spent.get(f"ledger-{shard.index:05d}", Decimal(0)) for part, shard in zip(parts, todo, strict=True)]
