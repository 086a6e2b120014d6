"""Every tool there is, priced on a day: the entries that toolboxes are sampled from."""

import json
import os
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, JsonValue, ValidationError

from orchestra.errors import ConfigError
from orchestra.ledger import cost_of
from orchestra.tools.mcp.spec import McpServer, McpTool
from orchestra.tools.prices import PriceBook, first_problem, read_mapping
from orchestra.tools.provider import ProviderLimits
from orchestra.tools.schema import schema_problem
from orchestra.types import Component, Price, Record, Seconds, ToolKind, ToolSpec, Usage

Share = Annotated[float, Field(ge=0, le=1)]
Implementation = Literal["calculator", "search", "web_search", "python", "simulated", "openai", "mcp"]
TAKEN: dict[str, str | None] = {"generalist": None, "math": None, "code writer": "code", "query writer": "query"}
"""Roles of real experts, and the argument of another tool that takes what they write; None: it is the answer."""
HELPERS = {"code": "python", "query": "search"}
MASTERED = 0.75
"""Skill from which a specialist's description names a topic without reserve."""


class Simulated(Record):
    """How a stand-in expert behaves."""

    skills: dict[str, Share]
    """Share of answers that are right, by topic."""
    unsure: Share
    """Share of the other answers that say UNSURE; the rest are plausible and wrong."""
    hard_gap: Share = 0.0
    """How much less often it is right on hard questions than on the others."""
    hard_unsure: Share | None = None
    """`unsure` on hard questions: who knows little does not notice it. None: the same."""
    failures: Share = 0.0
    """Share of the questions at which its service fails, always the same ones."""

    def chance(self, topic: str, hard_share: float, *, hard: bool) -> float:
        """How often it is right on hard or other questions of a topic; over both, `hard_share` of them hard, its skill.

        The gap is made smaller where a chance would leave [0, 1].
        """
        skill = self.skills.get(topic, 0.0)
        if not 0 < hard_share < 1:
            return skill
        gap = min(self.hard_gap, (1 - skill) / hard_share, skill / (1 - hard_share))
        return skill - (1 - hard_share) * gap if hard else skill + hard_share * gap

    def doubt(self, *, hard: bool) -> float:
        """How often it says UNSURE where it is not right."""
        return self.hard_unsure if hard and self.hard_unsure is not None else self.unsure


class Entry(Record):
    """One tool of the catalogue."""

    kind: ToolKind
    role: str
    component: Component
    """Whom its charges are booked on."""
    description: str
    parameters: dict[str, JsonValue]
    """JSON schema of the arguments object."""
    price: str
    """`provider/model` in the price book."""
    latency_s: Seconds
    usage: Usage = Usage()
    """Expected tokens of one call."""
    implementation: Implementation
    simulated: Simulated | None = None
    base_url_env: str | None = None
    """Environment variable that holds the endpoint's address (openai; web_search, where it is not the provider's)."""
    api_key_env: str | None = None
    endpoint_model: str | None = None
    """The model's name at the endpoint (openai)."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Tokens that one reply may have (openai). None: as many as the endpoint allows, so that no cap can be kept."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """What else a request says, such as temperature or reasoning_effort (openai)."""
    hands_to: str | None = None
    """The tool that what it writes is given to: a code writer's interpreter, a query writer's search."""
    fallback: str | None = None
    """The expert that is asked where this one fails; it is charged at its own price, and named in the result."""
    mcp: McpTool | None = None
    """The tool behind it and what was imported (mcp); `orchestra tools import-mcp` writes it."""
    deadline_s: float = Field(default=300, gt=0)
    index: str | None = None
    """Folder of a built index, relative to the workspace (search); None: the pipeline's own corpus."""
    by: Literal["bm25", "dense", "hybrid"] = "bm25"
    """How the index is searched."""
    provider: str | None = None
    """Whom to ask, one of orchestra/tools/web.py's PROVIDERS (web_search)."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Sent with every request, in the provider's own words (web_search)."""
    results: int = Field(default=3, ge=1, le=20)
    """How many passages or pages a search gives at most."""
    source: str
    """Where the figures come from; "assumed" where nothing is published."""

    @property
    def vendor(self) -> str:
        """Who is paid: the first part of its price."""
        return self.price.partition("/")[0]

    @property
    def fingerprint(self) -> str:
        """What of the entry decides its replies, for cassettes: not what is only read by policies and people."""
        return json.dumps(self.model_dump(mode="json", exclude=UNHEARD), sort_keys=True)


UNHEARD = {"description", "parameters", "price", "latency_s", "usage", "source", "fallback", "hands_to"}
"""Fields that the tool itself never sees."""


class DomainDefaults(Record):
    """What a domain's tools cost where the domain does not say."""

    price: str
    latency_s: Seconds
    source: str


