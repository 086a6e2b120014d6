"""The one multi-turn loop: training, evaluation, synthesis checks and serving all run it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from orchestra.accounting.budget import SpendingCap
from orchestra.accounting.ledger import phase
from orchestra.config.schema import Rollout
from orchestra.errors import BudgetError, CallError, ConfigError, ToolError
from orchestra.rewards.judge import Judge, judge_of
from orchestra.rewards.outcome import decide
from orchestra.rollout.charges import least, paid_turns, spent_usd, worst_turn_usd
from orchestra.rollout.parse import read_turn
from orchestra.rollout.policies.base import UNFINISHED, Conversation, Generation, Policy
from orchestra.rollout.run import waited_for
from orchestra.rollout.turns import Turns, every
from orchestra.rollout.users import ScriptedUser, UserSimulator, is_question
from orchestra.text import digest
from orchestra.tools.base import FAILED, readable
from orchestra.tools.replay.cassette import scope
from orchestra.tools.session import ToolSession
from orchestra.types import Charge, Episode, Example, Price, StopReason, ToolCall, Turn, Verdict, add_up

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit

MALFORMED_LIMIT = 2
"""This many unreadable turns in a row end the episode."""

T = TypeVar("T")
OnTurn = Callable[[Conversation, Turn], None]


@dataclass(frozen=True)
class RolloutOptions:
    """How examples are attempted."""

    limits: Rollout
    price: Price
    """Of the policy's own tokens."""
    samples: int | Sequence[int] = 1
    """Episodes of each example; of the first, the second and so on where it is a sequence."""
    batch: int = 256
    """Conversations that run at once."""
    budget_usd: Decimal | None = None
    """Caps each episode, as `limits` may: a call that could cross it is refused."""
    judge: bool = True
    """False leaves the verdict unknown."""
    prompts: Sequence[list[int]] | None = None
    """Token ids by example, in place of the rendered prompts: serving hands in whole conversations."""
    on_turn: OnTurn | None = None
    on_tokens: Callable[[Sequence[int]], None] | None = None
    """Called with what the policy writes while it writes it (see `Conversation.on_tokens`)."""
    on_progress: Callable[[int], None] | None = None
    """Called with the number of episodes that a batch completed."""
    handed_over: frozenset[str] = frozenset()
    """Shown names of tools that the caller runs: a call of one ends the episode with `StopReason.HANDED_OVER`."""
    barred: frozenset[str] = frozenset()
    """Catalogue names of tools that nothing may call: neither the policy, nor an expert, nor as a fallback."""
    max_written: int | None = None
    """Tokens that the policy may write in an episode."""
    budget: SpendingCap | None = None
    """Books and caps in place of the toolkit's. A call that it refuses ends its episode alone, as the episode's own cap
    does; the toolkit's ends the run."""
    user: UserSimulator | None = None
    """Answers the questions of policies where an example has a user; None: `ScriptedUser`."""

    def __post_init__(self) -> None:
        counts = [self.samples] if isinstance(self.samples, int) else self.samples
        capped = self.budget_usd is None or (math.isfinite(self.budget_usd) and self.budget_usd >= 0)
        if self.batch < 1 or min(counts, default=0) < 0 or not capped:
            raise ConfigError("batch is below 1, or samples or budget_usd no number from 0", where="RolloutOptions")

    @cached_property
    def cap_usd(self) -> Decimal | None:
        """The smaller of both caps on an episode; None: neither is set."""
        return least(self.budget_usd, None if self.limits.budget_usd is None else Decimal(str(self.limits.budget_usd)))

    def cap_of(self, example: Example) -> Decimal | None:
        """The cap on an episode of this example, which may have a budget of its own."""
        return least(self.cap_usd, example.budget_usd)


