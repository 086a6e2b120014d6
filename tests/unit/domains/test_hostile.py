"""A hostile or broken domain folder is refused at load with the file and the reason; nothing outside is touched."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.domains import guard
from orchestra.domains.engine import load_domain
from orchestra.domains.guard import MAX_MEMORY_BYTES, MAX_SECONDS
from orchestra.errors import CallError, DataError, ToolError

ROOT = Path(__file__).parents[3]
MOCK = ROOT / "data" / "domains" / "mock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MOCK, tmp_path / "world"))


HOSTILE_SQL = [
    "attach database '/tmp/stolen.db' as x",
    "detach database main",
    "pragma writable_schema = on",
    "pragma database_list",
    "vacuum into '/tmp/stolen.db'",
    "select load_extension('/tmp/evil.so')",
    "select readfile('/etc/passwd')",
    "select writefile('/tmp/x', 'y')",
    "select * from sqlite_master",
    "select name from sqlite_schema",
    "select * from pragma_table_info('readers')",
    "select * from _touched",
    "delete from _touched",
    "insert into _touched values ('books', '1')",
    "create table more (a)",
    "create temp table more (a)",
    "create trigger t after insert on books begin delete from readers; end",
    "create view v as select 1",
    "create virtual table f using fts5(a)",
    "drop table books",
    "drop trigger _touch_books_update",
    "alter table books add column x",
    "begin",
    "commit",
    "rollback",
    "savepoint s",
    "update books set due = 1; delete from readers",
    "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
    "select random()",
    "select hex(randomblob(9))",
    "select current_timestamp",
    "select datetime('now')",
    "select date()",
    "select zeroblob(1000000000)",
    "select fts3_tokenizer('x')",
    "select sqlite_version()",
    "select json_extract('{}', '$')",
    "select * from json_each('[1]')",
    "select * from generate_series(1, 9)",
    "select * from temp.sqlite_temp_master",
    "select rowid from main._touched",
    "explain select 1",
    "query plan select 1",
    "reindex",
    "analyze",
    "select 1 from nowhere",
    "select :unknown",
    "selec 1",
]


@pytest.mark.parametrize("statement", HOSTILE_SQL)
@pytest.mark.parametrize("place", ["statement", "precondition", "slots"])
def test_sql_beyond_the_domain_is_refused(folder: Path, statement: str, place: str) -> None:
    quoted = json.dumps(statement)
    file = folder / ("intents.yaml" if place == "slots" else "tools.yaml")
    text = file.read_text()
    if place == "slots":
        text = text.replace("slots: select reader, fine from readers\n", f"slots: {quoted}\n")
    elif place == "statement":
        text += f"  - {{name: extra, description: one more, parameters: {{}}, statements: [{quoted}]}}\n"
    else:
        text = text.replace("query: select 1 from readers where reader = :reader\n", f"query: {quoted}\n", 1)
    file.write_text(text)
    with pytest.raises(DataError, match=f"{file.name}: "):
        load_domain(folder)
    assert not Path("/tmp/stolen.db").exists()


HOSTILE_SCHEMA = [
    "attach database '/tmp/stolen.db' as x;",
    "create trigger t after insert on books begin delete from readers; end;",
    "create view v as select * from readers;",
    "create virtual table f using fts5(a);",
    "create temp table more (a integer primary key);",
    "create table more as select 1 as a;",
    "create table more (a integer primary key, t text default current_timestamp);",
    "create table more (a integer primary key, t integer default (random()));",
    "create table more (a integer primary key, t integer check (t < random()));",
    "create table more (a integer primary key, t integer generated always as (a + 1));",
    "create table more (a integer);",
    "create table more (a real primary key);",
    'create table "x""y" (a integer primary key);',
    "create table _touched (a integer primary key);",
    "create table more (a integer primary key autoincrement);",
    "insert into readers values ('Eve', 'x', 0);",
    "drop table books;",
    "pragma foreign_keys = off;",
    "begin;",
    "select load_extension('x');",
    "nonsense;",
]


@pytest.mark.parametrize("statement", HOSTILE_SCHEMA)
def test_a_schema_makes_plain_tables_only(folder: Path, statement: str) -> None:
    file = folder / "schema.sql"
    file.write_text(file.read_text() + statement)
    with pytest.raises(DataError, match=r"schema\.sql: "):
        load_domain(folder)
    assert not Path("/tmp/stolen.db").exists()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def replace(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new, 1))


def link(name: str, target: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def link_away(folder: Path, name: str = "") -> None:
    """What is there moves out; a link leads to it."""
    place = folder / name
    (place).rename(outside := folder.parent / "outside")
    place.symlink_to(outside)


def pipe(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def folder_for(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "policy missing": (lambda folder: (folder / "policy.md").unlink(), "policy.md: no such file"),
    "tools missing": (lambda folder: (folder / "tools.yaml").unlink(), "tools.yaml: no such file"),
    "entries missing": (lambda folder: shutil.rmtree(folder / "entries"), "entries: no such folder"),
    "not text": (lambda folder: (folder / "schema.sql").write_bytes(b"\xff\xfe"), "schema.sql: cannot be read"),
    "a link out": (link("policy.md", "/etc/passwd"), "policy.md: is a symbolic link"),
    "an entries link out": (link("entries/clock.csv", "/etc/passwd"), "clock.csv: is a symbolic link"),
    "entries linked out": (lambda folder: link_away(folder, "entries"), "entries: is a symbolic link"),
    "the folder linked out": (link_away, "world: is a symbolic link"),
    "a pipe": (pipe("policy.md"), "policy.md: is no plain file"),
    "a pipe of entries": (pipe("entries/clock.csv"), "clock.csv: is no plain file"),
    "a folder for a file": (folder_for("policy.md"), "policy.md: is no plain file"),
    "a stray file": (write("entries/evil.py", "print(1)"), "evil.py: is neither"),
    "an unknown table": (write("entries/extra.csv", "a\n1\n"), "there is no table extra"),
    "a table twice": (write("entries/books.jsonl", '{"book": 1}'), "there is no table books left"),
    "a torn line": (write("entries/clock.csv", "id,day\n1\n"), r"clock.csv:2: 1 cells under 2 columns"),
    "a torn quote": (write("entries/clock.csv", 'id,day\n1,"4\n'), "clock.csv:2: not CSV"),
    "an unknown column": (write("entries/clock.csv", "id,year\n1,4\n"), "clock has no column year"),
    "a rule broken": (replace("entries/books.csv", "52,1", "52,11"), "books.csv:2: CHECK constraint"),
    "a key twice": (replace("entries/books.csv", "12,Basil", "11,Basil"), "books.csv:3: UNIQUE constraint"),
    "a dangling reference": (replace("entries/books.csv", "Ovel", "Nobody"), "refers to no row of readers"),
    "not JSON": (write("entries/readers.jsonl", "{"), "readers.jsonl:1: not JSON"),
    "not an object": (write("entries/readers.jsonl", "[1]"), "readers.jsonl:1: not an object"),
    "a nested value": (write("entries/readers.jsonl", '{"reader": []}'), "readers.jsonl:1: a value"),
    "not YAML": (write("tools.yaml", "tools: ["), "tools.yaml: not YAML"),
    "YAML that builds objects": (
        write("tools.yaml", "!!python/object/apply:os.system [id]"),
        "tools.yaml: line 1: tags",
    ),
    "a day that is none": (write("tools.yaml", "tools: 2020-99-99"), "tools.yaml: not YAML: month must be"),
    "a truth that is none": (write("intents.yaml", "intents: !!bool maybe"), "intents.yaml: line 1: tags"),
    "YAML without end": (write("tools.yaml", "tools: " + "[" * 3000), "tools.yaml: is nested too deeply"),
    "YAML within itself": (write("tools.yaml", "tools: &t [*t]"), "tools.yaml: line 1: a value that holds itself"),
    "YAML that counts in sixties": (write("tools.yaml", "tools: 1" + ":59" * 9999), "tools.yaml: line 1: a number"),
    "YAML with merge keys": (write("tools.yaml", "a: &a {b: 1}\ntools: {<<: *a}"), "merge keys"),
    "a table too wide": (
        write("schema.sql", f"create table t (k integer primary key, {', '.join(f'c{n}' for n in range(300))})"),
        "schema.sql: too many columns",
    ),
    "a statement too long": (
        write("schema.sql", f"create table t (k integer primary key {' ' * 30_000})"),
        "schema.sql: ",
    ),
    "an expression too deep": (
        write("schema.sql", f"create table t (k integer primary key, a check ({'-' * 99}a))"),
        "schema.sql: ",
    ),
    "no tools": (write("tools.yaml", "tools: []"), "tools.yaml: tools"),
    "an unknown key": (replace("tools.yaml", "description:", "desc:"), "tools.yaml: tools.0"),
    "a tool twice": (replace("tools.yaml", "name: get_reader", "name: get_book"), "two tools have one name"),
    "a bad tool name": (replace("tools.yaml", "name: get_reader", "name: rm -rf"), "tools.yaml: tools.1.name"),
    "an unused parameter": (
        replace("tools.yaml", "reader: {type: string}", "reader: {type: string}\n      x: {type: string}"),
        "parameter x is used by no statement",
    ),
    "a precondition that writes": (
        replace("tools.yaml", "select 1 from readers where reader = :reader", "update readers set fine = :reader"),
        "a precondition of get_reader writes",
    ),
    "an intent without tool": (replace("intents.yaml", "tool: get_reader", "tool: get_all"), "calls get_all"),
    "an intent without slot": (replace("intents.yaml", 'answer: "{fine}"', 'answer: "{sum}"'), "uses sum"),
    "an intent with wrong arguments": (
        replace("intents.yaml", "arguments: {reader:", "arguments: {rider:"),
        "wrong arg",
    ),
    "an intent about nothing": (
        replace("intents.yaml", "about: {reader: reader}", "about: {x: fine}"),
        "about none of",
    ),
    "one wording": (
        replace("intents.yaml", ', "what is the fine of {reader}?"', ""),
        "intents.yaml: intents.0.wordings",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_names_file_and_reason(folder: Path, case: str) -> None:
    change, message = BROKEN[case]
    change(folder)
    with pytest.raises(DataError, match=message) as caught:
        load_domain(folder)
    assert "\n" not in str(caught.value) and " — " in str(caught.value)


LONG = "printf('%.*c', {0}, 'a')"
COSTLY = {
    "search": "select count(instr({0} || a.book, {1} || b.book)) from books a, books b, books c, books d, books e",
    "trim": "select count(trim({0} || a.book, a.book || replace({2}, 'a', 'b') || 'a')) from books a, books b, books c",
    "replace": "select count(replace({0}, {1} || 'b', a.book)) from books a, books b, books c, books d, books e",
}


@pytest.mark.parametrize("statement", COSTLY.values(), ids=COSTLY)
def test_functions_that_compare_long_texts_end_with_their_statement(
    folder: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of the database may be one function, whatever that takes."""
    monkeypatch.setattr(guard, "MAX_SECONDS", 0.5)
    sql = statement.format(*(LONG.format(part) for part in (19_900, 9_900, 1_400)))
    file, tool = folder / "tools.yaml", "name: extra, description: one more, parameters: {}"
    file.write_text(f"{file.read_text()}  - {{{tool}, statements: [{json.dumps(sql)}]}}\n")
    session, began = load_domain(folder).open(), time.thread_time()
    with pytest.raises(ToolError, match="interrupted"):
        session.call("extra", {})
    assert time.thread_time() - began < 0.5 + 3 * MAX_SECONDS


