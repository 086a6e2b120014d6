"""Whole domains written by a model: loaded by the guarded engine, fixed twice, or dropped; nothing half is left."""

import asyncio
import csv
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.accounting.budget import Budget
from orchestra.domains.engine import load_domain
from orchestra.domains.session import Domain
from orchestra.errors import BudgetError, ConfigError, DataError
from orchestra.synthesis.domain_tasks.tasks import domain_tasks
from orchestra.synthesis.writers.domains import propose_subjects, write_domain
from orchestra.synthesis.writers.plausible import check_domain, check_entries
from orchestra.synthesis.writers.structured import Writer
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Component, Price
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT

MOCK = ROOT / "data/domains/mock"
SUBJECT = "a town library that lends books to readers and fines those who are late"
PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))


def entries(table: str) -> list[dict[str, Any]]:
    file = MOCK / "entries" / f"{table}.csv"
    if not file.exists():
        return [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    with file.open(encoding="utf-8") as lines:
        rows = [{k: v if v != "" else None for k, v in row.items()} for row in csv.DictReader(lines)]
    return rows


def parts() -> dict[str, Any]:
    """The mock domain as a model would write it, by the name of what is asked for."""
    tools = yaml.safe_load((MOCK / "tools.yaml").read_text())
    return {
        "WrittenSchema": {"schema_sql": (MOCK / "schema.sql").read_text(), "policy": (MOCK / "policy.md").read_text()},
        "clock": {"rows": entries("clock")},
        "readers": {"rows": entries("readers")},
        "books": {"rows": entries("books")},
        "ToolsFile": {"tools": [tool for tool in tools["tools"] if tool["name"] != "find_books"]},
        "IntentFile": yaml.safe_load((MOCK / "intents.yaml").read_text()),
    }


def asked_for(request: dict[str, Any]) -> str:
    name: str = request["response_format"]["json_schema"]["name"]
    text = request["messages"][1]["content"]
    return next((t for t in ("clock", "readers", "books") if f"of table `{t}`" in text), name)


def playing(change: Callable[[str, Any, int], Any]) -> Callable[[dict[str, Any]], Any]:
    """The mock domain, each part changed by `change(part, value, earlier replies)`."""

    def reply(request: dict[str, Any]) -> Any:
        part = asked_for(request)
        return change(part, parts()[part], sum(m["role"] == "assistant" for m in request["messages"]))

    return reply


def writer(folder: Path, url: str, cap: str = "1") -> Writer:
    chat = Chat("m-1", model="m-1", url=url, backoff_s=0.01, cassette=Cassette(folder / "cassette.jsonl"))
    return Writer(PaidChat(chat, PRICE, Budget(folder / "ledger.jsonl", Decimal(cap)), Component.GENERATOR))


def write(folder: Path, url: str, name: str = "library", cap: str = "1") -> Domain:
    (folder / "domains").mkdir(exist_ok=True)
    made = writer(folder, url, cap)
    return asyncio.run(
        write_domain(made, name, SUBJECT, folder / "domains", seed=1, licence="CC-BY-4.0", rows=6, taken={"search"})
    )  # fmt: skip


def test_a_written_domain_is_whole_and_gives_examples(tmp_path: Path) -> None:
    with serving(playing(lambda part, value, again: value)) as double:
        domain = write(tmp_path, double.url)
        order = [asked_for(request) for request in double.asked]
    assert order == ["WrittenSchema", "clock", "readers", "books", "ToolsFile", "IntentFile"]
    assert [task.instruction for task in domain_tasks(domain, 0, 8, "train")]
    folder = tmp_path / "domains/library"
    assert load_domain(folder).tools.keys() == domain.tools.keys()
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["generator"] == "model:m-1" and origin["licence"] == "CC-BY-4.0" and len(origin["prompts"]) == 7
    assert [path.name for path in (tmp_path).iterdir() if path.name.startswith(".")] == []
    with pytest.raises(ConfigError, match="is there already"):
        write(tmp_path, double.url)


def put(part: str, update: Callable[[Any], Any]) -> Callable[[str, Any, int], Any]:
    return lambda name, value, again: update(value) if name == part else value


def with_statement(sql: str) -> Callable[[Any], Any]:
    def update(value: Any) -> Any:
        value["tools"][0]["statements"] = [f"{sql} -- :book"]
        return value

    return update


def row(**update: Any) -> Callable[[Any], Any]:
    return lambda value: {"rows": [{**one, **update} for one in value["rows"]]}


HOSTILE: dict[str, tuple[Callable[[str, Any, int], Any], str]] = {
    "attaching": (put("ToolsFile", with_statement("attach database '/tmp/stolen.db' as x")), "is no query, insert"),
    "the schema": (put("ToolsFile", with_statement("select * from sqlite_master")), "sqlite_master is not"),
    "an extension": (put("ToolsFile", with_statement("select load_extension('/tmp/x.so')")), "load_extension"),
    "a file": (put("ToolsFile", with_statement("select readfile('/etc/passwd')")), "readfile"),
    "a pragma in the schema": (
        put("WrittenSchema", lambda v: {**v, "schema_sql": v["schema_sql"] + "; pragma writable_schema = on;"}),
        "pragma writable_schema is not allowed",
    ),
    "a trigger": (
        put("WrittenSchema", lambda v: {**v, "schema_sql": v["schema_sql"] + "create trigger t after insert on books "
            "begin delete from readers; end;"}),
        "creating the trigger t is not allowed",
    ),
    "no key": (put("WrittenSchema", lambda v: {**v, "schema_sql": "create table books (a text, b text);"}), "primary"),
    "a reference ahead": (
        put("WrittenSchema", lambda v: {**v, "schema_sql": "create table a (a text primary key references b (b)); "
            "create table b (b text primary key);"}),
        "a refers to b, which is not a table before it",
    ),
    "a column from nowhere": (put("readers", row(**{"evil": 1})), "readers has no column evil"),
    "a path as column": (put("readers", row(**{"../../x": 1})), "should match pattern"),
    "a dangling reference": (put("books", row(reader="Nobody")), "refers to no row of readers"),
    "a placeholder": (put("readers", row(city="TBD")), "readers.city: 'TBD' is a placeholder"),
    "a number in words": (put("readers", row(fine="two")), "readers.fine: 'two' is no number"),
    "a tool of the catalogue": (
        put("ToolsFile", lambda v: {"tools": [v["tools"][0] | {"name": "search"}, *v["tools"][1:]]}),
        "the catalogue has a tool search, too",
    ),
    "entries all alike": (put("readers", row(city="Tarn", fine=0)), "differ in their first column only"),
    "too few entries": (put("readers", lambda v: {"rows": v["rows"][:1]}), "1 entries; 6 were asked for"),
    "one tool": (put("ToolsFile", lambda v: {"tools": v["tools"][:1]}), "1 tools; at least 4"),
    "an intent that is refused": (
        put("IntentFile", lambda v: {**v, "intents": [
            {**one, "slots": "select reader, fine from readers where fine = 0"} if one["name"] == "pay" else one
            for one in v["intents"]]}),
        "intent pay: domain library, golden call pay_fine: refused: ",
    ),
    "no change": (
        put("IntentFile", lambda v: {**v, "intents": v["intents"][:3] + v["intents"][:1]}),
        "no intent calls lend_book, pay_fine, return_book",
    ),
    "code instead": (put("ToolsFile", lambda v: {"tools": "import os"}), "tools: Input should be a valid"),
}  # fmt: skip


@pytest.mark.parametrize("space", ["\u3000", "\xa0", "\n"])
def test_a_name_may_hold_a_space_of_any_width_but_no_line_break(space: str) -> None:
    mock = load_domain(MOCK)
    rows = [(f"Ann{space}Lee", *row[1:]) for row in mock.open().contents()["readers"]]
    with pytest.raises(DataError, match="one line") if space == "\n" else nullcontext():
        check_entries(mock.tables["readers"], rows)


@pytest.mark.parametrize("case", HOSTILE)
def test_what_the_engine_or_plausibility_refuses_is_sent_back_twice_and_dropped(tmp_path: Path, case: str) -> None:
    change, reason = HOSTILE[case]
    with serving(playing(change)) as double:
        with pytest.raises(DataError) as caught:
            write(tmp_path, double.url)
        said = str(caught.value)
        assert said.startswith("domain library: dropped: ") and reason in said and str(tmp_path) not in said
        last = [asked_for(request) for request in double.asked][-3:]
        assert len(set(last)) == 1 and reason in double.asked[-1]["messages"][-1]["content"]
    assert list((tmp_path / "domains").iterdir()) == []
    assert not Path("/tmp/stolen.db").exists()


def test_a_domain_mended_in_time_is_kept(tmp_path: Path) -> None:
    def change(part: str, value: Any, again: int) -> Any:
        return with_statement("drop table books")(value) if part == "ToolsFile" and again < 2 else value

    with serving(playing(change)) as double:
        assert len(write(tmp_path, double.url).tools) == 5
        assert len(double.asked) == 8


def test_a_domain_that_is_too_long_names_the_limit(tmp_path: Path) -> None:
    body = answer("")
    body["choices"][0]["finish_reason"] = "length"
    with serving([(200, body, 0)]) as double, pytest.raises(DataError, match="max_output_tokens, or name a model"):
        write(tmp_path, double.url)


def test_the_cap_leaves_no_half_domain_and_the_next_run_goes_on_from_the_cassette(tmp_path: Path) -> None:
    with serving(playing(lambda part, value, again: value)) as double:
        with pytest.raises(BudgetError):
            write(tmp_path, double.url, cap="0.0098")
        assert list((tmp_path / "domains").iterdir()) == [] and 0 < (before := len(double.asked)) < 6
        write(tmp_path, double.url)
        assert len(double.asked) == 6 > before


@pytest.mark.parametrize("name", ["../evil", "Library", "", "a b", "x" * 50])
def test_a_name_is_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        write(tmp_path, "http://127.0.0.1:9", name=name)


def test_subjects_are_new_ones(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> Any:
        again = len(request["messages"]) > 2
        return {"subjects": [{"name": "museum" if again else "mock", "subject": "who shows which painting where"}]}

    with serving(reply) as double:
        found = asyncio.run(propose_subjects(writer(tmp_path, double.url), 1, ["mock"], 0))
        assert [one.name for one in found] == ["museum"]
        assert "mock is there already" in double.asked[1]["messages"][-1]["content"]


def test_a_shipped_domain_is_plausible_and_the_mock_has_a_tool_that_only_tests_use() -> None:
    check_domain(load_domain(ROOT / "data/domains/weather"))
    with pytest.raises(DataError, match="no intent calls find_books"):
        check_domain(load_domain(MOCK))


def test_a_change_that_leaves_every_row_as_it_was_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "weather"
    shutil.copytree(ROOT / "data/domains/weather", folder)
    text = (folder / "tools.yaml").read_text(encoding="utf-8")
    lifts = "set status = 'lifted', ends = (select day from clock) where"
    (folder / "tools.yaml").write_text(text.replace(lifts, "set status = status where"), encoding="utf-8")
    with pytest.raises(DataError, match=r"intent .*: the golden calls write rows and leave each as it was"):
        check_domain(load_domain(folder))
