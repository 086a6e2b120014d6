"""Which rows a result is made of: a tool's select statement, made to give their primary keys too.

`select total from orders where order_id = :order` becomes
`select total, orders."order_id" from orders where order_id = :order`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestra.domains.entries import Table, quoted
from orchestra.domains.spec import Scalar

Place = tuple[str, tuple[tuple[str, Scalar], ...]]
"""A row that was read: its table and its key, such as ("orders", (("order_id", 1234),))."""
MAX_READ_ROWS = 200
"""A result made of more rows than this is a statistic; its rows are not told apart."""

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|[\w:.]+|\S", re.DOTALL)
_COMPOUND = {"distinct", "union", "intersect", "except"}
_AFTER_WHERE = ("group", "having", "order", "limit")
_NO_ALIAS = {
    "on",
    "using",
    "join",
    "left",
    "right",
    "full",
    "inner",
    "outer",
    "cross",
    "natural",
    "indexed",
    "not",
    ",",
}


@dataclass(frozen=True)
class SourceTable:
    """A table that a statement reads."""

    table: str
    key: tuple[str, ...]
    columns: frozenset[str]
    """Those that the statement reads, whether to find rows or to show them."""


@dataclass(frozen=True)
class Statement:
    """A statement of a tool, as it is run, and how to know the rows that its result is made of."""

    text: str
    sources: tuple[SourceTable, ...]
    """The tables of its FROM, without those of subqueries; all that it reads where their rows cannot be told."""
    keys: int = 0
    """How many columns at the end are the sources' keys in turn, and no part of the result."""
    beside: str | None = None
    """The query that gives the keys instead, where one row of the result is made of many."""

    def seen(
        self, keys: Sequence[Sequence[Scalar]], values: Mapping[str, Scalar]
    ) -> Iterator[tuple[Place, SourceTable]]:
        """The rows with these keys (null where an outer join found none). The call's arguments, `values`, stand for
        rows that cannot be told: there are none, too many, or the statement is no plain select."""
        if not 0 < len(keys) <= MAX_READ_ROWS:
            asked = tuple(sorted(values.items()))
            yield from (((source.table, asked), source) for source in self.sources)
            return
        for row in keys:
            rest = iter(row)
            for source in self.sources:
                key = tuple(zip(source.key, rest))  # noqa: B905 - takes only as many as the key has columns
                if key[0][1] is not None:
                    yield (source.table, key), source


@dataclass(frozen=True)
class Select:
    """A plain select statement from tables, and where its clauses begin."""

    text: str
    source: int
    """Of `from`."""
    where: int
    """Of `where`; without one, of what follows the tables."""
    rest: int
    """Of `group`, `having`, `order` or `limit`; the length of the text without any."""
    grouped: bool
    tables: tuple[tuple[str, str], ...]
    """Each table of FROM and the name it goes by there; those of subqueries are not among them."""

    @classmethod
    def parse(cls, statement: str, tables: Collection[str]) -> "Select | None":
        """None for any other statement: a compound, one with `distinct` or `with`, or one that reads no table."""
        words = _words(statement)
        found = {word: at for word, at in reversed(words)}  # the first of each
        if not words or words[0][0] != "select" or "from" not in found or _COMPOUND & found.keys():
            return None
        rest = min((found[word] for word in _AFTER_WHERE if word in found), default=len(statement))
        where = found.get("where", rest)
        sources = tuple(_sources([word for word, at in words if found["from"] <= at < where], tables))
        grouped = "group" in found or "having" in found
        return cls(statement, found["from"], where, rest, grouped, sources) if sources else None

    @property
    def probe(self) -> str:
        """A query that gives a row only if the statement makes one of many (`count`, `avg`), even of none."""
        return f"{self.text[: self.where]} where 0"

    def traced(self, tables: Mapping[str, Table], columns: Collection[tuple[str, str]], aggregates: bool) -> Statement:
        """`columns`: the (table, column) pairs that it reads. `aggregates`: whether `probe` gives a row."""
        keys = [f"{alias}.{quoted(column)}" for name, alias in self.tables for column in tables[name].key]
        sources = tuple(source_of(tables[name], columns) for name, _ in self.tables)
        if aggregates or self.grouped:
            beside = f"select {', '.join(keys)} {self.text[self.source : self.rest]}"
            return Statement(self.text, sources, beside=beside)
        text = f"{self.text[: self.source]}, {', '.join(keys)} {self.text[self.source :]}"
        return Statement(text, sources, keys=len(keys))


def source_of(table: Table, columns: Collection[tuple[str, str]]) -> SourceTable:
    """The columns of one table; the column "" (of a statement that only counts rows) is none."""
    return SourceTable(
        table.name, table.key, frozenset(column for name, column in columns if name == table.name and column)
    )


def _words(statement: str) -> list[tuple[str, int]]:
    """The lower-case words outside of parentheses, and where they begin."""
    words, depth = [], 0
    for token in _TOKEN.finditer(statement):
        text = token.group().casefold()
        depth += (text == "(") - (text == ")")
        if depth == 0 and not text.startswith(("--", "/*")):
            words.append((text, token.start()))
    return words


def _sources(words: list[str], tables: Collection[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        if word.strip('"') in tables and words[at - 1] in ("from", "join", ","):
            name = next((after for after in words[at + 1 : at + 3] if after != "as"), ",")
            yield word.strip('"'), word if name in _NO_ALIAS else name