BOOKS = ", ".join(f"books {name}" for name in "abcdefgh")
ROW = "||".join(f"{name}.rowid" for name in "abcdefgh")
GATHERS = [
    "select {n} from {books} order by {text}",
    "select count(*) from {books} group by {text}",
    "select count(distinct {text}) from {books}",
    "select count(*) from (select {text} as t from {books} union select 'a')",
    "select count(*) from (select {text} as t from {books} except select 'a')",
    "select count(*) from books where title in (select {text} from {books})",
    "select max(t) from (select max({text}) over (order by {text}) as t from {books})",
    "select max(t) from (select group_concat({text}) as t from {books} group by {text})",
    "insert into readers select {text}, '', 0 from {books}",
    "update readers set fine = 1 where reader in (select {text} from {books} order by {text})",
]


def gathering(count: int) -> list[str]:
    """Statements that sort, group, compare and gather long texts."""
    rng = random.Random(0)
    made = []
    for number in range(count):
        size = rng.choice([1, 100, 900, 5_000, 19_000])
        text = rng.choice([f"printf('%.{size}c','x')||{ROW}", f"{ROW}||printf('%.{size}c','y')", f"upper({ROW})"])
        form = GATHERS[number % len(GATHERS)]
        made.append(form.format(n=number, books=BOOKS, text=text))
    return made