@dataclass(frozen=True)
class _Run:
    """Settings that stay the same over all conversations of a run."""

    policy: Policy
    codec: Codec
    options: RolloutOptions
    budget: SpendingCap | None
    """Where the policy's tokens are booked, and what caps them."""
    judge: Judge | None
    """Who decides where no rule can; None: such verdicts are unknown."""


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
    examples: Sequence[Example], policy: Policy, codec: Codec, toolkit: Toolkit, options: RolloutOptions
) -> list[Episode]:
    """Attempt every example as often as `options.samples` tells; episodes come in order, a group's episodes together.

    An example's own budget caps its episodes too. With `limits.tell_budget` the rendered prompt tells the cap.
    Everything is booked in the toolkit's budget; raises `BudgetError` when the next call could cross its cap, after
    those under way have come to their end.
    """
    budget, judge = options.budget or toolkit.budget, judge_of(toolkit, examples) if options.judge else None
    run, given = _Run(policy, codec, options, budget, judge), options.prompts
    if options.limits.tell_budget:
        examples = [e.model_copy(update={"budget_usd": options.cap_of(e)}) for e in examples]
    rendered = list(given) if given is not None else [codec.prompt(example) for example in examples]
    counts = [options.samples] * len(examples) if isinstance(options.samples, int) else options.samples
    if not len(examples) == len(rendered) == len(counts):
        raise ConfigError("prompts or samples are not as many as the examples", where="RolloutOptions")
    jobs = [
        Conversation(example, prompt, sample, on_tokens=options.on_tokens)
        for example, prompt, count in zip(examples, rendered, counts, strict=True)
        for sample in range(count)
    ]
    episodes: list[Episode] = []
    for start in range(0, len(jobs), options.batch):
        lives = [
            _Live(c, ToolSession(toolkit, c.example, budget=budget, barred=options.barred))
            for c in jobs[start : start + options.batch]
        ]
        try:
            with phase(policy.name), scope(policy.name):
                await _run_batch(lives, run)
                episodes += await every(_by_itself(live, _finish(live, run)) for live in lives)
        finally:
            for live in lives:
                live.session.close()
        if options.on_progress is not None:
            options.on_progress(len(lives))
    return episodes


def rollout(
    examples: Sequence[Example], policy: Policy, codec: Codec, toolkit: Toolkit, options: RolloutOptions
) -> list[Episode]:
    """`run_episodes` for callers without an event loop."""
    return waited_for(run_episodes(examples, policy, codec, toolkit, options))


async def _run_batch(lives: list[_Live], run: _Run) -> None:
    """Every episode goes on as soon as its own tool has answered, unless the policy computes a batch in one piece."""

    async def batch(numbers: Sequence[int], allowed: Sequence[int]) -> list[tuple[Generation, Charge]]:
        asked = [lives[n].conversation for n in numbers]
        return await paid_turns(run.policy, asked, allowed, run.options.price, run.budget)

    run.policy.begin([live.conversation for live in lives])
    turns = Turns(batch, len(lives), together=not getattr(run.policy, "by_episode", False))
    try:
        await every(_episode(number, live, run, turns) for number, live in enumerate(lives))
    finally:
        try:
            await turns.close()
        finally:  # A second cancellation may end the wait.
            run.policy.end()


async def _episode(number: int, live: _Live, run: _Run, turns: Turns[tuple[Generation, Charge]]) -> None:
    """Turn after turn, until it stops."""
    failure: BaseException | None = None
    try:
        for _ in range(run.options.limits.max_turns):
            most = _allowed(live, run)
            if live.stop is None:
                generation, charge = await turns.next(number, most)
                await _by_itself(live, _take_turn(live, generation, charge, run))
            if live.stop is not None:
                break
        live.stop = live.stop or StopReason.TURN_LIMIT
    except BaseException as error:
        failure = error
        raise
    finally:
        turns.leave(failure)


def _allowed(live: _Live, run: _Run) -> int:
    """Tokens that the next turn may have; an episode without room or money for one is stopped."""
    conversation, limits = live.conversation, run.options.limits
    left = room(conversation, run.options)
    most, cap = min(left, limits.max_turn_tokens), run.options.cap_of(conversation.example)
    worst = worst_turn_usd(conversation, most, run.options.price, run.policy) if left >= 1 else Decimal(0)
    if left < 1:
        live.stop = StopReason.TOKEN_LIMIT
    elif cap is not None and add_up([spent_usd(conversation), worst]) > cap:
        live.stop = StopReason.BUDGET
    return most


async def _by_itself(live: _Live, task: Awaitable[T]) -> T:
    """The task, its requests numbered by what is asked and not by the example's id: the gateway's are of chance."""
    with scope(f"{digest(live.conversation.example.asked)}/{live.conversation.sample}"):
        return await task


