"""Real experts: a model behind an OpenAI-compatible endpoint as a tool, in each of the method's roles."""

import asyncio
import re
from typing import Any

from pydantic import JsonValue

from orchestra.accounting.budget import HeldBack
from orchestra.accounting.ledger import cost_of
from orchestra.errors import CallError, ToolError
from orchestra.system.environment import required
from orchestra.text import as_text
from orchestra.tools.base import FAILED, NO_ANSWER, ToolContext, ToolResult, note_spent
from orchestra.tools.catalogue.entry import TAKEN, Entry
from orchestra.tools.chat.client import Chat, OnLost
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.metered import worst_usage
from orchestra.tools.experts.parameters import OutputLimit, name_refused, with_settings
from orchestra.tools.failures import EndpointError, ReplyError, Unusable
from orchestra.tools.rate_limits import RateLimiter
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Charge, Component, Usage

STATE = 'end with the line "Answer: " and the answer alone'
"""Verdicts compare what stands there (`orchestra.rewards.answers.stated`)."""
PROMPTS = {
    "generalist": f"Answer the question. Where a word, a name or a number is asked for, {STATE}.",
    "math": f"Solve the problem. Reply with the few steps that lead to the result, and {STATE}.",
    "code writer": (
        "Write one Python program that finds the answer and prints it. It has the standard library, no network, no "
        "files and a few seconds. Reply with the program alone, in one ```python block."
    ),
    "query writer": (
        "Write the one search query that finds what is needed to answer, of at most 200 characters. "
        "Reply with the query alone."
    ),
}
"""What an expert is told about its role."""
CUT = "[cut off here: its reply was too long]"
MAX_QUERY = 200
_MARKS = " \"'`*"
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


