"""Every tool there is, priced on a day: the entries that toolboxes are sampled from."""

from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import Field, JsonValue, ValidationError

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ConfigError
from orchestra.tools.catalogue.entry import Entry, Share, check_entry, check_helpers, check_interface
from orchestra.tools.catalogue.measured import ExpertMeasurement, measured_file, read_measured
from orchestra.tools.catalogue.price_book import PriceBook, first_problem, read_mapping
from orchestra.tools.mcp.spec import McpServer
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.types import Price, Record, Seconds, ToolKind, ToolSpec, Usage


class DomainDefaults(Record):
    """What a domain's tools cost where the domain does not say."""

    price: str
    latency_s: Seconds
    source: str


class CatalogueFile(Record):
    """The layout of tools.yaml."""

    extends: str | None = None
    """Another file of the folder. Its keys hold where this one has none; its tools, servers and providers are added."""
    without: list[str] = Field(default_factory=list)
    """Implementations whose tools are not taken over from that file, such as simulated."""
    topics: list[str]
    hard_share: Share = 0.0
    """Share of the topic questions that are hard."""
    providers: dict[str, ProviderLimits] = Field(default_factory=dict)
    """How each provider's models are asked, by the first part of their price; the defaults where it is not named."""
    mcp_servers: dict[str, McpServer] = Field(default_factory=dict)
    """By the names that tools call them."""
    tools: dict[str, Entry]
    domain_tool: DomainDefaults
    policy_price: str
    """`provider/model` whose price the orchestrator's own tokens have."""


class DomainToolLike(Protocol):
    """What the catalogue reads of a domain's tool."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> dict[str, JsonValue]: ...


@dataclass(frozen=True)
class Catalogue:
    """Entries, and what each costs on the day it was loaded for."""

    topics: tuple[str, ...]
    entries: dict[str, Entry]
    prices: dict[str, Price]
    """By entry name."""
    domain_tool: DomainDefaults
    domain_price: Price
    policy_price: Price
    """Of the orchestrator's own tokens."""
    hard_share: float = 0.0
    """Share of the topic questions that are hard."""
    providers: dict[str, ProviderLimits] = field(default_factory=dict)
    """How each provider's models are asked."""
    mcp_servers: dict[str, McpServer] = field(default_factory=dict)
    book: PriceBook | None = None
    """Where the prices are from."""
    measured: dict[str, ExpertMeasurement] = field(default_factory=dict)
    """What is known of experts by asking them, by entry name; `orchestra tools describe` writes it."""

    @classmethod
    def load(cls, catalogue_path: Path, prices_path: Path, price_date: str) -> Self:
        """Read tools and the prices that hold on `price_date` (ISO); raises `ConfigError` of one line."""
        try:
            day = date.fromisoformat(price_date)
        except ValueError:
            raise ConfigError(
                f"price_date {price_date!r} is not a date", where="world", fix="write YYYY-MM-DD"
            ) from None
        file = read_catalogue(catalogue_path)
        book = PriceBook.load(prices_path)
        prices = {name: book.at(entry.price, day) for name, entry in file.tools.items()}
        domain_price, policy_price = book.at(file.domain_tool.price, day), book.at(file.policy_price, day)
        topics, defaults = tuple(file.topics), file.domain_tool
        return cls(
            topics,
            file.tools,
            prices,
            defaults,
            domain_price,
            policy_price,
            hard_share=file.hard_share,
            providers=file.providers,
            mcp_servers=file.mcp_servers,
            book=book,
            measured=read_measured(catalogue_path, file.tools),
        )

    def on(self, day: date) -> "Catalogue":
        """The same tools at the prices of another day; the policy's own keeps its price. Raises `ConfigError`."""
        if day not in self._days:
            assert self.book is not None
            prices = {name: self.book.at(entry.price, day) for name, entry in self.entries.items()}
            self._days[day] = replace(self, prices=prices, domain_price=self.book.at(self.domain_tool.price, day))
        return self._days[day]

    def entry(self, name: str) -> Entry:
        """Raises `ConfigError` for a name the catalogue lacks."""
        if name not in self.entries:
            raise ConfigError(f"no tool named {name}", where="the catalogue", fix=f"one of: {', '.join(self.entries)}")
        return self.entries[name]

    def names(self, kind: ToolKind) -> list[str]:
        """Entries of a kind, in file order."""
        return [name for name, entry in self.entries.items() if entry.kind is kind]

    def spec(self, name: str, *, price_factor: float = 1.0, latency_factor: float = 1.0) -> ToolSpec:
        """The tool as offered to an example whose price and latency are multiplied by the factors."""
        usage, seconds = self._expected(name)
        price = scaled(self.prices[name], price_factor)
        latency_s = rounded(seconds * latency_factor)
        call_usd = cost_of(price, usage, seconds=latency_s)
        return self._specs[name].model_copy(update={"price": price, "call_usd": call_usd, "latency_s": latency_s})

    def domain_spec(
        self, domain: str, tool: DomainToolLike, *, price_factor: float = 1.0, latency_factor: float = 1.0
    ) -> ToolSpec:
        """A domain's tool as offered to an example."""
        price = scaled(self.domain_price, price_factor)
        return ToolSpec(
            name=tool.name,
            tool=f"domain:{domain}/{tool.name}",
            kind=ToolKind.DOMAIN,
            description=tool.description,
            parameters=tool.parameters,
            price=price,
            call_usd=price.per_call,
            latency_s=rounded(self.domain_tool.latency_s * latency_factor),
        )

    @property
    def all_simulated(self) -> bool:
        """Whether every expert is a stand-in, whose answers are known without asking."""
        return all(self.is_simulated(name) for name in self.names(ToolKind.EXPERT))

    def is_simulated(self, name: str) -> bool:
        """Whether the tool is a simulated expert; False also for a name the catalogue lacks."""
        return name in self.entries and self.entries[name].simulated is not None

    def unmeasured(self) -> list[str]:
        """Experts of which nothing is known: neither measured nor simulated. They count as knowing nothing."""
        experts = self.names(ToolKind.EXPERT)
        return [name for name in experts if name not in self.measured and self.entries[name].simulated is None]

    def skill(self, name: str, topic: str) -> float:
        """How often an expert is right on a topic, as measured, else as simulated; 0 when unknown."""
        entry, measured = self.entry(name), self.measured.get(name)
        if measured is not None:
            return measured.skill(topic)
        return entry.simulated.skills.get(topic, 0.0) if entry.simulated is not None else 0.0

    def strength(self, name: str) -> float:
        """Mean skill over the topics: what a stand-alone benchmark would show."""
        return self._strengths.get(name, 0.0)

    @cached_property
    def _days(self) -> "dict[date, Catalogue]":
        """Kept, since every example may be priced on another day."""
        return {}

    @cached_property
    def _specs(self) -> dict[str, ToolSpec]:
        """Every tool at its list price, checked once: a set of examples offers each many times."""
        return {
            name: ToolSpec(
                name=name,
                tool=name,
                kind=entry.kind,
                description=entry.description,
                parameters=entry.parameters,
                price=self.prices[name],
                call_usd=cost_of(self.prices[name], self._expected(name)[0], seconds=self._expected(name)[1]),
                latency_s=self._expected(name)[1],
            )
            for name, entry in self.entries.items()
        }

    def _expected(self, name: str) -> tuple[Usage, float]:
        """Tokens and seconds of one call, as measured, else as the entry says."""
        entry, measured = self.entry(name), self.measured.get(name)
        return (entry.usage, entry.latency_s) if measured is None else (measured.usage, measured.latency_s)

    @cached_property
    def _strengths(self) -> dict[str, float]:
        listed = {n: sum(self.skill(n, topic) for topic in self.topics) / len(self.topics) for n in self.entries}
        return listed | {name: known.strength for name, known in self.measured.items()}