async def _take_turn(live: _Live, generation: Generation, written: Charge, run: _Run) -> None:
    """Read what the policy wrote, do what it asks, and append the turn."""
    conversation, codec, options = live.conversation, run.codec, run.options
    text = codec.decode(generation.ids)
    charges = [written]
    call: ToolCall | None = None
    error: str | None = None
    observation: str | None = None
    if generation.stop != "stop":
        live.stop, error = UNFINISHED[generation.stop]
        if generation.failure is not None:
            live.session.failures.lost(generation.failure)
    else:
        try:
            parsed = read_turn(codec, generation.ids, text)
            call, live.answer = parsed.call, parsed.answer
            live.malformed = 0
        except CallError as failure:
            live.malformed += 1
            error = observation = f"{FAILED}{failure}"
            if live.malformed >= MALFORMED_LIMIT:
                live.stop = StopReason.MALFORMED
    reply: str | None = None
    if live.answer is not None:
        reply, spent_on = await _ask_user(live, live.answer, written.cost_usd, options)
        charges += spent_on
    elif call is not None and call.name in options.handed_over:
        observation, _ = await _call(live, call, handed_over=True)
    elif call is not None:
        cap = run.options.cap_of(conversation.example)
        if cap is not None and _crosses(live, call, charges[0].cost_usd, cap):
            live.stop = StopReason.BUDGET
        else:
            try:
                observation, spent_on = await _call(live, call)
                charges += spent_on
            except BudgetError:
                if options.budget is None:
                    raise
                live.stop = StopReason.BUDGET
    shown: list[int] = []
    if live.stop is None and observation is not None:
        shown = codec.observation(observation)
    elif live.stop is None and reply is not None:
        observation, shown = reply, codec.reply(reply)
    if conversation.length + len(generation.ids) + len(shown) >= options.limits.max_tokens and live.stop is None:
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
    if options.on_turn is not None:
        options.on_turn(conversation, turn)


def room(conversation: Conversation, options: RolloutOptions) -> int:
    """Tokens that are left to write."""
    left = options.limits.max_tokens - conversation.length
    if options.max_written is None:
        return left
    return min(left, options.max_written - sum(len(turn.ids) for turn in conversation.turns))


async def _call(live: _Live, call: ToolCall, *, handed_over: bool = False) -> tuple[str | None, Sequence[Charge]]:
    """Run one call: its observation, or an error message for the model, and what it cost, be it that it failed;
    infrastructure failures end the episode, and so does a call that the caller makes."""
    try:
        if handed_over:
            live.session.offered(call)
            live.stop = StopReason.HANDED_OVER
            return None, ()
        outcome = await live.session.call(call)
    except CallError as failure:
        return f"{FAILED}{failure}", ()
    except ToolError as failure:
        live.stop = StopReason.TOOL_FAILURE
        live.session.failures.lost(failure)
        return None, failure.charges
    return outcome.text, (outcome.charge, *outcome.besides)


async def _ask_user(
    live: _Live, answer: str, written_usd: Decimal, options: RolloutOptions
) -> tuple[str | None, Sequence[Charge]]:
    """What the example's user replies where the answer asks and replies are left, and its cost; else it is the end."""
    example, user = live.conversation.example, options.user or ScriptedUser()
    if example.user is None or live.replies >= example.user.max_replies or not is_question(answer):
        live.stop = StopReason.ANSWERED
        return None, ()
    live.answer, live.replies, asked = None, live.replies + 1, (example.user, example.instruction, answer)
    cap, worst_usd = options.cap_of(example), getattr(user, "worst_usd", None)
    if cap is not None and worst_usd and add_up([spent_usd(live.conversation), written_usd, worst_usd(*asked)]) > cap:
        live.stop = StopReason.BUDGET
        return None, ()
    try:
        said, charge = await user.reply(*asked)
        return readable(said), () if charge is None else (charge,)
    except ToolError as failure:
        live.stop = StopReason.TOOL_FAILURE
        live.session.failures.lost(failure)
        return None, failure.charges


def _crosses(live: _Live, call: ToolCall, written_usd: Decimal, cap_usd: Decimal) -> bool:
    """Whether the call could cross the episode's cap, with all that it may cause; one that is refused costs nothing."""
    try:
        worst_usd = live.session.worst_usd(call)
    except (CallError, ToolError):
        return False
    return add_up([spent_usd(live.conversation), written_usd, worst_usd]) > cap_usd


async def _finish(live: _Live, run: _Run) -> Episode:
    conversation, stop = live.conversation, live.stop or StopReason.CANCELLED
    verdict: Verdict | None = None
    if run.options.judge and stop not in (StopReason.TOOL_FAILURE, StopReason.CANCELLED, StopReason.HANDED_OVER):
        over = (told := conversation.example.budget_usd) is not None and spent_usd(conversation) > told
        if live.answer is None or over:
            verdict = Verdict(solved=False, why="over budget" if over else stop.value)
        else:
            verdict = await decide(conversation.example, live.answer, live.session, run.judge)
    return Episode(
        example_id=conversation.example.id,
        policy=run.policy.name,
        sample=conversation.sample,
        prompt_ids=tuple(conversation.prompt_ids),
        turns=tuple(conversation.turns),
        stop=stop,
        answer=live.answer,
        verdict=verdict,
        simulated=any(charge.simulated for turn in conversation.turns for charge in turn.charges),
    )
