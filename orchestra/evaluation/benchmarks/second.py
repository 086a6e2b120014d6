"""Has a second judge judge a sample of the answers again, and says how far the two agree."""

import asyncio
from collections.abc import Sequence

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.errors import JudgeError
from orchestra.evaluation.benchmarks.agreement import Agreement, agreement, sample
from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.evaluation.benchmarks.run import Evaluation, cassette_of, judge_for
from orchestra.files import atomic
from orchestra.files.jsonl import parse_line, read_lines
from orchestra.rewards.judge import Judge
from orchestra.tools.replay.cassette import scope
from orchestra.types import Judged, Record


class Again(Record):
    """A line of second.jsonl."""

    item: str
    judged: Judged


def judge_again(
    evaluation: Evaluation, attempts: Sequence[Attempt], count: int, settings: JudgeSettings
) -> Agreement | None:
    """The agreement over `count` first trials that the first judge judged; a killed run continues.

    An answer that the second judge fails on is left out. Raises `BudgetError` when the cap is reached.
    """
    by_item = {one.item: one for one in attempts if one.trial == 0 and one.judged is not None}
    chosen = [by_item[item] for item in sample(list(by_item), count)]
    file = evaluation.folder / f"second-{settings.model}.jsonl"
    lines = read_lines(file, lenient=True) if file.exists() else []
    there = {one.item: one.judged for line in lines if isinstance(one := parse_line(line, Again), Again)}
    missing = [one for one in chosen if one.item not in there]
    if missing:
        there |= asyncio.run(_judged(evaluation, missing, settings))
        written = (Again(item=name, judged=judged).model_dump_json() + "\n" for name, judged in sorted(there.items()))
        atomic.write_text(file, "".join(written))
    pairs = [(bool(one.solved), there[one.item].solved) for one in chosen if one.item in there]
    first = evaluation.judging
    return agreement(first.model if first is not None else "", settings.model, pairs)


async def _judged(evaluation: Evaluation, attempts: Sequence[Attempt], settings: JudgeSettings) -> dict[str, Judged]:
    budget = Budget(evaluation.folder / f"{evaluation.ledger}.jsonl", evaluation.cap_usd, "benchmark")
    judge = judge_for(evaluation, settings, budget, cassette_of(evaluation))
    questions = {question.id: question for question in evaluation.questions}
    free = asyncio.Semaphore(evaluation.concurrency)
    assert judge is not None

    async def one(attempt: Attempt, judge: Judge) -> tuple[str, Judged] | None:
        question = questions[attempt.item]
        async with free:
            with scope(f"{attempt.item}/second"):
                try:
                    return attempt.item, await judge(question.question, attempt.answer or "", question.answer)
                except JudgeError:
                    return None

    with phase("second judge"):
        try:
            found = await asyncio.gather(*(one(attempt, judge) for attempt in attempts))
        finally:
            await judge.chat.aclose()
            budget.close()
    return dict(pair for pair in found if pair is not None)
