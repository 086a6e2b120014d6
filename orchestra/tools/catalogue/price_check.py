"""Issues of the price book: tools without a price or retired, stale or assumed rows, figures without a source."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from orchestra.tools.catalogue.catalogue import CatalogueFile
from orchestra.tools.catalogue.price_book import PriceBook, PriceRow

LOCAL, ASSUMED = "local/", "assumed"
"""How the keys of our own tools begin, and the source of prices that are not published."""

NOTICE = timedelta(days=60)
"""How long before a tool is retired a person should know."""


@dataclass(frozen=True)
class PriceIssue:
    """One thing to fix."""

    what: str
    fix: str


def check_prices(file: CatalogueFile, book: PriceBook, as_of: date, days: int) -> list[PriceIssue]:
    """Issues for a person to look at on the day `as_of`; rows count as stale more than `days` days after they were
    checked last (or took effect, where that is later)."""
    return [
        *_missing(file, book, as_of),
        *stale_prices(file, book, as_of, days),
        *retired(file, as_of),
        *retiring(file, as_of),
        *_assumed(file, book, as_of),
        *_sources(file, book),
    ]


def price_keys(file: CatalogueFile) -> dict[str, str]:
    """Price key by tool name; `a domain's tools` and `the orchestrator` besides."""
    tools = {name: entry.price for name, entry in file.tools.items()}
    return tools | {"a domain's tools": file.domain_tool.price, "the orchestrator": file.policy_price}


def _missing(file: CatalogueFile, book: PriceBook, as_of: date) -> Iterator[PriceIssue]:
    for name, key in price_keys(file).items():
        if book.row(key, as_of) is None:
            later = book.rows(key)
            why = f": the first is from {later[0].effective_from}" if later else ""
            yield PriceIssue(f"{name} has no price on {as_of} ({key}){why}", f"add a row for {key}")


def _in_use(file: CatalogueFile, book: PriceBook, as_of: date) -> Iterator[tuple[str, PriceRow]]:
    for key in sorted(set(price_keys(file).values())):
        if (row := book.row(key, as_of)) is not None:
            yield key, row


def stale_prices(file: CatalogueFile, book: PriceBook, as_of: date, days: int) -> Iterator[PriceIssue]:
    """Prices in use that nobody compared with their source for more than `days` days."""
    for key, row in _in_use(file, book, as_of):
        if (age := (as_of - row.looked_at(as_of)).days) > days:
            what = f"the price of {key} was looked at {age} days before {as_of}, on {row.looked_at(as_of)}"
            yield PriceIssue(what, f"compare it with {row.source!r}; then add a row, or set its `checked`")


def retired(file: CatalogueFile, as_of: date) -> Iterator[PriceIssue]:
    """Tools that their provider serves no more."""
    for name, entry in file.tools.items():
        if entry.retires is not None and entry.retires <= as_of:
            yield PriceIssue(
                f"{name} is retired since {entry.retires}", "take it out of the catalogue, or name another model in it"
            )


def retiring(file: CatalogueFile, as_of: date) -> Iterator[PriceIssue]:
    """Tools that their provider will soon serve no more."""
    for name, entry in file.tools.items():
        if entry.retires is not None and as_of < entry.retires <= as_of + NOTICE:
            yield PriceIssue(
                f"{name} retires on {entry.retires}", "name another model in the catalogue before that day"
            )


def _assumed(file: CatalogueFile, book: PriceBook, as_of: date) -> Iterator[PriceIssue]:
    """Unpublished prices of other providers; prices of our own tools may be assumed."""
    for key, row in _in_use(file, book, as_of):
        if not key.startswith(LOCAL) and row.source.startswith(ASSUMED):
            what = f"the price of {key} from {row.effective_from} is no published one: {row.source}"
            yield PriceIssue(what, "add a row with the provider's own price")


def _sources(file: CatalogueFile, book: PriceBook) -> Iterator[PriceIssue]:
    for row in book.every():
        if not row.source.strip():
            yield PriceIssue(
                f"the price of {row.key} from {row.effective_from} names no source", "say where it is from"
            )
    for name, entry in file.tools.items():
        if not entry.source.strip():
            yield PriceIssue(f"{name} names no source of its figures", "say where they are from, or assumed")