class CatalogueFile(Record):
    """The layout of tools.yaml."""

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

    @classmethod
    def load(cls, catalogue_path: Path, prices_path: Path, price_date: str) -> Self:
        """Read tools and the prices that hold on `price_date` (ISO); raises `ConfigError` of one line."""
        try:
            day = date.fromisoformat(price_date)
        except ValueError:
            raise ConfigError(f"price_date {price_date!r} is no date", where="world", fix="write YYYY-MM-DD") from None
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
        entry = self.entry(name)
        price = scaled(self.prices[name], price_factor)
        latency_s = rounded(entry.latency_s * latency_factor)
        call_usd = cost_of(price, entry.usage, seconds=latency_s)
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

    def is_simulated(self, name: str) -> bool:
        """Whether the tool is a simulated expert; False also for a name the catalogue lacks."""
        return name in self.entries and self.entries[name].simulated is not None

    def skill(self, name: str, topic: str) -> float:
        """How often a simulated expert is right on a topic; 0 when unknown."""
        simulated = self.entry(name).simulated
        return simulated.skills.get(topic, 0.0) if simulated is not None else 0.0

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
                call_usd=cost_of(self.prices[name], entry.usage, seconds=entry.latency_s),
                latency_s=entry.latency_s,
            )
            for name, entry in self.entries.items()
        }

    @cached_property
    def _strengths(self) -> dict[str, float]:
        return {n: sum(self.skill(n, topic) for topic in self.topics) / len(self.topics) for n in self.entries}


def read_catalogue(path: Path) -> CatalogueFile:
    """tools.yaml as written, its entries checked; raises `ConfigError` of one line."""
    try:
        file = CatalogueFile.model_validate(read_mapping(path))
    except ValidationError as error:
        raise ConfigError(first_problem(error), where=str(path), fix="mend that entry") from None
    for name, entry in file.tools.items():
        _check(name, entry, file.topics, str(path))
        _check_interface(name, entry, file.mcp_servers, str(path))
        _check_helpers(name, file.tools, str(path))
    return file


def _check(name: str, entry: Entry, topics: list[str], where: str) -> None:
    if entry.implementation == "simulated":
        missing = set(topics) - set(entry.simulated.skills if entry.simulated else ())
        if missing:
            raise ConfigError(f"tools.{name}: no skill for {', '.join(sorted(missing))}", where=where, fix="add it")
    if entry.implementation == "openai" and not (entry.base_url_env and entry.endpoint_model):
        fix = "name the environment variable of its address and the model's name there"
        raise ConfigError(f"tools.{name}: openai needs base_url_env and endpoint_model", where=where, fix=fix)
    if entry.implementation == "web_search":
        from orchestra.tools.web import PROVIDERS

        if entry.provider not in PROVIDERS or entry.api_key_env is None:
            fix = f"name the provider ({', '.join(PROVIDERS)}) and the environment variable of its key"
            raise ConfigError(f"tools.{name}: web_search needs provider and api_key_env", where=where, fix=fix)


def _check_helpers(name: str, tools: dict[str, Entry], where: str) -> None:
    """What a real expert relies on: a known role, a tool that takes what it writes, a fallback that ends."""
    entry = tools[name]
    if entry.implementation == "openai" and entry.role not in TAKEN:
        raise ConfigError(f"tools.{name}: no role {entry.role!r:.40}", where=where, fix=f"one of: {', '.join(TAKEN)}")
    takes = TAKEN.get(entry.role)
    if entry.implementation == "openai" and takes is not None:
        helper = tools.get(entry.hands_to or "")
        if helper is None or takes not in helper.parameters.get("properties", {}):  # type: ignore[operator]
            what = f"tools.{name}: a {entry.role} needs a tool that takes its {takes}"
            raise ConfigError(what, where=where, fix=f"name it in hands_to, such as {HELPERS[takes]}")
    seen, after = [name], entry.fallback
    while after is not None:
        if after not in tools or tools[after].kind is not ToolKind.EXPERT or after in seen:
            what = f"tools.{name}: the fallback {after} is no expert, or one that failed already"
            raise ConfigError(what, where=where, fix="name another expert of the catalogue")
        seen, after = [*seen, after], tools[after].fallback


def _check_interface(name: str, entry: Entry, servers: dict[str, McpServer], where: str) -> None:
    """A tool is a function in the sense of the OpenAI tools array, whatever is behind it."""
    problem = schema_problem(entry.parameters)
    if problem is not None:
        raise ConfigError(f"tools.{name}.parameters: {problem}", where=where, fix="write a JSON schema of an object")
    if entry.implementation == "mcp" and (entry.mcp is None or entry.mcp.server not in servers):
        fix = "let `orchestra tools import-mcp` write the entry"
        raise ConfigError(f"tools.{name}: mcp needs a tool of one of mcp_servers", where=where, fix=fix)


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


def environment(name: str, *, tool: str) -> str:
    """The value of an environment variable that a tool needs; raises `ConfigError` when it is unset."""
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set", where=f"tool {tool}", fix=f"export {name}=…")
    return value
