"""A loaded domain, and one episode's own copy of it: the tools run here."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from orchestra.domains.entries import Table
from orchestra.domains.guard import LOG, ROOM_PAGES, Guard
from orchestra.domains.reads import MAX_READ_ROWS, Place, Select, SourceTable, Statement, source_of
from orchestra.domains.spec import Intent, Scalar, ToolFile
from orchestra.errors import CallError, DataError, ToolError

MAX_ROWS = 20
"""Rows that one call may return."""
MAX_CHARACTERS = 2_000
"""Characters that one call may return."""
MAX_QUERY_STEPS = 50_000_000
"""Bound of an intent's query over the whole database, about a second."""
Row = tuple[Scalar, ...]


@dataclass(frozen=True)
class DomainTool:
    """A tool of a domain; what it may do is what its SQL does."""

    file: ToolFile
    changes: frozenset[tuple[str, str]]
    """What its statements can do, found by compiling them: (table, insert | update | delete)."""
    statements: tuple[Statement, ...]
    """Those of the file, as they are run."""

    @property
    def writes(self) -> bool:
        """Whether it can change a row."""
        return bool(self.changes)

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def description(self) -> str:
        return self.file.description

    @property
    def parameters(self) -> dict[str, JsonValue]:
        """JSON schema of the arguments object."""
        return self.file.schema_object

    def bind(self, arguments: dict[str, JsonValue]) -> dict[str, Scalar]:
        """Checked arguments, absent optional ones as None; raises `CallError` for the model."""
        takes = ", ".join(self.file.parameters) or "no arguments"
        for name in arguments:
            if name not in self.file.parameters:
                raise CallError(f"{self.name} has no argument {name[:40]}; it takes {takes}")
        values: dict[str, Scalar] = {}
        for name, parameter in self.file.parameters.items():
            if name in arguments:
                values[name] = parameter.check(name, arguments[name])
            elif name in self.file.optional:
                values[name] = None
            else:
                raise CallError(f"{self.name} needs {name}; it takes {takes}")
        return values


@dataclass(frozen=True, eq=False)
class Domain:
    """A loaded domain; immutable, shared by all episodes, equal only to itself."""

    name: str
    tools: dict[str, DomainTool]
    policy: str
    intents: tuple[Intent, ...]
    split_by: tuple[str, ...]
    """The kinds of entity whose hash decides between training and held-out."""
    tables: dict[str, Table]
    image: bytes
    """The database, serialised."""

    def open(self, *, rewinds: bool = False) -> "Session":
        """An episode's own copy, in memory. One that `rewinds` can serve several replays, one after another; a call of
        it that SQLite itself rolls back undoes those before it, so it is for replays, which end at a failure."""
        return Session(self, rewinds=rewinds)


