"""Asks each judge one small thing before an evaluation: no attempt is paid for where a judge is gone."""

import asyncio

from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.errors import JudgeError, ServiceError
from orchestra.evaluation.benchmarks.run import OVER, Evaluation, cassette_of, judge_for
from orchestra.tools.replay.cassette import scope

ANOTHER = "to name another judge: --judge MODEL --judge-price PROVIDER/MODEL (docs/how-to/run-benchmarks.md)"
WITHOUT = f"without --harness, {ANOTHER}"
"""Inspect keeps the official judge."""
NO_SECOND = "or leave out --agreement; orchestra analyse judges compares with any judge"


def check_judges(evaluation: Evaluation, second: JudgeSettings | None = None, *, harness: bool = False) -> None:
    """Raises `ServiceError` where the judge, or the `second` one, gives no reply, and `BudgetError` at the cap.

    Nothing is asked in a replay, nor where all verdicts are there.
    """
    first = evaluation.judging if evaluation.user == "model" else None
    if first is not None and (harness or any(map(evaluation.missing, evaluation.shards))):
        _check(evaluation, first, WITHOUT if harness else ANOTHER)
    if second is not None:
        _check(evaluation, second, NO_SECOND)


def _check(evaluation: Evaluation, settings: JudgeSettings, other: str) -> None:
    cassette, budget = cassette_of(evaluation), evaluation.budget()
    if cassette is not None and cassette.mode == "replay":
        return
    judge = judge_for(evaluation, settings, budget, cassette)
    assert judge is not None

    async def asked() -> None:
        try:
            await judge.answer_at_all()
        finally:
            await judge.chat.aclose()

    try:
        with phase(OVER), scope("is the judge there"):
            asyncio.run(asked())
    except JudgeError as error:
        fix = "; ".join(filter(None, (error.fix, other)))
        raise ServiceError(f"{error.what}: nothing was asked of the model", where=error.where, fix=fix) from None
    finally:
        budget.close()
