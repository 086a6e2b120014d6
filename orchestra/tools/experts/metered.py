"""Calls of a chat endpoint under a cap of dollars; every one is in the ledger."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Self

from orchestra.accounting.budget import Budget, HeldBack
from orchestra.accounting.ledger import cost_of
from orchestra.errors import BudgetError
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.parameters import OutputLimit, name_refused, with_settings
from orchestra.tools.failures import EndpointError
from orchestra.tools.rate_limits import LimitParameter
from orchestra.tools.worst_case import OVERHEAD_TOKENS
from orchestra.types import EXACT, Charge, Component, Message, Price, Usage, add_up


class PaidChat:
    """A chat endpoint whose calls are refused when they could cross the budget's cap.

    Before an attempt its worst case is known, and held back until it ends: no token is shorter than a byte of the
    request, and at most `max_tokens` come back. An attempt whose reply is lost, or does not say its tokens, is booked
    at that; a reply that is of no use, at its tokens; a replayed call at 0.
    """

    def __init__(
        self,
        chat: Chat,
        price: Price,
        budget: Budget,
        component: Component,
        limit_parameter: LimitParameter = "max_completion_tokens",
        settings: Mapping[str, Any] | None = None,
        setting: str = "",
    ) -> None:
        """`settings`: said by every request, over its own; what they set to null is not sent. `setting`: the one of
        params.yaml that leaves a parameter out, for errors; empty: there is none."""
        self.chat, self.price, self.budget, self.component = chat, price, budget, component
        self.limit, self.settings = OutputLimit(chat.name, limit_parameter), settings or {}
        self.setting = setting

    def of(self, component: Component) -> Self:
        """The same chat, booked on another component."""
        return type(self)(
            self.chat, self.price, self.budget, component, self.limit.parameter, self.settings, self.setting
        )

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, settings: Mapping[str, Any] | None = None
    ) -> tuple[ChatReply, Charge]:
        """The reply and what it cost; raises `BudgetError` (nothing was sent) or `ToolError`, whose `charges` are of
        lost attempts."""
        body = self._body(messages, max_tokens, settings)
        worst = worst_usage(body, max_tokens)
        worst_usd = self._worst_usd(worst)
        costliest = self._charge(worst, worst_usd)
        booked: list[Charge] = []

        def lost(usage: Usage | None) -> Charge:
            self.limit.check([usage], max_tokens)
            booked.append(costliest if usage is None else self._charge(usage, cost_of(self.price, usage)))
            return booked[-1]

        def paid(reply: ChatReply) -> Charge:
            self.limit.check([reply.usage], max_tokens)
            if not (reply.replayed or reply.counted):
                return costliest
            return self._charge(reply.usage, Decimal(0) if reply.replayed else cost_of(self.price, reply.usage))

        try:
            return await ask_held(self.chat, body, self.budget, worst_usd, lost=lost, paid=paid)
        except EndpointError as error:
            name_refused(error, body, self.setting)
            error.charges = tuple(booked)
            raise

    def worst_usd(self, messages: Sequence[Message], *, max_tokens: int) -> Decimal:
        """The most that a reply can cost, with every attempt."""
        once = self._worst_usd(worst_usage(self._body(messages, max_tokens, None), max_tokens))
        return EXACT.multiply(once, Decimal(self.chat.attempts))

    def listed_usd(
        self,
        attempts: Iterable[Usage | None],
        messages: Sequence[Message],
        *,
        max_tokens: int,
        settings: Mapping[str, Any] | None = None,
    ) -> Decimal:
        """What attempts of a request cost, be they replayed; None, whose tokens are not known, at the worst case."""
        worst = worst_usage(self._body(messages, max_tokens, settings), max_tokens)
        return add_up(cost_of(self.price, worst if usage is None else usage) for usage in attempts)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        await self.chat.aclose()

    def _body(self, messages: Sequence[Message], max_tokens: int, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        said = [message.model_dump(mode="json") for message in messages]
        body = with_settings({"messages": said, **self.limit.of(max_tokens)}, settings or {})
        return with_settings(body, self.settings)

    def _worst_usd(self, worst: Usage) -> Decimal:
        return cost_of(self.price.model_copy(update={"cached_input_per_million": None}), worst)

    def _charge(self, usage: Usage, cost_usd: Decimal) -> Charge:
        return Charge(component=self.component, name=self.chat.name, usage=usage, cost_usd=cost_usd)


async def ask_held(
    chat: Chat,
    body: dict[str, Any],
    budget: Budget,
    worst_usd: Decimal,
    *,
    lost: Callable[[Usage | None], Charge],
    paid: Callable[[ChatReply], Charge],
) -> tuple[ChatReply, Charge]:
    """The reply and what it cost, with `worst_usd` held back for each attempt, also while the first waits for a place;
    books what each attempt that is `lost` and the reply that is `paid` cost. Raises `BudgetError` (nothing was sent) or
    `ToolError`."""
    held = HeldBack(budget, worst_usd)

    def hold() -> None:
        with suppress(BudgetError):  # A replayed call needs no room; any other is refused before it is sent.
            held.take()

    def ended(usage: Usage | None) -> None:
        budget.book(lost(usage))
        held.give_back()
        hold()  # For another attempt, before what waits for room takes it.

    await budget.room(worst_usd)
    try:
        hold()
        reply = await chat.ask(body, on_attempt=held.take, on_lost=ended, meanwhile=held.waiting)
        charge = paid(reply)
        budget.book(charge)
    finally:
        held.give_back()
    return reply, charge


def worst_usage(body: Mapping[str, Any], max_tokens: int) -> Usage:
    """The most tokens that a request can cost: no token is shorter than a byte of it."""
    return Usage(input_tokens=len(json.dumps(body).encode()) + OVERHEAD_TOKENS, output_tokens=max_tokens)
