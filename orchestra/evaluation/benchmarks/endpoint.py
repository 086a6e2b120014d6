"""A chat endpoint that is measured: a plain model at its price, or a gateway of ours, which states its dollars."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from orchestra.accounting.budget import Budget
from orchestra.errors import ConfigError
from orchestra.evaluation.benchmarks.base import Attempt, Question, Step
from orchestra.rewards.outcome import verify
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.metered import PaidChat, ask_held
from orchestra.tools.failures import EndpointError
from orchestra.tools.rate_limits import LimitParameter
from orchestra.types import Charge, Component, Example, Price, Usage, add_up

SPENT = frozenset({500, 502})
"""HTTP statuses of a gateway that may have paid for tools before it failed."""


@dataclass(frozen=True)
class EndpointModel:
    """A chat endpoint. With a price it is a plain model; without one a gateway."""

    chat: Chat
    url: str
    price: Price | None
    budget: Budget
    max_tokens: int
    question_usd: Decimal | None
    """What one question may cost at a gateway, which keeps to it."""
    version: str = ""
    """The release that a gateway's answers must name; empty: any."""
    limit_parameter: LimitParameter = "max_completion_tokens"

    @property
    def name(self) -> str:
        return self.chat.model

    async def attempt(self, question: Question, trial: int) -> Attempt:
        if question.example is not None and question.example.domain is not None:
            what = f"{question.id} needs the tools of the domain {question.example.domain}"
            raise ConfigError(what, where=self.name, fix="measure a checkpoint, or --only topic")
        made = await (self._gateway(question) if self.price is None else self._plain(question, self.price))
        made = made.model_copy(update={"trial": trial})
        return made if question.example is None else ruled(made, question.example)

    def check_cap(self) -> None:
        """Raises `ConfigError` for a cap over questions whose worst case is not known."""
        if self.price is None and self.question_usd is None and self.budget.cap_usd is not None:
            raise ConfigError("a gateway's answer has no known worst case", where="--cap-usd", fix="add --question-usd")

    async def aclose(self) -> None:
        await self.chat.aclose()

    async def _plain(self, question: Question, price: Price) -> Attempt:
        paid = PaidChat(self.chat, price, self.budget, Component.POLICY, self.limit_parameter)
        usd = partial(paid.listed_usd, messages=question.messages, max_tokens=self.max_tokens)
        try:
            reply, _ = await paid.ask(question.messages, max_tokens=self.max_tokens)
        except EndpointError as error:
            error.charges = (self._charge(usd(error.lost)),)
            raise
        return Attempt(
            item=question.id,
            trial=0,
            group=question.group,
            answer=reply.text,
            stop="token_limit" if reply.cut else "answered",
            cost_usd=usd(reply.attempts),
            latency_s=reply.seconds,
            steps=(Step(text=reply.text),),
        )

    async def _gateway(self, question: Question) -> Attempt:
        self.check_cap()
        body: dict[str, Any] = {"messages": [message.model_dump(mode="json") for message in question.messages]}
        if self.question_usd is not None:
            body["budget_usd"] = str(self.question_usd)
        worst_usd = self.question_usd or Decimal(0)

        def spent_usd(reply: ChatReply) -> Decimal:
            return Decimal(str((reply.orchestra or {}).get("cost_usd", worst_usd)))

        def paid(reply: ChatReply) -> Charge:
            return self._charge(Decimal(0) if reply.replayed else spent_usd(reply), reply.usage)

        def lost(_: Usage | None) -> Charge:
            return self._charge(worst_usd)

        try:
            reply, _ = await ask_held(self.chat, body, self.budget, worst_usd, lost=lost, paid=paid)
        except EndpointError as error:
            error.charges = tuple(map(lost, error.lost))
            raise
        told: dict[str, Any] = dict(reply.orchestra or {})
        check_release(told, self.version)
        calls = [call for call in told.get("tool_calls") or [] if isinstance(call, dict)]
        names = [str(call.get("name")) for call in calls]
        return Attempt(
            item=question.id,
            trial=0,
            group=question.group,
            answer=reply.text,
            stop=str(told.get("stop") or "answered"),
            cost_usd=add_up((spent_usd(reply), *(worst_usd for _ in reply.lost))),
            latency_s=float(told.get("latency_s") or reply.seconds),
            calls={name: names.count(name) for name in sorted(set(names))},
            simulated=bool(told.get("simulated")),
            steps=(*(_step(call) for call in calls), Step(text=reply.text)),
        )

    def _charge(self, cost_usd: Decimal, usage: Usage | None = None) -> Charge:
        return Charge(component=Component.POLICY, name=self.name, usage=usage or Usage(), cost_usd=cost_usd)


def check_release(told: Any, version: str) -> None:
    """Raises `ConfigError` where a gateway tells of another version than the measured one; an empty one is any."""
    said = told.get("version", version) if version and isinstance(told, dict) else version
    if said != version:
        what = f"it answers with version {said!s:.80}, and version {version} is measured"
        raise ConfigError(what, where="the gateway", fix="wait for the end of its release, then run it again")


def ruled(attempt: Attempt, example: Example) -> Attempt:
    """The attempt at a question of ours, with the verdict of its rule; a judge decides later where none can."""
    if example.verifier.kind == "judge" or attempt.answer is None:
        return attempt
    verdict = verify(example, attempt.answer, None)
    return attempt.model_copy(update={"solved": verdict.solved, "why": verdict.why})


def _step(call: Mapping[str, Any]) -> Step:
    made = {"name": call.get("name"), "arguments": call.get("arguments") or {}}
    return Step.model_validate({"call": made, "observation": call.get("observation")})