def catalogue_files(path: Path) -> list[Path]:
    """Every file that the catalogue at `path` is read from: the file that it extends, it, and what was measured."""
    extended = read_mapping(path).get("extends") if path.is_file() else None
    files = [path.with_name(extended)] if isinstance(extended, str) else []
    return [*files, path, *(file for file in [measured_file(path)] if file.is_file())]


def _whole(path: Path) -> dict[str, Any]:
    """The mapping in the file, with what it takes over from the one that it extends."""
    own = read_mapping(path)
    if not isinstance(extended := own.get("extends"), str):
        return own
    if extended != Path(extended).name or extended == path.name:
        raise ConfigError(f"extends {extended!r:.60}", where=str(path), fix="name another file of its folder")
    other = read_mapping(path.with_name(extended))
    if "extends" in other:
        raise ConfigError(f"{extended} extends another file itself", where=str(path), fix="extend that one")
    tools, theirs, left_out = own.get("tools") or {}, other.get("tools"), own.get("without") or []
    if not isinstance(tools, dict) or not isinstance(theirs, dict) or not isinstance(left_out, list):
        raise ConfigError("tools is no mapping, or without no list", where=str(path), fix="see current.yaml")
    taken = {name: entry for name, entry in theirs.items() if name not in tools and not _made_by(entry, left_out)}
    limits, their_limits = own.get("providers") or {}, other.get("providers") or {}
    if not all(isinstance(one, dict) for part in (limits, their_limits) for one in (part, *part.values())):
        raise ConfigError("providers is no mapping of mappings", where=str(path), fix="see current.yaml")
    said = {name: {**their_limits.get(name, {}), **limits.get(name, {})} for name in {**their_limits, **limits}}
    servers, their_servers = own.get("mcp_servers") or {}, other.get("mcp_servers") or {}
    if not isinstance(servers, dict) or not isinstance(their_servers, dict):
        raise ConfigError("mcp_servers is no mapping", where=str(path), fix="see docs/reference/tools/mcp.md")
    merged = {"providers": said, "mcp_servers": {**their_servers, **servers}, "tools": {**taken, **tools}}
    return {**other, **own, **merged}


def _made_by(entry: Any, implementations: list[Any]) -> bool:
    return isinstance(entry, dict) and entry.get("implementation") in implementations


def read_catalogue(path: Path) -> CatalogueFile:
    """tools.yaml as written, its entries checked; raises `ConfigError` of one line."""
    try:
        file = CatalogueFile.model_validate(_whole(path))
    except ValidationError as error:
        raise ConfigError(first_problem(error), where=str(path), fix="fix that entry") from None
    for name, entry in file.tools.items():
        check_entry(name, entry, file.topics, str(path))
        check_interface(name, entry, file.mcp_servers, str(path))
        check_helpers(name, file.tools, str(path))
    return file


def rounded(value: float) -> float:
    """Three significant digits: short to read."""
    return float(f"{value:.3g}")


def scaled(price: Price, factor: float) -> Price:
    """Every part of the price times `factor`, to three significant digits; unchanged for 1."""
    if factor == 1.0:
        return price

    def times(value: Decimal) -> Decimal:
        if not value:
            return value
        text = f"{float(value) * factor:.3g}"
        return Decimal(format(Decimal(text), "f") if "e" in text else text)

    cached = price.cached_input_per_million
    return Price(
        input_per_million=times(price.input_per_million),
        cached_input_per_million=None if cached is None else times(cached),
        output_per_million=times(price.output_per_million),
        per_call=times(price.per_call),
        per_second=times(price.per_second),
    )
