"""What an episode can call: validated arguments in; text and a charge out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params, World
from orchestra.errors import CallError, ConfigError, Fault, ToolError
from orchestra.text import one_line
from orchestra.tools.arguments import ArgumentCheck, checker, refusal
from orchestra.tools.base import Tool, ToolContext, ToolResult, readable
from orchestra.tools.calculator import Calculator
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.experts.simulated import AnswerBook, SimulatedExpert
from orchestra.tools.rate_limits import Provider, ProviderLimits
from orchestra.tools.replay.cassette import Cassette, watched
from orchestra.tools.replay.tool import TapedTool
from orchestra.tools.search.corpus import SearchIndex, SearchTool
from orchestra.tools.worst_case import worst_usd
from orchestra.types import EXACT, Charge, Component, Example, Record, ToolCall, ToolKind, ToolSpec

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain, Session
    from orchestra.tools.mcp.session import Connection

UNTAPED = frozenset({"calculator", "search", "simulated", "openai"})
"""Implementations that are the same twice, or that record what they send themselves; all others are taped."""


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


@dataclass
class Toolkit:
    """The tools of one world: opened once, shared by every episode."""

    catalogue: Catalogue
    domain_folders: dict[str, Path]
    data_dir: Path
    """Holds corpus.jsonl and answers.jsonl; read at the first search or expert call."""
    cassette: Cassette | None = None
    """What records or replays every call that is not the same twice."""
    budget: Budget | None = None
    """Where everything that is called, and the policy that calls, is booked, and what caps it; None: nobody counts."""
    root: Path = Path()
    """What the folders of indexes in the catalogue are relative to."""

    def __post_init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._providers: dict[str, Provider] = {}
        self._domains: dict[str, Domain] = {}
        self._validators: dict[str, ArgumentCheck] = {}
        self._connections: dict[str, Connection] = {}

    @classmethod
    def from_params(cls, params: Params, root: Path, data_dir: Path | None = None) -> Self:
        """Raises `ConfigError` when the catalogue, a price or a domain is missing."""
        return cls.of(params.world, root, data_dir)

    @classmethod
    def of(cls, world: World, root: Path, data_dir: Path | None = None) -> Self:
        """The same, of one section of the parameters; ORCHESTRA_CASSETTE names the cassette."""
        catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
        folders = {name: root / "data/domains" / name for name in world.domains}
        for name, folder in folders.items():
            if not folder.is_dir():
                raise ConfigError(f"no domain {name} in {folder}", where="world.domains", fix="fix params.yaml")
        return cls(catalogue, folders, data_dir or root / "data/generated", Cassette.from_environment(), root=root)

    def with_other_data(self) -> Self:
        """The same tools for another corpus and other answers; domains that are loaded and MCP servers are shared."""
        other = replace(self)
        other._domains, other._validators, other._providers = self._domains, self._validators, self._providers
        other._connections = self._connections
        return other

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex.load(self.data_dir / "corpus.jsonl")

    @cached_property
    def book(self) -> AnswerBook:
        return AnswerBook.load(self.data_dir / "answers.jsonl")

    def domain(self, name: str) -> Domain:
        """Loaded once; raises `ConfigError` for a name params.yaml lacks."""
        if name not in self._domains:
            if name not in self.domain_folders:
                fix = f"add it to world.domains (there are: {', '.join(self.domain_folders) or 'none'})"
                raise ConfigError(f"no domain named {name}", where="params.yaml", fix=fix)
            from orchestra.domains.engine import load_domain

            self._domains[name] = load_domain(self.domain_folders[name])
        return self._domains[name]

    def expert(self, name: str) -> SimulatedExpert:
        """A simulated expert by catalogue name: what it would reply, without a call."""
        entry = self.catalogue.entry(name)
        if entry.simulated is None:
            raise ConfigError(f"{name} is not simulated", where="the catalogue", fix="name a simulated expert")
        return SimulatedExpert(name, entry, self.book, self.catalogue.hard_share)

    def tool(self, name: str) -> Tool:
        """The implementation behind a catalogue entry, made at its first use."""
        if name not in self._tools:
            entry = self.catalogue.entry(name)
            if self.cassette is None or entry.implementation in UNTAPED:
                self._tools[name] = self._make(name)
            else:
                self._tools[name] = TapedTool(lambda: self._make(name), entry, self.cassette)
        return self._tools[name]

    def open(self, example: Example, copy: Session | None = None) -> ToolSession:
        """The tools of one episode; close it at the end. `copy`: an untouched one of its domain, used in place of a new
        one."""
        return ToolSession(self, example, copy)

    async def aclose(self) -> None:
        """Close what the tools hold open."""
        for tool in self._tools.values():
            close = getattr(tool, "aclose", None)
            if close is not None:
                await close()

    def check(self, spec: ToolSpec, arguments: dict[str, Any]) -> None:
        """Arguments against the tool's schema; raises `CallError` with a short message for the model, `ToolError` when
        the schema is none."""
        key = json.dumps(spec.parameters, sort_keys=True)
        if key not in self._validators:
            self._validators[key] = checker(spec)
        problem = self._validators[key](arguments)
        if problem is not None:
            raise refusal(spec, problem)

    def _make(self, name: str) -> Tool:
        entry = self.catalogue.entry(name)
        match entry.implementation:
            case "calculator":
                return Calculator()
            case "search":
                if entry.index is None:
                    return SearchTool(self.index)
                from orchestra.tools.search.index.local import By
                from orchestra.tools.search.index.tool import IndexSearch

                return IndexSearch(self.root / entry.index, count=entry.results, by=By(entry.by))
            case "web_search":
                from orchestra.tools.search.web import WebSearch

                return WebSearch.of(name, entry)
            case "python":
                from orchestra.tools.sandbox.tool import Sandbox

                return Sandbox()
            case "simulated":
                return SimulatedExpert(name, entry, self.book, self.catalogue.hard_share)
            case "openai":
                from orchestra.tools.experts.endpoint import Endpoint

                limits = self.catalogue.providers.get(entry.vendor)
                provider = self._providers.setdefault(entry.vendor, Provider(limits))
                return Endpoint(name, entry, provider=provider, cassette=self.cassette)
            case "mcp":
                return self._make_mcp(entry)

    def _make_mcp(self, entry: Entry) -> Tool:
        """A tool of an MCP server; all tools of a server share its connection."""
        from orchestra.tools.mcp.session import Connection
        from orchestra.tools.mcp.tool import ServerTool

        assert entry.mcp is not None
        server = entry.mcp.server
        if server not in self._connections:
            self._connections[server] = Connection(server, self.catalogue.mcp_servers[server])
        return ServerTool(entry.mcp, self._connections[server], entry.deadline_s)


class ToolSession:
    """One episode's tools, with its own copy of its domain's database."""

    def __init__(self, toolkit: Toolkit, example: Example, copy: Session | None = None) -> None:
        self._toolkit, self._example = toolkit, example
        self._specs = {spec.name: spec for spec in example.toolbox}
        self._notes: list[str] = []
        self.world: Domain | None = toolkit.domain(example.domain) if example.domain is not None else None
        self.domain: Session | None = copy or (self.world.open() if self.world is not None else None)

    async def call(self, call: ToolCall) -> ToolOutcome:
        """Run one call. Raises `CallError` for an unknown tool or bad arguments (nothing ran, nothing is charged),
        `ToolError` when the tool itself failed, and `BudgetError` where the toolkit's budget refuses it."""
        spec = self.offered(call)
        budget = self._toolkit.budget
        if budget is None:
            return await self._run(spec, call)
        cassette = self._toolkit.cassette
        spends = budget.cap_usd is not None and (cassette is None or cassette.mode != "replay")
        charges: tuple[Charge, ...] = ()
        worst_usd = self._worst_usd(spec, call) if spends else Decimal(0)
        await budget.room(worst_usd)
        with budget.hold(worst_usd), watched() as replayed:
            try:
                outcome = await self._run(spec, call)
                charges = (outcome.charge, *outcome.besides)
            except ToolError as failure:
                charges = failure.charges
                raise
            finally:
                # What was replayed was paid for when it was recorded.
                for charge in () if replayed and all(replayed) else charges:
                    budget.book(charge)
        return outcome

    def worst_usd(self, call: ToolCall) -> Decimal:
        """The most that the call can cost, with all that may be called in its course; raises as `offered` does."""
        return self._worst_usd(self.offered(call), call)

    def _worst_usd(self, spec: ToolSpec, call: ToolCall) -> Decimal:
        if spec.kind is ToolKind.DOMAIN:
            return worst_usd(spec)
        catalogue = self._toolkit.catalogue
        said_bytes = len(json.dumps([self._example.instruction, self._notes, call.arguments]))
        worst, names = Decimal(0), [spec.tool]
        while names:
            entry = catalogue.entry(name := names.pop())
            offered = spec if name == spec.tool else self._spec(name)
            attempts = catalogue.providers.get(entry.vendor, ProviderLimits()).attempts
            worst = EXACT.add(worst, worst_usd(offered, entry, said_bytes, attempts))
            names += [other for other in (entry.hands_to, entry.fallback) if other is not None]
        return worst

    async def _run(self, spec: ToolSpec, call: ToolCall) -> ToolOutcome:
        component = Component.DOMAIN
        try:
            if spec.kind is ToolKind.DOMAIN:
                result, error = self._call_domain(spec, call), False
            else:
                component = self._toolkit.catalogue.entry(spec.tool).component
                result, error = await self._ask(spec.tool, spec, call.arguments), False
        except CallError as failure:
            text = f"error: {failure}"
            result = ToolResult(text=text, cost_usd=spec.price.per_call, latency_s=spec.latency_s)
            error = True
        text = readable(result.text)
        self._notes.append(text)
        charge = _charge(component, result.by or spec.name, result)
        return ToolOutcome(
            text=text, charge=charge, error=Fault.MODEL if error else None, besides=result.besides, by=result.by
        )

    def offered(self, call: ToolCall) -> ToolSpec:
        """The tool that is called; raises `CallError` for one that the example does not offer, or bad arguments."""
        spec = self._specs.get(call.name)
        if spec is None:
            name, names = one_line(call.name[:40]), list(self._specs)
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            raise CallError(f"no tool named {name}; there are: {', '.join(names[:MAX_NAMED])}{more}")
        self._toolkit.check(spec, call.arguments)
        return spec

    def close(self) -> None:
        """Free the domain's copy; closing twice does no harm."""
        if self.domain is not None:
            self.domain.close()
            self.domain = None

    def _call_domain(self, spec: ToolSpec, call: ToolCall) -> ToolResult:
        if self.domain is None:
            raise CallError(f"{spec.name} needs a domain")
        text = self.domain.call(spec.tool.rpartition("/")[2], call.arguments)
        return ToolResult(text=text, cost_usd=spec.price.per_call, latency_s=spec.latency_s)

    async def _ask(self, name: str, spec: ToolSpec, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool of the catalogue, offered as `spec`; where it fails its fallback, which the result then names.

        Raises `ToolError` when the last one fails, its `charges` those of all of them.
        """
        failed: list[str] = []
        spent: tuple[Charge, ...] = ()
        while True:
            price, latency_s, notes = spec.price, spec.latency_s, tuple(self._notes)
            context = ToolContext(
                self._example.instruction, price, latency_s, self.domain, notes, name=spec.name, ask=self._help
            )
            try:
                result = await self._toolkit.tool(name).call(arguments, context)
            except (ToolError, OSError) as error:
                failure = error if isinstance(error, ToolError) else _broken(name, error)
                spent += failure.charges
                fallback = self._toolkit.catalogue.entry(name).fallback
                if fallback is None:
                    failure.charges = spent
                    raise failure from None
                failed.append(spec.name)
                name, spec = fallback, self._spec(fallback)
                continue
            if not failed:
                return result
            text = f"({', '.join(failed)} failed; {spec.name} answers) {result.text}"
            return result.model_copy(update={"text": text, "by": spec.name, "besides": (*spent, *result.besides)})

    async def _help(self, name: str, arguments: dict[str, Any]) -> tuple[str, tuple[Charge, ...]]:
        """Another tool at work for an expert."""
        spec = self._spec(name)
        self._toolkit.check(spec, arguments)
        result = await self._ask(name, spec, arguments)
        component = self._toolkit.catalogue.entry(name).component
        return result.text, (_charge(component, result.by or spec.name, result), *result.besides)

    def _spec(self, name: str) -> ToolSpec:
        """A catalogue entry as this example is offered it; at its list price where it is not."""
        offered = (spec for spec in self._specs.values() if spec.tool == name)
        return next(offered, None) or self._toolkit.catalogue.spec(name)


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
