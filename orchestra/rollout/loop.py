"""The one multi-turn loop: training, evaluation, synthesis checks and serving all run it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from orchestra.config import Rollout
from orchestra.errors import CallError, JudgeError, ToolError
from orchestra.ledger import Purse, cost_of, phase, total
from orchestra.plain import digest
from orchestra.rewards.outcome import verify
from orchestra.rollout.policies import Conversation, Generation, Policy
from orchestra.rollout.users import ScriptedUser, UserSimulator, is_question
from orchestra.rollout.written import read_turn
from orchestra.tools.base import readable
from orchestra.tools.cassette import scope
from orchestra.types import (
    Charge,
    Component,
    Episode,
    Example,
    Price,
    StopReason,
    ToolCall,
    Turn,
    Usage,
    Verdict,
    add_up,
)

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit, ToolSession

MALFORMED_LIMIT = 2
"""This many unreadable turns in a row end the episode."""
SECONDS_PER_TOKEN = 0.01
"""Modelled seconds per token the policy writes: latency must not depend on the machine that trains."""

OnTurn = Callable[[Conversation, Turn], None]


@dataclass(frozen=True)
class PolicyRates:
    """What the policy's own tokens cost, in dollars and modelled seconds, and where they are booked."""

    price: Price
    seconds_per_token: float = SECONDS_PER_TOKEN
    purse: Purse | None = None


@dataclass(eq=False)
class _Live:
    """A conversation that runs, with the tools it may call."""

    conversation: Conversation
    session: ToolSession
    malformed: int = 0
    stop: StopReason | None = None
    answer: str | None = None
    replies: int = 0
    """Questions that the example's user has answered."""


async def run_episodes(
    examples: Sequence[Example],
    policy: Policy,
    codec: Codec,
    toolkit: Toolkit,
    limits: Rollout,
    *,
    price: Price,
    samples: int = 1,
    batch: int = 256,
    budget_usd: Decimal | None = None,
    judge: bool = True,
    prompts: Sequence[list[int]] | None = None,
    on_turn: OnTurn | None = None,
    on_progress: Callable[[int], None] | None = None,
    user: UserSimulator | None = None,
) -> list[Episode]:
    """Attempt every example `samples` times; episodes come back in order, a group's episodes together.

    `batch` conversations run at once. `prompts` replaces the rendered prompts (serving hands in whole conversations).
    `judge=False` leaves the verdict unknown. `budget_usd` caps each episode, as `limits` and its example may: a call
    that could cross it is refused. With `limits.tell_budget` the rendered prompt tells the cap. `user` answers the
    questions of policies where an example has a user (default: `ScriptedUser`). Everything is booked in the toolkit's
    purse; raises `BudgetError` when the next call could cross its cap, after those under way have come to their end.
    """
    rates, asked = PolicyRates(price, purse=toolkit.purse), user or ScriptedUser()
    if limits.budget_usd is not None:
        budget_usd = _least(budget_usd, Decimal(str(limits.budget_usd)))
    if limits.tell_budget and budget_usd is not None:
        examples = [e.model_copy(update={"budget_usd": _least(e.budget_usd, budget_usd)}) for e in examples]
    rendered = list(prompts) if prompts is not None else [codec.prompt(example) for example in examples]
    jobs = [
        Conversation(example, prompt, sample)
        for example, prompt in zip(examples, rendered, strict=True)
        for sample in range(samples)
    ]
    episodes: list[Episode] = []
    for start in range(0, len(jobs), batch):
        lives = [_Live(c, toolkit.open(c.example)) for c in jobs[start : start + batch]]
        try:
            with phase(policy.name), scope(policy.name):
                await _run_batch(lives, policy, codec, limits, rates, budget_usd, on_turn, asked)
            episodes += [_finish(live, policy.name, judge) for live in lives]
        finally:
            for live in lives:
                live.session.close()
        if on_progress is not None:
            on_progress(len(lives))
    return episodes


def rollout(
    examples: Sequence[Example], policy: Policy, codec: Codec, toolkit: Toolkit, limits: Rollout, *, price: Price,
    samples: int = 1, batch: int = 256, on_progress: Callable[[int], None] | None = None,
) -> list[Episode]:  # fmt: skip
    """`run_episodes` for callers without an event loop."""
    return asyncio.run(
        run_episodes(
            examples, policy, codec, toolkit, limits, price=price, samples=samples, batch=batch, on_progress=on_progress
        )
    )


