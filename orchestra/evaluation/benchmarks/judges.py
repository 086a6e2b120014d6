"""Asks each judge one small thing before an evaluation: no attempt is paid for where a judge is gone."""

import asyncio

from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.errors import JudgeError, ServiceError
from orchestra.evaluation.benchmarks.run import OVER, Evaluation, cassette_of, judge_for
from orchestra.evaluation.benchmarks.second import verdicts_miss

ANOTHER = "to name another judge: --judge MODEL --judge-price PROVIDER/MODEL (docs/how-to/run-benchmarks.md)"
WITHOUT = f"without --harness, {ANOTHER}"
"""Inspect keeps the official judge."""
NO_SECOND = "or leave out --agreement; orchestra analyse judges compares with any judge"


def check_judges(
    evaluation: Evaluation, second: JudgeSettings | None = None, count: int = 0, *, harness: bool = False
) -> None:
    """Raises `ServiceError` where the judge, or the `second` one of `count` answers, gives no reply; `BudgetError` at
    the cap.

    Nothing is asked in a replay, and no judge whose verdicts are all there. What a cassette holds is no reply.
    """
    first = evaluation.judging if evaluation.user == "model" else None
    attempts_miss = harness or any(map(evaluation.missing, evaluation.shards))
    if first is not None and attempts_miss:
        _check(evaluation, first, WITHOUT if harness else ANOTHER)
    if second is not None and (attempts_miss or verdicts_miss(evaluation, evaluation.attempts(), count, second)):
        _check(evaluation, second, NO_SECOND)


def _check(evaluation: Evaluation, settings: JudgeSettings, other: str) -> None:
    cassette = cassette_of(evaluation)
    if cassette is not None and cassette.mode == "replay":
        return
    budget = evaluation.budget()
    judge = judge_for(evaluation, settings, budget, None)
    assert judge is not None

    async def asked() -> None:
        try:
            await judge.answer_at_all()
        finally:
            await judge.chat.aclose()

    try:
        with phase(OVER):
            asyncio.run(asked())
    except JudgeError as error:
        fix = "; ".join(filter(None, (error.fix, other)))
        raise ServiceError(f"{error.what}: nothing was asked of the model", where=error.where, fix=fix) from None
    finally:
        budget.close()
