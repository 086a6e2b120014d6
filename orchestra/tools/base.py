"""The interface of every tool: validated JSON arguments in; text, usage, dollars and seconds out."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from inspect import isawaitable
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from orchestra.accounting.budget import HeldBack
from orchestra.errors import CallError, ConfigError, OrchestraError, ToolError
from orchestra.text import as_text
from orchestra.types import Charge, Component, Price, Record, Seconds, Turn, Usage, Usd

UNSURE = "I am not sure."
"""What an expert says when it does not know (simulated experts say exactly this)."""

IN_CALL = "in a call of "
"""How the note on an error that no tool should raise begins."""
NO_ANSWER = "[no answer: "
"""How an observation begins where an expert's thoughts did not end or it refused: the expert is wrong, not broken."""
MAX_OBSERVATION = 100_000
"""Characters of one observation: a longer one is cut, so that no reply can cost the loop unbounded time."""


SPENT = "charges"
"""The attribute of a cancellation with what the call had spent."""
FAILED = "error: "
"""How an observation begins where a turn could not be read or its call failed."""


def call_failed(turn: Turn) -> bool:
    """Whether the turn made a call that failed."""
    return turn.call is not None and (turn.observation or "").startswith(FAILED)


def unanswered(observation: str | None) -> bool:
    """Whether an expert was asked and gave no answer."""
    return observation is not None and (observation == UNSURE or observation.startswith(NO_ANSWER))


def note_spent(given_up: asyncio.CancelledError, charges: tuple[Charge, ...]) -> None:
    """Say in a cancellation what the call had spent, be it nothing: whoever gives up pays all the same."""
    vars(given_up)[SPENT] = (*charges, *spent_until(given_up))


def spent_until(given_up: asyncio.CancelledError) -> tuple[Charge, ...]:
    """What a call that was cancelled had spent."""
    found: tuple[Charge, ...] = vars(given_up).get(SPENT, ())
    return found


def readable(text: str) -> str:
    """What a tool or user said as an observation: half surrogate pairs, which no record can hold, are marked.

    Nothing else is changed: control strings are encoded as plain text where the text becomes tokens.
    """
    if len(text) > MAX_OBSERVATION:
        text = f"{text[:MAX_OBSERVATION]} … (cut: {len(text)} characters)"
    return as_text(text)


class ToolResult(Record):
    """The result of a call; `text` is data for the model, never control tokens."""

    text: str
    usage: Usage = Usage()
    cost_usd: Usd = Decimal(0)
    latency_s: Seconds = 0.0
    simulated: bool = False
    besides: tuple[Charge, ...] = ()
    """Further costs of the call: lost attempts, tools that an expert's work was given to, an expert that failed."""
    by: str | None = None
    """Shown name of the fallback that answered; None: the tool that was called."""


class DomainSession(Protocol):
    """One episode's own copy of a domain's database (see `orchestra.domains.engine`)."""

    def call(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        """Run one domain tool in a transaction and return its rows or message as text.

        Raises `CallError` when a precondition refuses or arguments are wrong; the transaction is rolled back.
        """
        ...


@dataclass(frozen=True)
class ToolContext:
    """The part of the calling episode that a tool may know."""

    instruction: str
    """The user's request, without the preference: what an expert called without arguments answers."""
    price: Price
    """This example's price of this tool."""
    latency_s: float
    """This example's expected latency of this tool, seconds."""
    domain: DomainSession | None = None
    notes: tuple[str, ...] = field(default=())
    """Observations so far, oldest first: what an expert may read besides the instruction."""
    name: str = ""
    """The tool's shown name: what its charges are booked under."""
    deadline_s: float | None = None
    """Seconds after which a call has failed, as the tool's entry says."""
    held: HeldBack | None = None
    """The call's worst case: a tool that has spent nothing yet may let go of it while it waits."""
    ask: Callable[[str, dict[str, JsonValue]], Awaitable[tuple[str, tuple[Charge, ...]]]] | None = None
    """Calls another tool of the catalogue at this example's price of it: its text and what it cost; raises as
    `Tool.call` does."""
    spent: Callable[[tuple[Charge, ...]], None] | None = None
    """Says what the call has spent before it asks another tool; at its end it is said again, as part of the whole."""


@runtime_checkable
class Tool(Protocol):
    """Anything callable. Raise `CallError` for the model's faults, `ToolError` for the tool's own.

    A tool that needs more than its entry says has `async def ready() -> str` as well: how it is available here, or an
    `OrchestraError` with what is missing (`orchestra tools list`); one that holds something open has `aclose`; one that
    ends its calls by its entry's deadline itself says `keeps_deadline = True`.
    """

    component: Component

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult: ...


async def result_of(tool: Tool, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
    """What a call of the tool gives back; raises as the tool does, `ToolError` after the deadline, and `ConfigError`
    where the tool is not as `Tool` says. After the deadline it may be billed all the same, and so may a call that is
    given up: at its price, unless the tool notes what it had spent."""
    limit = None if getattr(tool, "keeps_deadline", False) else context.deadline_s
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            asked = tool.call(arguments, context)
            if not isawaitable(asked):
                raise ConfigError("the tool's call is not asynchronous", where=context.name, fix="write async def call")
            result = await asked
    except TimeoutError:
        if not clock.expired() or limit is None:
            raise
        late = ToolError(f"no answer within {limit:g} s", where=context.name, fix="see deadline_s of its entry")
        usd, component = context.price.per_call, tool.component
        late.charges = (Charge(component=component, name=context.name, cost_usd=usd, latency_s=limit),)
        raise late from None
    except asyncio.CancelledError as given_up:
        if SPENT not in vars(given_up):
            usd = context.price.per_call
            note_spent(given_up, (Charge(component=tool.component, name=context.name, cost_usd=usd),))
        raise
    except (CallError, OrchestraError, OSError):
        raise
    except Exception as error:
        # Where this tool called another, that one is named already.
        if not any(note.startswith(IN_CALL) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{IN_CALL}{context.name}: correct the tool, or raise ToolError where it fails")
        raise
    if not isinstance(result, ToolResult):
        what = f"the tool's call gave back {type(result).__name__}"
        raise ConfigError(what, where=context.name, fix="return a ToolResult")
    return result