PEAK = """
import resource, sys
from pathlib import Path
from orchestra.domains.engine import load_domain
from orchestra.errors import CallError, ToolError

session = load_domain(Path(sys.argv[1])).open()
refused = 0
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(int(sys.argv[2])):
    try:
        session.call(f"extra{number}", {})
    except (CallError, ToolError) as error:
        refused += "MB of memory is not allowed" in str(error)
        assert len(str(error).splitlines()) == 1
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown * 1024, refused)
"""


def test_no_statement_takes_more_than_its_bound_of_memory(folder: Path) -> None:
    """In a process of its own, whose peak the kernel tells."""
    statements = gathering(40)
    extra = [
        f"  - {{name: extra{n}, description: one more, parameters: {{}}, statements: [{json.dumps(one)}]}}\n"
        for n, one in enumerate(statements)
    ]
    file = folder / "tools.yaml"
    file.write_text(file.read_text() + "".join(extra))
    command = [sys.executable, "-c", PEAK, str(folder), str(len(statements))]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    grown, refused = map(int, told.stdout.split())
    assert grown < 3 * MAX_MEMORY_BYTES and refused > len(statements) // 3


def test_after_a_refusal_the_session_goes_on_and_nothing_has_changed(folder: Path) -> None:
    file = folder / "tools.yaml"
    statement = json.dumps(gathering(10)[8].replace("'%.1c'", "'%.9000c'"))
    file.write_text(
        file.read_text() + f"  - {{name: extra, description: one more, parameters: {{}}, statements: [{statement}]}}\n"
    )
    session = load_domain(folder).open()
    before = session.contents()
    for _ in range(3):
        with pytest.raises((ToolError, CallError)):
            session.call("extra", {})
        assert session.contents() == before
