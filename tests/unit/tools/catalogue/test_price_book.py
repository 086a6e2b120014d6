"""The price book: what holds on a day."""

import re
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import ConfigError
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.price_book import PriceBook, PriceRow
from tests.support.worlds import ROOT

START = date(2025, 1, 1)


def row(day: int, dollars: int = 1, model: str = "m") -> PriceRow:
    return PriceRow(
        provider="p", model=model, effective_from=START + timedelta(days=day), output=Decimal(dollars), source="test"
    )


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(0, 400))
def test_the_latest_row_not_after_the_day_holds(days: set[int], asked: int) -> None:
    book = PriceBook([row(day, day + 1) for day in days])
    held = [day for day in days if day <= asked]
    if held:
        assert book.at("p/m", START + timedelta(days=asked)).output_per_million == max(held) + 1
    else:
        with pytest.raises(ConfigError, match="the first is from"):
            book.at("p/m", START + timedelta(days=asked))


def test_two_rows_of_one_day_are_refused() -> None:
    with pytest.raises(ConfigError, match="two prices for p/m from 2025-01-06"):
        PriceBook([row(5), row(5, 2)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prices: [{provider: p}]", "model: Field required"),
        ("prices:", "prices is no list"),
        ("price: []", "prices is no list"),
        (
            "prices:\n- {provider: p, model: m, effective_from: 2025-01-01, source: x}\n"
            "- {provider: p, model: n, effective_from: 2025-01-01, source: x, per_call: 1 cent}",
            "row 2 (p/n): per_call: ",
        ),
        ("prices: [p/m]", "row 1 ('p/m'): "),
        ("prices: [{provider: p, model: m, effective_from: 2025-01-01, input: -1, source: x}]", "input"),
        ("- a\n- b", "not a mapping"),
        ("prices: [", "not YAML"),
        ("prices: [{effective_from: 2020-99-99}]", "not YAML: month must be"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        PriceBook.load(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        PriceBook.load(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["real", "current"])
def test_real_experts_on_a_day_before_their_prices_say_which_day_to_choose(name: str) -> None:
    """No advice to invent a row; the day that the documentation names has prices for all of them."""
    real, prices = ROOT / f"data/catalogue/{name}.yaml", ROOT / "data/catalogue/prices.yaml"
    with pytest.raises(ConfigError, match=r"\(the first is from 2026-\d\d-\d\d\) — choose a day from 2026-"):
        Catalogue.load(real, prices, "2025-11-15")
    told = [real, *([ROOT / "docs/how-to/use-real-experts.md"] if name == "current" else [])]
    for file in told:
        (day,) = set(re.findall(r'world\.price_date: "([\d-]+)"', file.read_text(encoding="utf-8")))
        Catalogue.load(real, prices, day)
