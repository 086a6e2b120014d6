"""Whether an example is solved: exact, numeric, database or judged. A judge that failed is never a score of 0."""

from typing import TYPE_CHECKING

from orchestra.domains.compare import judge as judge_domain
from orchestra.domains.compare import mentions
from orchestra.errors import DataError, JudgeError
from orchestra.rewards.answers import same_number, same_text
from orchestra.rewards.rubrics import CALLS
from orchestra.tools.base import NO_ANSWER
from orchestra.types import Example, Verdict

if TYPE_CHECKING:
    from orchestra.rewards.judge import Judge
    from orchestra.tools.recording import Recording
    from orchestra.tools.session import ToolSession


def verify(example: Example, answer: str, session: "ToolSession | None") -> Verdict:
    """The verdict on an answered episode; only domains need `session`. Raises `JudgeError` when it cannot be known."""
    verifier = example.verifier
    if verifier.kind == "database":
        if session is None or session.domain is None or session.world is None:
            raise DataError("a database verifier without a domain", where=example.id, fix="name the example's domain")
        return judge_domain(session.world, session.domain, verifier.golden_calls, verifier.communicate, answer)
    if verifier.answer is None:
        raise JudgeError("no expected answer to compare with", where=example.id)
    if verifier.kind == "numeric":
        solved = same_number(answer, verifier.answer, verifier.tolerance)
    elif verifier.kind == "exact":
        solved = same_text(answer, verifier.answer)
    else:
        raise JudgeError(
            "no judge is configured", where=example.id, fix="name one in world.judge, or use exact or numeric"
        )
    return Verdict(solved=solved, why="right" if solved else "wrong answer")


async def decide(example: Example, answer: str, session: "ToolSession", judge: "Judge | None" = None) -> Verdict | None:
    """The verdict on an answered episode: a rule's where one decides, otherwise the judge's; None when it cannot be
    known. Raises `BudgetError` when the judge cannot be paid."""
    expected = example.verifier.answer
    try:
        if session.recording is not None:
            return await _of_calls(example, answer, session.recording, judge)
        if example.verifier.kind != "judge" or judge is None or expected is None:
            return verify(example, answer, session)
        if same_text(answer, expected):
            return Verdict(solved=True, why="right")
        if answer.startswith(NO_ANSWER):  # An expert's observation, as routers and the oracle read it.
            return Verdict(solved=False, why="wrong answer")
        said = await judge(example.instruction, answer, expected)
    except JudgeError as failure:
        # Nobody expects a verdict where there is nothing to compare with.
        session.failures.lost(failure, quiet=expected is None and session.recording is None)
        return None
    return Verdict(solved=said.solved, why="right" if said.solved else "wrong answer", judged=said)


async def _of_calls(example: Example, answer: str, recording: "Recording", judge: "Judge | None") -> Verdict:
    """The verdict where the database is missing: right with the golden calls and all that must be told; the judge
    decides whether other calls amount to the same. Raises `JudgeError` where there is none."""
    if recording.same and all(mentions(answer, text) for text in recording.communicate):
        return Verdict(solved=True, why="right")
    if judge is None:
        raise JudgeError("no judge is configured", where=example.id, fix="name one in world.judge")
    said = await judge.under(CALLS)(example.instruction, recording.attempt(answer), recording.solution)
    return Verdict(solved=said.solved, why="right" if said.solved else "not what was asked", judged=said)