async def _run_batch(
    lives: list[_Live],
    policy: Policy,
    codec: Codec,
    limits: Rollout,
    rates: PolicyRates,
    budget_usd: Decimal | None,
    on_turn: OnTurn | None,
    user: UserSimulator,
) -> None:
    policy.begin([live.conversation for live in lives])
    try:
        for _ in range(limits.max_turns):
            active = [live for live in lives if live.stop is None]
            if not active:
                break
            room = [limits.max_tokens - live.conversation.length for live in active]
            for live, left in zip(active, room, strict=True):
                if left < 1:
                    live.stop = StopReason.TOKEN_LIMIT
            ready = [(a, min(r, limits.max_turn_tokens)) for a, r in zip(active, room, strict=True) if r >= 1]
            for live, most in ready:
                cap = _least(budget_usd, live.conversation.example.budget_usd)
                if cap is not None and add_up([_spent(live), _worst_turn_usd(live.conversation, most, rates)]) > cap:
                    live.stop = StopReason.BUDGET
            ready = [(live, most) for live, most in ready if live.stop is None]
            if not ready:
                break
            conversations, allowed = [a.conversation for a, _ in ready], [r for _, r in ready]
            generations, written = await _generate(policy, conversations, allowed, rates)
            await _all(
                _by_itself(live, _take_turn(live, generation, charge, codec, limits, budget_usd, on_turn, user))
                for (live, _), generation, charge in zip(ready, generations, written, strict=True)
            )
        for live in lives:
            live.stop = live.stop or StopReason.TURN_LIMIT
    finally:
        policy.end()


async def _generate(
    policy: Policy, conversations: list[Conversation], allowed: list[int], rates: PolicyRates
) -> tuple[list[Generation], list[Charge]]:
    """The policy's turns and what they cost; raises `BudgetError` when their worst case could cross the purse's cap."""
    purse, worst = rates.purse, Decimal(0)
    if purse is not None and purse.cap_usd is not None:
        pairs = zip(conversations, allowed, strict=True)
        worst = add_up(_worst_turn_usd(conversation, most, rates) for conversation, most in pairs)
    with purse.hold(worst) if purse is not None else nullcontext():
        generations = await policy.generate(conversations, allowed)
        written = zip(conversations, generations, strict=True)
        charges = [_policy_charge(conversation, generation, rates) for conversation, generation in written]
        for charge in charges:
            if purse is not None:
                purse.book(charge)
    return generations, charges