class Endpoint:
    """Asks one model at one address. What its work costs elsewhere is in the result's `besides`."""

    component = Component.EXPERT
    keeps_deadline = True

    def __init__(
        self,
        name: str,
        entry: Entry,
        *,
        provider: RateLimiter | None = None,
        cassette: Cassette | None = None,
        attempts: int | None = None,
        backoff_s: float = 0.5,
    ) -> None:
        """Raises `ConfigError` when its address or key is not in the environment; a replay needs neither."""
        assert entry.base_url_env is not None and entry.endpoint_model is not None
        asks = cassette is None or cassette.mode != "replay"
        self._name, self._entry = name, entry
        self._limit = OutputLimit(name, (provider or RateLimiter()).limits.limit_parameter)
        self._chat = Chat(
            name,
            model=entry.endpoint_model,
            url=required(entry.base_url_env, tool=name) if asks else "",
            key=required(entry.api_key_env, tool=name) if asks and entry.api_key_env else "",
            deadline_s=entry.deadline_s,
            attempts=attempts,
            backoff_s=backoff_s,
            cassette=cassette,
            entry=entry.fingerprint,
            provider=provider,
            own_counts=True,
        )

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Ask the question (default: the instruction and what is known so far); a code writer's program is run, a query
        writer's query searched for.

        Where its thoughts did not end or it refused, the text says so. Raises `EndpointError`, or another `ToolError`
        when the tool that takes its work fails; its `charges` say what that cost. Attempts that were lost are charged
        at their worst: `max_output_tokens`, or the expected ones.
        """
        question = str(arguments.get("question") or "\n".join([context.instruction, *context.notes]))
        prompt = PROMPTS.get(self._entry.role)
        messages = [{"role": "system", "content": prompt}] if prompt is not None else []
        messages.append({"role": "user", "content": as_text(question)})
        most = self._entry.max_output_tokens
        body = with_settings({"messages": messages, **self._limit.of(most)}, self._entry.settings)
        worst = worst_usage(body, most or self._entry.usage.output_tokens)
        lost: list[Usage | None] = []
        try:
            reply = await self._asked(body, context.held, lost.append)
        except asyncio.CancelledError as given_up:
            note_spent(given_up, self._lost(tuple(lost), worst, context))
            raise
        except EndpointError as error:
            self._limit.check(error.lost, most)
            name_refused(error, body)
            if isinstance(error, ReplyError) and error.own is not None:
                before, usage = error.billed
                return self._result(f"{NO_ANSWER}{error.own}]", usage or worst, error.seconds, before, worst, context)
            error.charges = self._lost(error.lost, worst, context)
            if error.seconds:
                error.charges += (self._charge(context, Usage(), error.seconds, calls=0),)
            raise
        self._limit.check(reply.attempts, most)
        usage, text = reply.usage if reply.counted else worst, f"{reply.text} {CUT}" if reply.cut else reply.text
        result = self._result(text, usage, reply.seconds, reply.lost, worst, context)
        return await self._handed(reply, result, context)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        await self._chat.aclose()

    async def _asked(self, body: dict[str, Any], held: HeldBack | None, on_lost: OnLost) -> ChatReply:
        """Nothing is held for the call while it waits before its first attempt."""
        if held is None:
            return await self._chat.ask(body, on_lost=on_lost)
        return await self._chat.ask(body, on_attempt=held.attempt, on_lost=on_lost, meanwhile=held.waiting)

    async def _handed(self, reply: ChatReply, result: ToolResult, context: ToolContext) -> ToolResult:
        """The result of what the expert wrote; its own reply where that is the answer."""
        takes = TAKEN.get(self._entry.role)
        if takes is None:
            return result
        assert self._entry.hands_to is not None and context.ask is not None
        own = self._charge(context, result.usage, result.latency_s)
        try:
            work = program(reply, self._name) if takes == "code" else query(reply.text)
        except ReplyError as cut:
            return result.model_copy(update={"text": f"{NO_ANSWER}{cut.what}]"})
        if work is None:
            return result
        if context.spent is not None:
            context.spent((own, *result.besides))
        try:
            text, charges = await context.ask(self._entry.hands_to, {takes: work})
        except CallError as refusal:
            return result.model_copy(update={"text": f"{FAILED}{refusal}"})
        except ToolError as error:
            error.charges = (*result.besides, own, *error.charges)
            raise
        except asyncio.CancelledError as given_up:
            note_spent(given_up, (*result.besides, own))
            raise
        return result.model_copy(update={"text": text, "besides": (*result.besides, *charges)})

    def _result(
        self,
        text: str,
        usage: Usage,
        seconds: float,
        lost: tuple[Usage | None, ...],
        worst: Usage,
        context: ToolContext,
    ) -> ToolResult:
        """What the expert said, with all its attempts charged."""
        usd, besides = cost_of(context.price, usage, seconds=seconds), self._lost(lost, worst, context)
        return ToolResult(text=text, usage=usage, cost_usd=usd, latency_s=seconds, besides=besides)

    def _lost(self, lost: tuple[Usage | None, ...], worst: Usage, context: ToolContext) -> tuple[Charge, ...]:
        return tuple(self._charge(context, worst if usage is None else usage) for usage in lost)

    def _charge(self, context: ToolContext, usage: Usage, latency_s: float = 0.0, calls: int = 1) -> Charge:
        """`calls`: 0 for the seconds of attempts that are charged apart."""
        name, cost_usd = context.name or self._name, cost_of(context.price, usage, calls=calls, seconds=latency_s)
        return Charge(component=self.component, name=name, usage=usage, cost_usd=cost_usd, latency_s=latency_s)


def program(reply: ChatReply, where: str = "") -> str | None:
    """The last code block of a reply; None where there is none, and the reply is an answer in words.

    Raises `ReplyError` when the token limit cut the program off.
    """
    blocks = _BLOCK.findall(reply.text)
    if blocks:
        return str(blocks[-1])
    if reply.cut or "```" in reply.text:
        raise ReplyError("its program is cut off", unusable=Unusable.TRUNCATED, usage=reply.usage, where=where)
    return None


def query(text: str) -> str:
    """The query in a reply: its last line without marks around it."""
    last = text.strip().splitlines()[-1].strip(_MARKS).removeprefix("Query:").strip(_MARKS)
    return (last or text)[:MAX_QUERY]
