"""`orchestra tools list`: prices of a day, and what is missing here."""

import asyncio
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.mcp.spec import McpServer
from orchestra.tools.reports.availability import Listed, rates, survey, table
from orchestra.tools.search.index.build import build, settings_of
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Price, ToolKind
from tests.support.mcp_world import fake, freezer, load, offers
from tests.support.worlds import ROOT, catalogue, toolkit

BOOK = PriceBook.load(ROOT / "data/catalogue/prices.yaml")
TODAY = date(2026, 1, 1)


def listed(kit: Toolkit, day: date = TODAY, book: PriceBook = BOOK) -> dict[str, Listed]:
    return {row.name: row for row in asyncio.run(survey(kit, book, day))}


def test_everything_shipped_is_available_where_the_data_is(tmp_path: Path) -> None:
    rows = listed(toolkit(tmp_path))
    basic = [row for row in rows.values() if row.kind is ToolKind.BASIC and row.name != "python"]
    assert all(row.available and row.note == "" for row in basic)
    assert rows["gpt-5"].available and rows["gpt-5"].note == "simulated"
    assert (rows["gpt-5"].provider, rows["gpt-5"].model) == ("openai", "gpt-5")
    assert (rows["domain:mock"].kind, rows["domain:mock"].available) == (ToolKind.DOMAIN, True)
    head, calculator, *others = table(list(rows.values()), TODAY)
    assert "price on 2026-01-01" in head and calculator.split()[:3] == ["calculator", "basic", "local"]
    assert len(others) == len(rows) - 1 and any("$1.25 in (0.125 cached) + $10 out / M" in line for line in others)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPT_URL", raising=False)
    made = freezer(tmp_path)
    for name, server in {"good": fake(), "gone": fake("dead"), "other": fake("changed")}.items():
        made.freeze(name, server, offers(fake()), ["add"], reserved={"add"})
    text = made.catalogue_path.read_text(encoding="utf-8")
    real = "implementation: openai\n    base_url_env: GPT_URL\n    endpoint_model: gpt-5\n"
    made.catalogue_path.write_text(text.replace("implementation: simulated\n", real, 1), encoding="utf-8")
    rows = listed(Toolkit(load(made), {}, tmp_path / "nothing"), book=PriceBook.load(made.prices_path))
    missing = {name: row.note for name, row in rows.items() if not row.available and row.kind is not ToolKind.EXPERT}
    assert rows["good_add"].available and rows["good_add"].note == "stdio" and rows["good_add"].provider == "mcp"
    assert "run the synthesize stage" in missing.pop("search") and "no licence" in missing.pop("gone_add")
    assert "has changed since it was imported" in missing.pop("other_add") and set(missing) <= {"python"}
    assert "GPT_URL is not set" in rows["gpt-5"].note and not rows["gpt-5"].available


def test_an_index_is_opened_to_see_whether_it_is_there(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "index"
    source.write_text('{"id": "a", "title": "Borvane", "text": "It is led by Kelmar."}\n', encoding="utf-8")
    build([source], out, settings_of(out, model=None))
    entry = catalogue().entry("search").model_copy(update={"index": "index", "results": 1})
    records = replace(catalogue(), entries={"records": entry})
    row = listed(Toolkit(records, {}, tmp_path, root=tmp_path))["records"]
    assert (row.available, row.note) == (True, "1 passages")
    row = listed(Toolkit(records, {}, tmp_path, root=tmp_path / "nowhere"))["records"]
    assert not row.available and "orchestra index build" in row.note


def test_before_the_first_price_there_is_none(tmp_path: Path) -> None:
    rows = listed(toolkit(tmp_path), date(2020, 1, 1))
    assert rows["gpt-5"].price is None and rows["gpt-5"].call_usd is None
    assert "no price" in table(list(rows.values()), date(2020, 1, 1))[1]


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ({}, "free"),
        ({"per_call": "0.01", "per_second": "0.0000083"}, "$0.01 / call, $0.0000083 / s"),
        ({"input_per_million": "0.2", "output_per_million": "0.2"}, "$0.2 in + $0.2 out / M"),
    ],
)
def test_a_price_in_words(price: dict[str, Any], said: str) -> None:
    assert rates(Price(**price)) == said


def test_an_entry_must_name_a_server_of_the_catalogue(tmp_path: Path) -> None:
    made = freezer(tmp_path)
    made.freeze("files", McpServer(command=("serve",)), offers(fake()), ["add"])
    text = made.catalogue_path.read_text(encoding="utf-8")
    made.catalogue_path.write_text(text.replace("{server: files", "{server: flies"), encoding="utf-8")
    with pytest.raises(Exception, match=r"tools\.add: mcp needs a tool of one of mcp_servers"):
        Catalogue.load(made.catalogue_path, made.prices_path, "2025-11-15")
