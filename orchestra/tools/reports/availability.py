"""Every tool of the catalogue with its price on a day, and whether it can be used on this machine."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ConfigError, OrchestraError
from orchestra.text import aligned
from orchestra.tools.catalogue.catalogue import DomainDefaults
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Price, Record, ToolKind, Usage, Usd

PATIENCE_S = 30.0
"""For a server to answer, or a sandbox to be tried."""


class Listed(Record):
    """One line of `orchestra tools list`."""

    name: str
    """The entry's; `domain:<domain>` stands for all tools of a domain."""
    kind: ToolKind
    role: str
    provider: str
    model: str
    price: Price | None
    """None where the book has none on that day."""
    call_usd: Usd | None
    """Expected dollars of one call."""
    latency_s: float
    available: bool
    note: str
    """How it is available here, or what is missing."""


async def survey(toolkit: Toolkit, book: PriceBook, day: date) -> list[Listed]:
    """Every tool in file order, then every domain; tools are tried side by side, servers started and ended."""
    catalogue = toolkit.catalogue
    try:
        found = await asyncio.gather(*(_try(_tool(toolkit, name)) for name in catalogue.entries))
    finally:
        await toolkit.aclose()
    rows = [
        _listed(name, entry.kind, entry.role, entry.price, _cost(book, entry.price, day, entry), entry.latency_s, *how)
        for (name, entry), how in zip(catalogue.entries.items(), found, strict=True)
    ]
    default = catalogue.domain_tool
    for name in toolkit.domain_folders:
        how, cost = await _try(_domain(toolkit, name)), _cost(book, default.price, day, default)
        row = (f"domain:{name}", ToolKind.DOMAIN, "domain", default.price, cost, default.latency_s)
        rows.append(_listed(*row, *how))
    return rows


def table(rows: Sequence[Listed], day: date) -> list[str]:
    """The lines that a person reads."""
    head = ("tool", "kind", "provider", f"price on {day}", "a call", "seconds", "available here")
    cells = [head]
    for row in rows:
        call = "" if row.call_usd is None else f"${row.call_usd:.5f}"
        here = ("yes" if row.available else "NO") + (f": {row.note}" if row.note else "")
        price = "no price" if row.price is None else rates(row.price)
        cells.append((row.name, row.kind.value, row.provider, price, call, f"{row.latency_s:g}", here))
    return aligned(cells)


def rates(price: Price) -> str:
    """A price in a few words, e.g. `$1.25 in (0.125 cached) + $10 out / M`."""
    parts = []
    if price.input_per_million or price.output_per_million:
        cached = price.cached_input_per_million
        kept = "" if cached is None else f" ({cached:f} cached)"
        parts.append(f"${price.input_per_million:f} in{kept} + ${price.output_per_million:f} out / M")
    parts += [f"${price.per_call:f} / call"] if price.per_call else []
    parts += [f"${price.per_second:f} / s"] if price.per_second else []
    return ", ".join(parts) or "free"


def _listed(
    name: str, kind: ToolKind, role: str, key: str, cost: tuple[Price, Decimal] | None, latency_s: float,
    available: bool, note: str,
) -> Listed:  # fmt: skip
    provider, _, model = key.partition("/")
    price, call_usd = cost if cost is not None else (None, None)
    return Listed(
        name=name,
        kind=kind,
        role=role,
        provider=provider,
        model=model,
        price=price,
        call_usd=call_usd,
        latency_s=latency_s,
        available=available,
        note=note,
    )


def _cost(book: PriceBook, key: str, day: date, entry: Entry | DomainDefaults) -> tuple[Price, Decimal] | None:
    """The price on that day and the expected dollars of one call; None where the book has none."""
    try:
        price = book.at(key, day)
    except ConfigError:
        return None
    usage = entry.usage if isinstance(entry, Entry) else Usage()
    return price, cost_of(price, usage, seconds=entry.latency_s)


async def _try(attempt: Awaitable[str]) -> tuple[bool, str]:
    """Whether a tool can be used, and how or why not."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return True, await attempt
    except TimeoutError:
        return False, f"no answer within {PATIENCE_S:g} s"
    except OrchestraError as error:
        return False, str(error).replace(f"{Path.cwd()}/", "")


async def _tool(toolkit: Toolkit, name: str) -> str:
    """How the tool is available; raises `OrchestraError` with what is missing."""
    tool = toolkit.tool(name)
    ready = getattr(tool, "ready", None)
    if ready is not None:
        return str(await ready())
    return "simulated" if toolkit.catalogue.is_simulated(name) else ""


async def _domain(toolkit: Toolkit, name: str) -> str:
    return f"{len(toolkit.domain(name).tools)} tools"