class Session:
    """One copy of a domain's database, and what was done to it. Not for use by two threads at once."""

    def __init__(self, domain: Domain, *, rewinds: bool = False) -> None:
        self.domain = domain
        self.seen: dict[Place, set[str]] = {}
        """Rows that the results of calls that succeeded were made of, with the columns read to find and show them. A
        row that a call only checked or wrote is not among them: nothing of it was shown. Where the rows cannot be told
        (there are none, too many, or the statement is no plain select), the call's arguments stand for them."""
        self._guard = Guard(domain.tables)
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.deserialize(domain.image)
        # recursive_triggers makes `replace` report the rows that it deletes; temp_store keeps sorting off the disk.
        for setting in ("foreign_keys = on", "recursive_triggers = on", "temp_store = memory", "trusted_schema = off"):
            self._db.execute(f"pragma {setting}")
        pages = self._db.execute("pragma page_count").fetchone()[0]
        self._db.execute(f"pragma max_page_count = {pages + ROOM_PAGES}")
        # A check that is deferred to the commit would wait for the outer transaction's, which never comes.
        deferred = "select 1 from sqlite_schema where sql like '%deferr%'"
        self._rewinds = rewinds and self._db.execute(deferred).fetchone() is None
        if self._rewinds:
            self._db.execute("begin")
        self._guard.install(self._db)

    def rewind(self) -> bool:
        """Undo every call; False where it cannot be, and only another copy is new. Many times cheaper than opening one,
        since the statements stay compiled."""
        if self._rewinds:
            self._transaction("rollback", "begin")
            self.seen = {}
        return self._rewinds

    def call(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        """Run one tool in a transaction; its result as `status: shipped, total: 41`, rows parted by `; `.

        Raises `CallError` (arguments, precondition, a rule of the schema, too many rows) or `ToolError` (the tool's own
        SQL failed or ran too long). Either way nothing has changed (but see `Domain.open` of a copy that rewinds).
        """
        found = self.domain.tools.get(tool)
        if found is None:
            raise CallError(f"there is no tool {tool[:64]}; there are {', '.join(self.domain.tools)}")
        values = found.bind(arguments)
        self._guard.reset()
        try:
            with self._all_or_nothing():
                text, seen = self._run(found, values)
        except sqlite3.IntegrityError as error:
            raise CallError(f"refused: {error}") from None
        except (sqlite3.Error, MemoryError) as error:
            what = f"{self._guard.refused} is not allowed" if self._guard.refused else str(error) or "out of memory"
            raise ToolError(what, where=f"domain {self.domain.name}, tool {tool}", fix="fix its SQL") from None
        for place, source in seen:
            self.seen.setdefault(place, set()).update(source.columns)
        return text

    def compiles(self, statement: str, parameters: Iterable[str]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """What the statement can write, as (table, insert | update | delete), and read, as (table, column).

        Raises `DataError` (what, no where) when it does not compile or may not.
        """
        self._guard.install(self._db)  # a new authorizer: a statement compiled before is compiled again, and seen
        self._guard.reset()
        try:
            self._db.execute(f"explain {statement}", dict.fromkeys(parameters))
        except (sqlite3.Error, sqlite3.Warning) as error:
            what = f"{self._guard.refused} is not allowed" if self._guard.refused else str(error)
            raise DataError(what) from None
        return set(self._guard.writes), set(self._guard.reads)

    def traced(self, statement: str, parameters: Iterable[str]) -> Statement:
        """A statement that compiles, made to tell the rows of its result if it can be."""
        tables, names = self.domain.tables, tuple(parameters)
        _, columns = self.compiles(statement, names)
        select = Select.parse(statement, tables)
        if select is not None:
            try:
                aggregates = self._db.execute(select.probe, dict.fromkeys(names)).fetchone() is not None
                traced = select.traced(tables, columns, aggregates)
                self.compiles(traced.beside or traced.text, names)
                return traced
            except (DataError, sqlite3.Error):
                # Cut at a wrong place. The statement as it is works, for it compiled; it only tells less of its rows.
                pass
        return Statement(statement, tuple(source_of(tables[name], columns) for name in sorted({t for t, _ in columns})))

    def select(self, query: str, limit: int) -> tuple[tuple[str, ...], list[Row]]:
        """Columns and rows of a query of the domain's own that is known to only read; raises `DataError`."""
        self._guard.reset(max_steps=MAX_QUERY_STEPS)
        try:
            cursor = self._db.execute(query)
            rows = cursor.fetchmany(limit)
        except (sqlite3.Error, MemoryError) as error:
            raise DataError(str(error) or "out of memory") from None
        return tuple(column[0] for column in cursor.description), rows

    def contents(self) -> dict[str, tuple[Row, ...]]:
        """Every row of every table, in the order of its primary key."""
        with self._guard.trust():
            return {t.name: tuple(self._db.execute(t.select + t.order)) for t in self.domain.tables.values()}

    @property
    def touched(self) -> frozenset[tuple[str, str]]:
        """Rows written by the calls that succeeded, as (table, `"order_id" is 1234`); for those read, see `seen`."""
        with self._guard.trust():
            return frozenset(self._db.execute(f"select distinct table_name, condition from {LOG}"))

    def row(self, table: str, condition: str) -> dict[str, Scalar] | None:
        """The row that an entry of `touched` names, if it exists (now)."""
        found = self.domain.tables[table]
        with self._guard.trust():
            row = self._db.execute(f"{found.select} where {condition}").fetchone()
        return None if row is None else dict(zip(found.columns, row, strict=True))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            self._transaction("savepoint one")  # outside a transaction it begins one, which its release commits
            yield
            self._transaction("release one")
        except BaseException:
            if self._db.in_transaction:
                self._transaction("rollback to one", "release one")
            raise
        finally:
            # SQLite itself rolls all back where it was stopped or full, the calls before this one too.
            self._rewinds = self._rewinds and self._db.in_transaction

    def _transaction(self, *statements: str) -> None:
        with self._guard.trust():
            for statement in statements:
                self._db.execute(statement)

    def _run(self, tool: DomainTool, values: dict[str, Scalar]) -> tuple[str, list[tuple[Place, SourceTable]]]:
        """The result, and the rows that it is made of."""
        for condition in tool.file.preconditions:
            if self._db.execute(condition.query, values).fetchone() is None:
                message = condition.otherwise
                for name, value in values.items():
                    message = message.replace(f"{{{name}}}", short(value))
                raise CallError(message)
        text = "done" if tool.writes else "none"
        seen: list[tuple[Place, SourceTable]] = []
        for statement in tool.statements:
            cursor = self._db.execute(statement.text, values)
            rows = cursor.fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                cursor.close()  # A statement that still writes would keep the transaction from ending.
                raise CallError(f"more than {MAX_ROWS} rows; ask for less")
            if cursor.description is not None:
                columns = [column[0] for column in cursor.description]
                width = len(columns) - statement.keys
                text = "; ".join(_line(columns[:width], row[:width]) for row in rows) or "none"
                keys = [row[width:] for row in rows] if statement.keys else self._keys(statement.beside, values)
                seen = list(statement.seen(keys, values))
        if len(text) > MAX_CHARACTERS:
            raise CallError(f"the result has more than {MAX_CHARACTERS} characters; ask for less")
        return text, seen

    def _keys(self, query: str | None, values: dict[str, Scalar]) -> list[Row]:
        self._guard.reset()  # bounds of its own: a call that passes does not fail for being watched
        return [] if query is None else self._db.execute(query, values).fetchmany(MAX_READ_ROWS + 1)


def _line(columns: list[str], row: Row) -> str:
    return ", ".join(f"{column}: {short(value)}" for column, value in zip(columns, row, strict=True))


def short(value: Scalar) -> str:
    """A value as a person writes it: no more than two decimals, no quotes, on one line."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return " ".join(str(value).split())
