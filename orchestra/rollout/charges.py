"""Dollars and seconds of the policy's own turns, before and after they are written."""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from decimal import Decimal

from orchestra.accounting.budget import SpendingCap
from orchestra.accounting.ledger import cost_of, total
from orchestra.rollout.policies.base import Conversation, Generation, Policy, used_until
from orchestra.types import Charge, Component, Price, Usage, add_up

SECONDS_PER_TOKEN = 0.01
"""Modelled seconds per token the policy writes: latency must not depend on the machine that trains."""


def least(*caps: Decimal | None) -> Decimal | None:
    """The smallest of the caps that there are."""
    return min((cap for cap in caps if cap is not None), default=None)


def spent_usd(conversation: Conversation) -> Decimal:
    """Dollars of every turn so far."""
    return total(charge for turn in conversation.turns for charge in turn.charges)


def worst_turn_usd(conversation: Conversation, most: int, price: Price, policy: Policy | None = None) -> Decimal:
    """Dollars of a turn of `most` tokens of which nothing was read before; where the endpoint of `policy` counts the
    tokens, the most that it may bill."""
    costliest = price.model_copy(update={"cached_input_per_million": None})
    worst_usage: Callable[[Conversation, int], Usage] | None = getattr(policy, "worst_usage", None)
    if worst_usage is not None:
        return cost_of(costliest, worst_usage(conversation, most))
    return cost_of(costliest, Usage(input_tokens=conversation.length, output_tokens=most))


def policy_usage(conversation: Conversation, generation: Generation) -> Usage:
    """Tokens of one turn: as the endpoint counts them, else those of the conversation and of the turn."""
    return generation.usage or Usage(
        input_tokens=conversation.length,
        cached_input_tokens=generation.cached_tokens,
        output_tokens=len(generation.ids),
    )


def policy_charge(conversation: Conversation, generation: Generation, price: Price) -> Charge:
    """What one turn costs."""
    modelled_s = round(len(generation.ids) * SECONDS_PER_TOKEN, 6)
    seconds = modelled_s if generation.seconds is None else generation.seconds
    return _charge(policy_usage(conversation, generation), price, seconds)


async def paid_turns(
    policy: Policy,
    conversations: Sequence[Conversation],
    allowed: Sequence[int],
    price: Price,
    budget: SpendingCap | None,
) -> list[tuple[Generation, Charge]]:
    """The policy's turns and what they cost; raises `BudgetError` when their worst case could cross the cap.

    It waits while only what is held for others' calls stands before the cap. Replayed turns are not booked again. Turns
    that are given up are booked at what the policy notes, else at their worst.
    """
    worst = Decimal(0)
    if budget is not None and budget.cap_usd is not None:
        pairs = zip(conversations, allowed, strict=True)
        worst = add_up(worst_turn_usd(conversation, most, price, policy) for conversation, most in pairs)
        await budget.room(worst)
    with budget.hold(worst) if budget is not None else nullcontext():
        try:
            generations = await policy.generate(conversations, allowed)
        except CancelledError as given_up:
            if budget is not None:
                for usage in _given_up(given_up, conversations, allowed):
                    budget.book(_charge(usage, price))
            raise
        written = list(zip(conversations, generations, strict=True))
        charges = [policy_charge(conversation, generation, price) for conversation, generation in written]
        for generation, charge in zip(generations, charges, strict=True):
            if budget is not None and not generation.replayed:
                budget.book(charge)
    return list(zip(generations, charges, strict=True))


def _charge(usage: Usage, price: Price, latency_s: float = 0.0) -> Charge:
    usd = cost_of(price, usage)
    return Charge(component=Component.POLICY, name="policy", usage=usage, cost_usd=usd, latency_s=latency_s)


def _given_up(given_up: CancelledError, conversations: Sequence[Conversation], allowed: Sequence[int]) -> list[Usage]:
    """Tokens of turns that were cancelled: those noted, but for turns of which nothing was sent; else the most."""
    noted = used_until(given_up)
    if noted is not None:
        return [usage for usage in noted if usage != Usage()]
    pairs = zip(conversations, allowed, strict=True)
    return [Usage(input_tokens=conversation.length, output_tokens=most) for conversation, most in pairs]
