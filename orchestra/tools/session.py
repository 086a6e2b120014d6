"""One episode's tools: validated arguments in; text and a charge out."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestra.accounting.budget import HeldBack
from orchestra.accounting.ledger import at_price
from orchestra.errors import CallError, Fault, ToolError
from orchestra.text import one_line
from orchestra.tools.base import (
    FAILED,
    NO_ANSWER,
    ToolContext,
    ToolResult,
    note_spent,
    readable,
    result_of,
    spent_until,
)
from orchestra.tools.chat.breaker import longest_wait
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.recording import Recording, is_recorded
from orchestra.tools.replay.cassette import watched
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import worst_usd
from orchestra.types import EXACT, Charge, Component, Example, Record, ToolCall, ToolKind, ToolSpec

if TYPE_CHECKING:
    from orchestra.accounting.budget import SpendingCap
    from orchestra.domains.engine import Domain, Session

MAX_NAMED = 30
"""Tools that a refusal names; toolboxes are smaller, but for those that whole servers fill."""


class ToolOutcome(Record):
    """What a call gave back."""

    text: str
    charge: Charge
    error: Fault | None = None
    """Whose fault it is that the tool refused (a precondition, a bad expression): `text` says why; the call is still
    charged. Where nothing came back at all, `ToolSession.call` raises a typed error instead."""
    besides: tuple[Charge, ...] = ()
    """What it cost besides `charge`: lost attempts, an interpreter, an expert that failed before its fallback."""
    by: str | None = None
    """Shown name of the fallback that answered; None: the tool that was called."""


class _Booking:
    """What one call is charged: booked as it comes, each charge once, and not where a cassette gave it."""

    def __init__(self, book: Callable[[Charge], None]) -> None:
        self._book = book
        self._seen: list[Charge] = []
        self._told: list[Charge] = []
        """What a tool told before its end, which names the same charges again."""

    def tell(self, charges: Iterable[Charge], replays: Sequence[bool]) -> None:
        """Of a tool that hands its work on: a kill meanwhile loses nothing."""
        self._told += (told := list(charges))
        self._settle(told, replays)

    def add(self, charges: Iterable[Charge], replays: Sequence[bool]) -> None:
        """`replays`: of each request behind them, whether it was replayed."""
        fresh = [one for one in charges if not any(one is seen for seen in self._seen)]
        self._seen += fresh
        for one in tuple(fresh):
            if one in self._told:
                self._told.remove(one)
                fresh.remove(one)
        self._settle(fresh, replays)

    def _settle(self, charges: Iterable[Charge], replays: Sequence[bool]) -> None:
        for one in () if replays and all(replays) else charges:  # That was paid for when it was recorded.
            self._book(one)


class ToolSession:
    """One episode's tools, with its own copy of its domain's database; close it at the end.

    What a call costs the episode is at the example's prices; what a provider bills is booked at its list price.
    `copy` is an untouched copy of the example's domain, used in place of a new one. `budget` stands in for the
    toolkit's. Nothing calls a tool of the catalogue that is `barred`: not the policy, no expert, and as no fallback.
    """

    def __init__(
        self,
        toolkit: Toolkit,
        example: Example,
        copy: Session | None = None,
        *,
        budget: SpendingCap | None = None,
        barred: frozenset[str] = frozenset(),
    ) -> None:
        self._toolkit, self._example, self._barred = toolkit, example, barred
        self._budget = budget or toolkit.budget
        self.failures = toolkit.resources.failures
        self._specs = {spec.name: spec for spec in example.toolbox}
        self._notes: list[str] = []
        known = example.verifier
        self.recording: Recording | None = None
        """In place of a domain whose database is missing."""
        if is_recorded(example, toolkit.domain_folders):
            self.recording = Recording(known.golden_calls, known.communicate)
        named = None if self.recording is not None else example.domain
        self.world: Domain | None = toolkit.domain(named) if named is not None else None
        self.domain: Session | None = copy or (self.world.open() if self.world is not None else None)

    async def call(self, call: ToolCall) -> ToolOutcome:
        """Run one call. Raises `CallError` for an unknown tool or bad arguments (nothing ran, nothing is charged),
        `ToolError` when the tool itself failed, and `BudgetError` where the toolkit's budget refuses it."""
        spec = self.offered(call)
        budget = self._budget
        if budget is None:
            return await self._run(spec, call, _Booking(lambda charge: None))
        cassette = self._toolkit.cassette
        spends = budget.cap_usd is not None and (cassette is None or cassette.mode != "replay")
        worst_usd = self._worst_usd(spec, call, self._toolkit.as_billed) if spends else Decimal(0)
        await budget.room(worst_usd)
        with HeldBack(budget, worst_usd) as held:
            return await self._run(spec, call, _Booking(lambda charge: budget.book(self._billed(charge))), held)

    def worst_usd(self, call: ToolCall) -> Decimal:
        """The most that the call can cost the episode, with all that may be called in its course; raises as `offered`
        does."""
        return self._worst_usd(self.offered(call), call, lambda spec: spec)

    def _worst_usd(self, spec: ToolSpec, call: ToolCall, priced: Callable[[ToolSpec], ToolSpec]) -> Decimal:
        if spec.kind is ToolKind.DOMAIN:
            return worst_usd(spec)
        catalogue = self._toolkit.catalogue
        said_bytes = len(json.dumps([self._example.instruction, self._notes, call.arguments]))
        worst, names = Decimal(0), [spec.tool]
        while names:
            entry = catalogue.entry(name := names.pop())
            offered = spec if name == spec.tool else self._spec(name)
            attempts = catalogue.providers.get(entry.vendor, ProviderLimits()).attempts
            worst = EXACT.add(worst, worst_usd(priced(offered), entry, said_bytes, attempts))
            others = (entry.hands_to, entry.fallback)
            names += [other for other in others if other is not None and other not in self._barred]
        return worst

    def _billed(self, charge: Charge) -> Charge:
        """The charge as it is booked; that of a tool which the example does not offer is at its list price anyway."""
        spec = self._specs.get(charge.name)
        if spec is None or (billed := self._toolkit.as_billed(spec)).price == spec.price:
            return charge
        return charge.model_copy(update={"cost_usd": at_price(charge, billed.price, spec.price)})

    async def _run(
        self, spec: ToolSpec, call: ToolCall, booking: _Booking, held: HeldBack | None = None
    ) -> ToolOutcome:
        component, error = Component.DOMAIN, False
        with watched() as replays:
            try:
                if spec.kind is ToolKind.DOMAIN:
                    result = self._call_domain(spec, call)
                    charge = _charge(component, spec.name, result)
                else:
                    component = self._toolkit.catalogue.entry(spec.tool).component
                    result, charge = await self._ask(spec.tool, spec, call.arguments, booking, held)
            except CallError as failure:
                text = f"{FAILED}{failure}"
                result = ToolResult(text=text, cost_usd=spec.price.per_call, latency_s=spec.latency_s)
                charge, error = _charge(component, spec.name, result), True
        booking.add((charge,), replays)
        text = readable(result.text)
        self._notes.append(text)
        fault = Fault.MODEL if error else None
        return ToolOutcome(text=text, charge=charge, error=fault, besides=result.besides, by=result.by)

    def offered(self, call: ToolCall) -> ToolSpec:
        """The tool that is called; raises `CallError` for one that is not offered or is barred, or bad arguments."""
        spec = self._specs.get(call.name)
        if spec is None:
            name, names = one_line(call.name[:40]), list(self._specs)
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            raise CallError(f"no tool named {name}; there are: {', '.join(names[:MAX_NAMED])}{more}")
        if spec.tool in self._barred:
            raise CallError(_refused(spec.name))
        self._toolkit.check(spec, call.arguments)
        return spec

    def close(self) -> None:
        """Free the domain's copy; closing twice does no harm."""
        if self.domain is not None:
            self.domain.close()
            self.domain = None

    def _call_domain(self, spec: ToolSpec, call: ToolCall) -> ToolResult:
        if self.recording is not None:
            text = self.recording.call(call)
        elif self.domain is not None:
            text = self.domain.call(spec.tool.rpartition("/")[2], call.arguments)
        else:
            raise CallError(f"{spec.name} needs a domain")
        return ToolResult(text=text, cost_usd=spec.price.per_call, latency_s=spec.latency_s)

    async def _ask(
        self, name: str, spec: ToolSpec, arguments: dict[str, Any], booking: _Booking, held: HeldBack | None = None
    ) -> tuple[ToolResult, Charge]:
        """Call a tool of the catalogue, offered as `spec`; where it fails its fallback, which the result then names and
        which is asked at once where the tool is down. What they cost is booked; the charge is the result's own.

        Raises `ToolError` when the last one fails, its `charges` those of all of them.
        """
        failed: list[str] = []
        spent: tuple[Charge, ...] = ()
        component = self._toolkit.catalogue.entry(name).component
        while True:
            price, latency_s, notes = spec.price, spec.latency_s, tuple(self._notes)
            fallback = self._toolkit.catalogue.entry(name).fallback
            if fallback in self._barred:
                fallback = None
            failure: ToolError | None = None
            with watched() as replays:
                context = ToolContext(
                    self._example.instruction, price, latency_s, self.domain, notes, name=spec.name,
                    ask=partial(self._help, booking), spent=partial(booking.tell, replays=replays),
                    deadline_s=self._toolkit.catalogue.entry(name).deadline_s, held=None if spent else held,
                )  # fmt: skip
                try:
                    with longest_wait(math.inf if fallback is None else 0):
                        result = await result_of(self._toolkit.tool(name), arguments, context)
                except asyncio.CancelledError as given_up:
                    booking.add(spent_until(given_up), replays)
                    note_spent(given_up, spent)
                    raise
                except (ToolError, OSError) as error:
                    failure = error if isinstance(error, ToolError) else _broken(name, error)
                    failure.at(name)
                    booking.add(failure.charges, replays)
                    spent += failure.charges
                else:
                    charge = _charge(component, spec.name, result)
                    booking.add((charge, *result.besides), replays)
            if failure is not None:
                if fallback is None:
                    failure.charges = spent
                    raise failure from None
                self.failures.warn(failure)
                failed.append(spec.name)
                name, spec = fallback, self._spec(fallback)
                continue
            if not failed:
                return result, charge
            text = result.text
            if not text.startswith(NO_ANSWER):
                text = f"({', '.join(failed)} failed; {spec.name} answers) {text}"
            made = {"text": text, "by": spec.name, "besides": (*spent, *result.besides)}
            return result.model_copy(update=made), charge

    async def _help(self, booking: _Booking, name: str, arguments: dict[str, Any]) -> tuple[str, tuple[Charge, ...]]:
        """Another tool at work for an expert."""
        if name in self._barred:
            raise CallError(_refused(name))
        spec = self._spec(name)
        self._toolkit.check(spec, arguments)
        result, charge = await self._ask(name, spec, arguments, booking)
        return result.text, (charge, *result.besides)

    def _spec(self, name: str) -> ToolSpec:
        """A catalogue entry as this example is offered it; at its list price where it is not."""
        offered = (spec for spec in self._specs.values() if spec.tool == name)
        return next(offered, None) or self._toolkit.catalogue.spec(name)


def _refused(name: str) -> str:
    return f"{name} may not be called here"


def _broken(tool: str, error: OSError) -> ToolError:
    """Such as no more open files: it may pass, so it is no reason to lose the other episodes. Missing or damaged data
    (`DataError`) is one: no call could do without."""
    return ToolError(f"{type(error).__name__}: {error}", where=tool, fix="see `orchestra tools list`")


def _charge(component: Component, name: str, result: ToolResult) -> Charge:
    return Charge(
        component=component,
        name=name,
        usage=result.usage,
        cost_usd=result.cost_usd,
        latency_s=result.latency_s,
        simulated=result.simulated,
    )