async def _all(turns: Iterable[Awaitable[None]]) -> None:
    """Every turn to its end, also when one fails: what is under way is paid for and must be booked."""
    for ended in await asyncio.gather(*turns, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


async def _by_itself(live: _Live, turn: Awaitable[None]) -> None:
    """The turn, its requests numbered by what is asked and not by the example's id: the gateway's are of chance."""
    with scope(f"{digest(live.conversation.example.asked)}/{live.conversation.sample}"):
        await turn


async def _take_turn(
    live: _Live,
    generation: Generation,
    written: Charge,
    codec: Codec,
    limits: Rollout,
    budget_usd: Decimal | None,
    on_turn: OnTurn | None,
    user: UserSimulator,
) -> None:
    """Read what the policy wrote, do what it asks, and append the turn."""
    conversation = live.conversation
    text = codec.decode(generation.ids)
    charges = [written]
    call: ToolCall | None = None
    error: str | None = None
    observation: str | None = None
    if generation.stop == "length":
        live.stop, error = StopReason.TOKEN_LIMIT, "the turn did not end"
    else:
        try:
            parsed = read_turn(codec, generation.ids, text)
            call, live.answer = parsed.call, parsed.answer
            live.malformed = 0
        except CallError as failure:
            live.malformed += 1
            error = observation = f"error: {failure}"
            if live.malformed >= MALFORMED_LIMIT:
                live.stop = StopReason.MALFORMED
    reply: str | None = None
    if live.answer is not None:
        reply, charge = await _ask_user(live, live.answer, user)
        charges += [charge] if charge is not None else []
    elif call is not None:
        cap = _least(budget_usd, conversation.example.budget_usd)
        if cap is not None and _crosses(live, call, charges[0].cost_usd, cap):
            live.stop = StopReason.BUDGET
        else:
            observation, spent_on = await _call(live, call)
            charges += spent_on
    shown: list[int] = []
    if live.stop is None and observation is not None:
        shown = codec.observation(observation)
    elif live.stop is None and reply is not None:
        observation, shown = reply, codec.reply(reply)
    if conversation.length + len(generation.ids) + len(shown) >= limits.max_tokens and live.stop is None:
        # No room to go on: what the policy will never read is not appended, so no episode outgrows its limit.
        live.stop, shown = StopReason.TOKEN_LIMIT, []
    turn = Turn(
        ids=tuple(generation.ids),
        logprobs=tuple(generation.logprobs),
        text=text,
        call=call,
        parse_error=error,
        observation=observation,
        observation_ids=tuple(shown),
        charges=tuple(charges),
    )
    conversation.turns.append(turn)
    if on_turn is not None:
        on_turn(conversation, turn)


async def _call(live: _Live, call: ToolCall) -> tuple[str | None, Sequence[Charge]]:
    """Run one call: its observation, or an error message for the model, and what it cost, be it that it failed;
    infrastructure failures end the episode."""
    try:
        outcome = await live.session.call(call)
    except CallError as failure:
        return f"error: {failure}", ()
    except ToolError as failure:
        live.stop = StopReason.TOOL_FAILURE
        return None, failure.charges
    return outcome.text, (outcome.charge, *outcome.besides)


async def _ask_user(live: _Live, answer: str, user: UserSimulator) -> tuple[str | None, Charge | None]:
    """What the example's user replies where the answer asks; otherwise it is the answer and the episode ends.

    The user ends the talk after so many replies: what is said then is the answer, be it a question.
    """
    example = live.conversation.example
    if example.user is None or live.replies >= example.user.max_replies or not is_question(answer):
        live.stop = StopReason.ANSWERED
        return None, None
    live.answer, live.replies = None, live.replies + 1
    try:
        said, charge = await user.reply(example.user, example.instruction, answer)
        return readable(said), charge
    except ToolError:
        live.stop = StopReason.TOOL_FAILURE
        return None, None


def _least(*caps: Decimal | None) -> Decimal | None:
    """The smallest of the caps that there are."""
    return min((cap for cap in caps if cap is not None), default=None)


def _spent(live: _Live) -> Decimal:
    return total(charge for turn in live.conversation.turns for charge in turn.charges)


def _worst_turn_usd(conversation: Conversation, most: int, rates: PolicyRates) -> Decimal:
    """Dollars of a turn of `most` tokens of which nothing was read before."""
    dearest = rates.price.model_copy(update={"cached_input_per_million": None})
    return cost_of(dearest, Usage(input_tokens=conversation.length, output_tokens=most))


def _crosses(live: _Live, call: ToolCall, written_usd: Decimal, budget_usd: Decimal) -> bool:
    """Whether the call could cross the episode's budget, all that it may cause included; one that is refused costs
    nothing."""
    try:
        worst_usd = live.session.worst_usd(call)
    except CallError:
        return False
    return add_up([_spent(live), written_usd, worst_usd]) > budget_usd


def _policy_charge(conversation: Conversation, generation: Generation, rates: PolicyRates) -> Charge:
    usage = Usage(
        input_tokens=conversation.length,
        cached_input_tokens=generation.cached_tokens,
        output_tokens=len(generation.ids),
    )
    return Charge(
        component=Component.POLICY,
        name="policy",
        usage=usage,
        cost_usd=cost_of(rates.price, usage),
        latency_s=round(len(generation.ids) * rates.seconds_per_token, 6),
    )


def _finish(live: _Live, policy: str, judge: bool) -> Episode:
    conversation, stop = live.conversation, live.stop or StopReason.CANCELLED
    verdict: Verdict | None = None
    if judge and stop not in (StopReason.TOOL_FAILURE, StopReason.CANCELLED):
        over = (told := conversation.example.budget_usd) is not None and _spent(live) > told
        if live.answer is None or over:
            verdict = Verdict(solved=False, why="over budget" if over else stop.value)
        else:
            try:
                verdict = verify(conversation.example, live.answer, live.session)
            except JudgeError:
                verdict = None
    return Episode(
        example_id=conversation.example.id,
        policy=policy,
        sample=conversation.sample,
        prompt_ids=tuple(conversation.prompt_ids),
        turns=tuple(conversation.turns),
        stop=stop,
        answer=live.answer,
        verdict=verdict,
        simulated=any(charge.simulated for turn in conversation.turns for charge in turn.charges),
    )
