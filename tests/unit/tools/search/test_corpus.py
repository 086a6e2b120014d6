"""Local search: the right record, from a file that may be wrong."""

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.errors import DataError
from orchestra.tools.base import ToolContext
from orchestra.tools.search.corpus import NOTHING, Document, SearchIndex, SearchTool
from orchestra.types import Price

RECORDS = [
    Document(id="1", title="Borvane leader", text="The leader of Borvane is Kelmar."),
    Document(id="2", title="Borvane city", text="The city of Borvane is Tolish."),
    Document(id="3", title="Kelmar home", text="The home of Kelmar is Osk\u2028vik."),
]


@pytest.mark.parametrize(
    ("query", "found"), [("Borvane leader", "1"), ("borvane CITY?", "2"), ("Kelmar home", "3"), ("quark", None)]
)
def test_the_best_record(query: str, found: str | None) -> None:
    best = SearchIndex.build(RECORDS).top(query)
    assert (best.id if best else None) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Where is Borvane city?", "2"),
        ("Tell me the leader of Borvane. Is it Kelmar?", "1"),
        ("Who leads Norvik city?", None),
        ("Where?", None),
        ("Could Norvik", None),
    ],
)
def test_a_word_that_asks_is_no_name_and_an_unknown_name_finds_nothing(query: str, found: str | None) -> None:
    best = SearchIndex.build(RECORDS).top(query)
    assert (best.id if best else None) == found


def test_a_call_costs_the_price_of_this_example() -> None:
    tool = SearchTool(SearchIndex.build(RECORDS))
    context = ToolContext("", Price(per_call=Decimal("0.003")), 0.4)
    result = asyncio.run(tool.call({"query": "Borvane city"}, context))
    assert (result.text, result.cost_usd, result.latency_s) == (RECORDS[1].text, Decimal("0.003"), 0.4)
    assert asyncio.run(tool.call({"query": "?!"}, context)).text == NOTHING


def test_loading_keeps_lines_whole_and_names_the_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(record.model_dump_json() + "\n" for record in RECORDS), encoding="utf-8")
    assert SearchIndex.load(path).documents == tuple(RECORDS)
    path.write_text(RECORDS[0].model_dump_json() + '\n{"id": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: "):
        SearchIndex.load(path)
    with pytest.raises(DataError, match="run the synthesize stage"):
        SearchIndex.load(tmp_path / "none.jsonl")


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        SearchIndex.build([])
