"""A pinned model that says whether an answer is right: every verdict with its prompt, its reply and its price."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestra.errors import ConfigError, JudgeError, ToolError
from orchestra.rewards.rubrics import Rubric, rubric
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import ReplyError, RequestError, Unusable
from orchestra.tools.recording import is_recorded
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example, Judged, Message


@dataclass(frozen=True)
class Judge:
    """One judge: an endpoint under a cap of dollars, and what it is asked."""

    chat: PaidChat
    rubric: Rubric
    max_tokens: int
    """Of one reply, its reasoning included."""

    @property
    def model(self) -> str:
        return self.chat.chat.model

    def under(self, other: Rubric) -> "Judge":
        """The same judge with another rubric."""
        return replace(self, rubric=other)

    async def __call__(self, question: str, answer: str, expected: str) -> Judged:
        """The verdict on an answer; raises `JudgeError` when there is none, and `BudgetError` when nothing was asked.

        One pass: an unreadable reply is not asked for again, since that would change what is measured.
        """
        return await self.read(self.rubric.messages(question, answer, expected)[0].content)

    async def read(self, prompt: str) -> Judged:
        """The verdict on a prompt that stands already; raises as the call does."""
        messages = [Message(role="user", content=prompt)]
        settings = self.rubric.settings
        try:
            reply, _ = await self.chat.ask(messages, max_tokens=self.max_tokens, settings=settings)
        except ToolError as error:
            # Another try has the same end where the request or the model is the reason.
            lasting = error.fix if isinstance(error, RequestError | ReplyError) else ""
            fix = lasting or "run the same command again"
            raise JudgeError(error.what, where=f"the judge {self.model}", fix=fix) from None
        said = self.rubric.ruling(reply.text)
        # What it costs at its price, be it replayed: a repeated evaluation is the same to the byte.
        spent = self.chat.listed_usd(reply.attempts, messages, max_tokens=self.max_tokens, settings=settings)
        return Judged(
            judge=self.model,
            rubric=self.rubric.name,
            prompt=prompt,
            reply=reply.text,
            cost_usd=spent,
            **said.model_dump(),
        )

    async def answer_at_all(self) -> None:
        """Have it judge that 1 + 1 is 2; raises `JudgeError` where no reply comes. What it says is not read."""
        messages = self.rubric.messages("What is 1 + 1?", "2", "2")
        try:
            await self.chat.ask(messages, max_tokens=self.max_tokens, settings=self.rubric.settings)
        except ToolError as error:
            if isinstance(error, ReplyError) and error.unusable is not Unusable.SHAPE:
                return
            raise JudgeError(error.what, where=f"the judge {self.model}", fix=error.fix) from None


def judge_of(toolkit: Toolkit, examples: Iterable[Example]) -> Judge | None:
    """The judge that `world.judge` names; None where it names none, or none of the examples needs one.

    Raises `ConfigError` for an example that lacks the answer which the judge compares with.
    """
    judged = [example for example in examples if example.verifier.kind == "judge"]
    if toolkit.judge is None or not judged:
        return None
    for one in judged:
        if one.verifier.answer is None and not is_recorded(one, toolkit.domain_folders):
            fix = "give the example an answer, or RolloutOptions(judge=False): no verdict"
            raise ConfigError("no expected answer for the judge to compare with", where=one.id, fix=fix)
    settings = toolkit.judge.settings
    return Judge(toolkit.judge_chat, rubric(settings.rubric), settings.max_output_tokens)
