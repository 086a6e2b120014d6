"""A loaded domain, and one episode's own copy of it: the tools run here."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from orchestra.domains.entries import Table
from orchestra.domains.guard import LOG, ROOM_PAGES, Guard
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

    def open(self) -> "Session":
        """An episode's own copy, in memory."""
        return Session(self)


class Session:
    """One copy of a domain's database, and what was done to it. Not for use by two threads at once."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._guard = Guard(domain.tables)
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.deserialize(domain.image)
        # recursive_triggers makes `replace` report the rows that it deletes; temp_store keeps sorting off the disk.
        for setting in ("foreign_keys = on", "recursive_triggers = on", "temp_store = memory", "trusted_schema = off"):
            self._db.execute(f"pragma {setting}")
        pages = self._db.execute("pragma page_count").fetchone()[0]
        self._db.execute(f"pragma max_page_count = {pages + ROOM_PAGES}")
        self._guard.install(self._db)

    def call(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        """Run one tool in a transaction; its result as `status: shipped, total: 41`, rows parted by `; `.

        Raises `CallError` (arguments, precondition, a rule of the schema, too many rows) or `ToolError` (the tool's own
        SQL failed or ran too long). Either way nothing has changed.
        """
        found = self.domain.tools.get(tool)
        if found is None:
            raise CallError(f"there is no tool {tool[:64]}; there are {', '.join(self.domain.tools)}")
        values = found.bind(arguments)
        self._guard.reset()
        try:
            self._transaction("begin")
            text = self._run(found, values)
            self._transaction("commit")
        except sqlite3.IntegrityError as error:
            raise CallError(f"refused: {error}") from None
        except sqlite3.Error as error:
            what = f"{self._guard.refused} is not allowed" if self._guard.refused else str(error)
            raise ToolError(what, where=f"domain {self.domain.name}, tool {tool}", fix="mend its SQL") from None
        finally:
            if self._db.in_transaction:
                self._transaction("rollback")
        return text

    def compiles(self, statement: str, parameters: Iterable[str]) -> set[tuple[str, str]]:
        """What the statement can write: (table, insert | update | delete).

        Raises `DataError` (what, no where) when it does not compile or may not.
        """
        self._guard.reset()
        try:
            self._db.execute(f"explain {statement}", dict.fromkeys(parameters))
        except (sqlite3.Error, sqlite3.Warning) as error:
            what = f"{self._guard.refused} is not allowed" if self._guard.refused else str(error)
            raise DataError(what) from None
        return set(self._guard.writes)

    def select(self, query: str, limit: int) -> tuple[tuple[str, ...], list[Row]]:
        """Columns and rows of a query of the domain's own that is known to only read; raises `DataError`."""
        self._guard.reset(max_steps=MAX_QUERY_STEPS)
        try:
            cursor = self._db.execute(query)
            rows = cursor.fetchmany(limit)
        except sqlite3.Error as error:
            raise DataError(str(error)) from None
        return tuple(column[0] for column in cursor.description), rows

    def contents(self) -> dict[str, tuple[Row, ...]]:
        """Every row of every table, in the order of its primary key."""
        with self._guard.trust():
            return {t.name: tuple(self._db.execute(t.select + t.order)) for t in self.domain.tables.values()}

    @property
    def touched(self) -> frozenset[tuple[str, str]]:
        """Rows written by the calls that succeeded, as (table, `"order_id" is 1234`). Reads are not recorded."""
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

    def _transaction(self, statement: str) -> None:
        with self._guard.trust():
            self._db.execute(statement)

    def _run(self, tool: DomainTool, values: dict[str, Scalar]) -> str:
        for condition in tool.file.preconditions:
            if self._db.execute(condition.query, values).fetchone() is None:
                message = condition.otherwise
                for name, value in values.items():
                    message = message.replace(f"{{{name}}}", short(value))
                raise CallError(message)
        text = "done" if tool.writes else "none"
        for statement in tool.file.statements:
            cursor = self._db.execute(statement, values)
            rows = cursor.fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                raise CallError(f"more than {MAX_ROWS} rows; ask for less")
            if cursor.description is not None:
                columns = [column[0] for column in cursor.description]
                text = "; ".join(_line(columns, row) for row in rows) or "none"
        if len(text) > MAX_CHARACTERS:
            raise CallError(f"the result has more than {MAX_CHARACTERS} characters; ask for less")
        return text


def _line(columns: list[str], row: Row) -> str:
    return ", ".join(f"{column}: {short(value)}" for column, value in zip(columns, row, strict=True))


def short(value: Scalar) -> str:
    """A value as a person writes it: no more than two decimals, no quotes, on one line."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return " ".join(str(value).split())
