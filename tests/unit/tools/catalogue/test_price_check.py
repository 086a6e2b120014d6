"""`orchestra prices check`: what a person has to look at."""

from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.tools.catalogue.catalogue import CatalogueFile, read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook, PriceRow
from orchestra.tools.catalogue.price_check import check_prices, price_keys
from tests.support.worlds import ROOT

SHIPPED = read_catalogue(ROOT / "data/catalogue/tools.yaml")
BOOK = PriceBook.load(ROOT / "data/catalogue/prices.yaml")
DAY = date(2025, 11, 15)


def row(key: str, effective: date, checked: date | None = None, source: str = "a list") -> PriceRow:
    provider, _, model = key.partition("/")
    return PriceRow(
        provider=provider, model=model, effective_from=effective, output=Decimal(1), source=source, checked=checked
    )


def few(**update: str) -> CatalogueFile:
    """A catalogue of the calculator and gpt-5."""
    tools = {name: SHIPPED.tools[name] for name in ("calculator", "gpt-5")}
    tools["gpt-5"] = tools["gpt-5"].model_copy(update=update)
    return SHIPPED.model_copy(update={"tools": tools})


def rows(*, without: str = "", **gpt: object) -> list[PriceRow]:
    keys = ["local/calculator", "local/domain", "together/qwen3-8b"]
    made = [row(key, DAY) for key in keys if key != without]
    return made if without == "openai/gpt-5" else [*made, row("openai/gpt-5", **{"effective": DAY, **gpt})]  # type: ignore[arg-type]


def found(file: CatalogueFile, made: list[PriceRow], as_of: date = DAY, days: int = 365) -> list[str]:
    return [finding.what for finding in check_prices(file, PriceBook(made), as_of, days)]


def test_the_shipped_book_is_whole_and_says_where_it_is_from() -> None:
    said = [finding.what for finding in check_prices(SHIPPED, BOOK, DAY, 365)]
    assert len(said) == 2 and all("is no published one: assumed" in one for one in said)
    assert "nemotron-49b" in said[0] and "qwen3-235b" in said[1]
    assert set(price_keys(SHIPPED).values()) <= {one.key for one in BOOK.every()}


@pytest.mark.parametrize(
    ("key", "who"),
    [("openai/gpt-5", "gpt-5"), ("local/domain", "a domain's tools"), ("together/qwen3-8b", "the orchestrator")],
)
def test_whoever_has_no_price_is_named(key: str, who: str) -> None:
    assert found(few(), rows(without=key)) == [f"{who} has no price on {DAY} ({key})"]


def test_a_price_that_begins_later_is_none_yet() -> None:
    said = found(few(), rows(effective=DAY + timedelta(days=1)))
    assert said == [f"gpt-5 has no price on {DAY} (openai/gpt-5): the first is from 2025-11-16"]


@given(st.integers(0, 900), st.none() | st.integers(0, 900), st.integers(0, 900))
def test_a_row_is_stale_when_nobody_looked_for_longer(age: int, checked: int | None, days: int) -> None:
    looked = None if checked is None else DAY - timedelta(days=checked)
    made = rows(effective=DAY - timedelta(days=age), checked=looked)
    since = age if checked is None else min(age, checked)
    said = found(few(), made, days=days)
    assert len(said) == (since > days) and all(f"looked at {since} days before" in line for line in said)


def test_a_check_after_the_day_asked_for_proves_nothing_about_it() -> None:
    made = rows(effective=DAY - timedelta(days=500), checked=DAY + timedelta(days=1))
    assert len(found(few(), made)) == 1


def test_figures_without_a_source_are_named() -> None:
    assert found(few(source=" "), rows()) == ["gpt-5 names no source of its figures"]
    assert found(few(), rows(source="")) == [f"the price of openai/gpt-5 from {DAY} names no source"]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (61, []), (60, ["gpt-5 retires on 2026-01-14"]), (1, ["gpt-5 retires on 2025-11-16"]),
        (0, ["gpt-5 is retired since 2025-11-15"]), (-1, ["gpt-5 is retired since 2025-11-14"]),
    ],
)  # fmt: skip
def test_a_tool_that_retires_is_told_sixty_days_before(days: int, said: list[str]) -> None:
    assert found(few(retires=DAY + timedelta(days=days)), rows()) == said  # type: ignore[arg-type]
