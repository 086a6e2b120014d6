"""Has a second judge judge a sample of the answers again, and says how far the two agree."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.errors import JudgeError
from orchestra.evaluation.benchmarks.agreement import Agreement, agreement, sample
from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.evaluation.benchmarks.run import Evaluation, cassette_of, judge_for
from orchestra.files import atomic
from orchestra.files.jsonl import end_with_a_line, parse_line, read_lines
from orchestra.rewards.rubrics import rubric
from orchestra.text import one_line
from orchestra.tools.replay.cassette import scope
from orchestra.tools.waiting import at_once
from orchestra.types import Judged, Record


class Again(Record):
    """A line of second-JUDGE.jsonl."""

    item: str
    judged: Judged


def judge_again(
    evaluation: Evaluation,
    attempts: Sequence[Attempt],
    count: int,
    settings: JudgeSettings,
    say: Callable[[str], None] = lambda _: None,
) -> Agreement | None:
    """The agreement over `count` first trials that the first judge judged; a killed run continues.

    An answer that the second judge fails on is left out, and said. Raises `JudgeError` when it fails on all, and
    `BudgetError` when the cap is reached; what was made is kept.
    """
    chosen = _chosen(attempts, count)
    prompts, file = _prompts(evaluation, chosen, settings), _file(evaluation, settings)
    there = _kept(file, prompts)
    missing = {item: prompt for item, prompt in prompts.items() if item not in there}
    if missing:
        made, failed = asyncio.run(_judged(evaluation, missing, settings, file))
        there |= made
        if failed:
            what = f"no second verdict on {len(failed)} of {len(prompts)} answers: {one_line(failed[0].what)}"
            if not there:
                fix = "see that it answers, or leave out --agreement"
                raise JudgeError(what, where=f"the judge {settings.model}", fix=fix)
            say(f"evaluate: the judge {settings.model}: {what}")
    pairs = [(bool(one.solved), there[one.item].solved) for one in chosen if one.item in there]
    first = evaluation.judging
    return agreement(first.model if first is not None else "", settings.model, pairs)


def verdicts_miss(evaluation: Evaluation, attempts: Sequence[Attempt], count: int, settings: JudgeSettings) -> bool:
    """Whether `judge_again` would ask the second judge."""
    prompts = _prompts(evaluation, _chosen(attempts, count), settings)
    return len(_kept(_file(evaluation, settings), prompts)) < len(prompts)


def _chosen(attempts: Sequence[Attempt], count: int) -> list[Attempt]:
    by_item = {one.item: one for one in attempts if one.trial == 0 and one.judged is not None}
    return [by_item[item] for item in sample(list(by_item), count)]


def _prompts(evaluation: Evaluation, chosen: Sequence[Attempt], settings: JudgeSettings) -> dict[str, str]:
    """What the second judge is asked, by question."""
    questions, asking = {question.id: question for question in evaluation.questions}, rubric(settings.rubric)
    return {
        one.item: asking.messages(questions[one.item].question, one.answer or "", questions[one.item].answer)[0].content
        for one in chosen
    }


def _file(evaluation: Evaluation, settings: JudgeSettings) -> Path:
    return evaluation.folder / f"second-{settings.model}.jsonl"


def _kept(file: Path, prompts: Mapping[str, str]) -> dict[str, Judged]:
    """The verdicts of an earlier run; one on another answer is none on this one."""
    if not file.exists():
        return {}
    end_with_a_line(file)
    lines = (parse_line(line, Again) for line in read_lines(file, lenient=True))
    found = [one for one in lines if isinstance(one, Again)]
    return {one.item: one.judged for one in found if prompts.get(one.item) == one.judged.prompt}


async def _judged(
    evaluation: Evaluation, prompts: Mapping[str, str], settings: JudgeSettings, file: Path
) -> tuple[dict[str, Judged], list[JudgeError]]:
    """The verdicts, each on disk at once, and the failures. What stops it is raised when those under way have ended."""
    budget = evaluation.budget()
    judge = judge_for(evaluation, settings, budget, cassette_of(evaluation))
    made, failed = dict[str, Judged](), list[JudgeError]()
    assert judge is not None

    async def one(item: str, prompt: str) -> None:
        try:
            with scope(f"{item}/second"):
                found = await judge.read(prompt)
        except JudgeError as error:
            failed.append(error)
        else:
            made[item] = found
            atomic.append_text(file, Again(item=item, judged=found).model_dump_json() + "\n")

    with phase("second judge"):
        try:
            await at_once((one(item, prompt) for item, prompt in prompts.items()), evaluation.concurrency)
        finally:
            await judge.chat.aclose()
            budget.close()
    return made, failed
