"""Which rows a result is made of, whatever the shape of the statement."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from orchestra.domains.engine import DomainTool, Session, load_domain
from orchestra.domains.reads import MAX_READ_ROWS
from orchestra.domains.spec import ToolFile

MOCK = load_domain(Path(__file__).parents[3] / "data" / "domains" / "mock")


def called(statement: str, **arguments: JsonValue) -> tuple[str, Session]:
    """The result of a tool that consists of this statement, and the session after it."""
    parameters = {name: {"type": "integer" if isinstance(v, int) else "string"} for name, v in arguments.items()}
    file = ToolFile.model_validate(
        {"name": "extra", "description": "one more", "parameters": parameters, "statements": [statement]}
    )
    tool = DomainTool(file, frozenset(), (MOCK.open().traced(statement, parameters),))
    session = replace(MOCK, tools={"extra": tool}).open()
    return session.call("extra", arguments), session


def rows(session: Session) -> dict[str, list[object]]:
    """Table → the keys of its rows that were read."""
    found: dict[str, list[object]] = {}
    for table, key in session.seen:
        found.setdefault(table, []).append(key[0][1] if len(key) == 1 else key)
    return {table: sorted(keys, key=str) for table, keys in sorted(found.items())}


ONE = "title: Amber"
BOOK: dict[str, list[object]] = {"books": [11]}
MANY = "select count(*) as n from books a, books b, books c, books d where :book = 11"
SHAPES: list[tuple[str, str, dict[str, list[object]]]] = [
    ("title from books where book = 11", ONE, BOOK),
    ("b.title from books as b where b.book = 11", ONE, BOOK),
    ("title -- from readers\nfrom \"books\" b where title = ' from x'' (' or book = 11", ONE, BOOK),
    ("title from books join readers using (reader) where book = 11", ONE, {**BOOK, "readers": ["Ovel"]}),
    ("title from readers r, books b where b.reader = r.reader and book = 11", ONE, {**BOOK, "readers": ["Ovel"]}),
    (
        "title, city from books left join readers using (reader) where book = 12",
        "title: Basil, city: none",
        {"books": [12]},
    ),
    ("max(0, due) as due from books where book = 11", "due: 52", BOOK),
    ("max(due) as due from books where reader = 'Brin'", "due: 33", {"books": [13]}),
    ("-fine as book from readers order by book limit 1", "book: -12", {"readers": ["Juno"]}),
    (
        "city, count(*) as n from readers where fine = 12 group by city order by n",
        "city: Sorl, n: 1",
        {"readers": ["Juno"]},
    ),
    ("(select count(*) from books) as n from readers where reader = 'Brin'", "n: 8", {"readers": ["Brin"]}),
]


@pytest.mark.parametrize(("statement", "result", "read"), SHAPES)
def test_the_rows_of_a_result_are_told(statement: str, result: str, read: dict[str, list[object]]) -> None:
    text, session = called(f"select {statement}")
    assert (text, rows(session)) == (result, read)


def test_the_columns_are_those_that_it_looks_at() -> None:
    _, session = called("select title from books where book = 11 and reader is not null order by due")
    assert session.seen == {("books", (("book", 11),)): {"title", "book", "reader", "due"}}


@pytest.mark.parametrize(
    "statement",
    [
        "select distinct title from books where book = :book",
        "select title from books where book = :book union select city from readers where fine > 99",
        "with b as (select * from books) select title from b where book = :book",
        "select title from (select * from books) where book = :book",
        "update books set copies = 2 where book = :book returning title",
        MANY,
        "select title from books where book = -:book",
    ],
)
def test_where_they_cannot_be_told_the_arguments_stand_for_them(statement: str) -> None:
    _, session = called(statement, book=11)
    assert ("books", (("book", 11),)) in session.seen


def test_many_is_what_it_says() -> None:
    assert int(called(MANY, book=11)[0].removeprefix("n: ")) > MAX_READ_ROWS
