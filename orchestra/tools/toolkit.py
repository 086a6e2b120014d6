"""What an episode can call: validated arguments in; text and a charge out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestra.config import Params, World
from orchestra.errors import CallError, ConfigError
from orchestra.tools.base import Tool, ToolContext, ToolResult
from orchestra.tools.calculator import Calculator
from orchestra.tools.catalogue import Catalogue
from orchestra.tools.search import SearchIndex, SearchTool
from orchestra.tools.simulated import AnswerBook, SimulatedExpert
from orchestra.types import Charge, Component, Example, Record, ToolCall, ToolKind, ToolSpec

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain, Session


class ToolOutcome(Record):
    """What a call gave back."""

    text: str
    charge: Charge
    error: bool = False
    """True when the tool refused (a precondition, a bad expression): `text` says why; the call is still charged."""


@dataclass
class Toolkit:
    """The tools of one world: opened once, shared by every episode."""

    catalogue: Catalogue
    domain_folders: dict[str, Path]
    data_dir: Path
    """Holds corpus.jsonl and answers.jsonl; read at the first search or expert call."""
    root: Path = Path()
    """What the folders of indexes in the catalogue are relative to."""

    def __post_init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._domains: dict[str, Domain] = {}
        self._validators: dict[str, Any] = {}

    @classmethod
    def from_params(cls, params: Params, root: Path, data_dir: Path | None = None) -> Self:
        """Raises `ConfigError` when the catalogue, a price or a domain is missing."""
        return cls.of(params.world, root, data_dir)

    @classmethod
    def of(cls, world: World, root: Path, data_dir: Path | None = None) -> Self:
        """The same, of one section of the parameters."""
        catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
        folders = {name: root / "data/domains" / name for name in world.domains}
        for name, folder in folders.items():
            if not folder.is_dir():
                raise ConfigError(f"no domain {name} in {folder}", where="world.domains", fix="mend params.yaml")
        return cls(catalogue, folders, data_dir or root / "data/generated", root)

    def anew(self) -> Self:
        """The same tools for another corpus and other answers; domains that are loaded already are shared."""
        other = replace(self)
        other._domains, other._validators = self._domains, self._validators
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
            self._tools[name] = self._make(name)
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
        """Arguments against the tool's schema; raises `CallError` with a short message for the model."""
        import jsonschema

        key = json.dumps(spec.parameters, sort_keys=True)
        if key not in self._validators:
            self._validators[key] = jsonschema.Draft202012Validator(spec.parameters)
        problem = jsonschema.exceptions.best_match(self._validators[key].iter_errors(arguments))
        if problem is not None:
            path = ".".join(str(part) for part in problem.absolute_path)
            raise CallError(f"{spec.name}: {path + ': ' if path else ''}{problem.message[:120]}")

    def _make(self, name: str) -> Tool:
        entry = self.catalogue.entry(name)
        match entry.implementation:
            case "calculator":
                return Calculator()
            case "search":
                if entry.index is None:
                    return SearchTool(self.index)
                from orchestra.tools.index.local import By
                from orchestra.tools.index.tool import IndexSearch

                return IndexSearch(self.root / entry.index, count=entry.results, by=By(entry.by))
            case "web_search":
                from orchestra.tools.web import WebSearch

                return WebSearch.of(name, entry)
            case "python":
                from orchestra.tools.sandbox import Sandbox

                return Sandbox()
            case "simulated":
                return SimulatedExpert(name, entry, self.book, self.catalogue.hard_share)
            case "openai":
                from orchestra.tools.experts import Endpoint

                return Endpoint(name, entry)


class ToolSession:
    """One episode's tools, with its own copy of its domain's database."""

    def __init__(self, toolkit: Toolkit, example: Example, copy: Session | None = None) -> None:
        self._toolkit, self._example = toolkit, example
        self._specs = {spec.name: spec for spec in example.toolbox}
        self._notes: list[str] = []
        self.world: Domain | None = toolkit.domain(example.domain) if example.domain is not None else None
        self.domain: Session | None = copy or (self.world.open() if self.world is not None else None)

    async def call(self, call: ToolCall) -> ToolOutcome:
        """Run one call. Raises `CallError` for an unknown tool or bad arguments (nothing ran, nothing is charged), and
        `ToolError` when the tool itself failed."""
        spec = self._specs.get(call.name)
        if spec is None:
            raise CallError(f"no tool named {call.name[:40]}; there are: {', '.join(self._specs)}")
        self._toolkit.check(spec, call.arguments)
        component = Component.DOMAIN
        try:
            if spec.kind is ToolKind.DOMAIN:
                result, error = self._call_domain(spec, call), False
            else:
                tool = self._toolkit.tool(spec.tool)
                component = self._toolkit.catalogue.entry(spec.tool).component
                context = ToolContext(
                    self._example.instruction, spec.price, spec.latency_s, self.domain, tuple(self._notes)
                )
                result, error = await tool.call(call.arguments, context), False
        except CallError as refusal:
            text = f"error: {refusal}"
            result = ToolResult(text=text, cost_usd=spec.price.per_call, latency_s=spec.latency_s)
            error = True
        self._notes.append(result.text)
        charge = Charge(
            component=component,
            name=spec.name,
            usage=result.usage,
            cost_usd=result.cost_usd,
            latency_s=result.latency_s,
            simulated=result.simulated,
        )
        return ToolOutcome(text=result.text, charge=charge, error=error)

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
