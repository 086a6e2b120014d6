"""Limits of a domain's SQL: it may read and write its own tables, with pure functions, within bounds."""

import ctypes
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache

LOG = "_touched"
"""Table of the engine's own that records which rows were written; no domain SQL can name it."""
TRIGGER = "_touch_"
"""Prefix of the engine's own triggers."""

_NAMES = """
    abs avg cast ceil ceiling coalesce count dense_rank first_value floor format glob group_concat hex ifnull iif
    instr lag last_value lead length like lower ltrim max min mod nullif printf quote rank replace round row_number
    rtrim sign string_agg substr substring sum total trim typeof unicode upper
"""
FUNCTIONS = frozenset(_NAMES.split())
"""Everything a statement may call. The clock, randomness, files and extensions are not among them."""

MAX_STEPS = 3_000_000
"""SQLite virtual-machine steps of one tool call, about 50 ms. Steps, not seconds, so that a call that passes on one
machine passes on every other."""
MAX_FILL_STEPS = 300_000_000
"""Steps of making a domain's tables and putting all its entries in, some seconds."""
STEPS_PER_CHECK = 500
MAX_SECONDS = 5.0
"""Of processor time, for what steps do not count: one function may compare long texts in one step. A hundred times what
the steps of a tool take."""
MAX_VALUE_BYTES = 20_000
MAX_MEMORY_BYTES = 64_000_000
"""By which one statement may grow what SQLite holds: steps sort and gather rows of `MAX_VALUE_BYTES` each, gigabytes in
all. An honest statement takes a hundredth. SQLite counts for the whole process, and doubles what it has to grow."""
ROOM_PAGES = 256
"""Pages of 4 KB by which one episode may grow its database."""

_ROW_ACTIONS = {
    sqlite3.SQLITE_INSERT: "insert",
    sqlite3.SQLITE_UPDATE: "update",
    sqlite3.SQLITE_DELETE: "delete",
}


LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 250,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
"""SQLite's own limits, for every connection that runs a domain's SQL."""


@cache
def memory_used() -> Callable[[], int]:
    """SQLite's own count of the bytes that it holds in this process, which Python's module does not pass on.

    Where that cannot be called, SQLite keeps the process below eight times the bound: `hard_heap_limit`, which cannot
    be raised again, so it is set nowhere else.
    """
    import _sqlite3

    try:
        found = ctypes.PyDLL(getattr(_sqlite3, "__file__", None)).sqlite3_memory_used
    except (OSError, AttributeError):
        sqlite3.connect(":memory:").execute(f"pragma hard_heap_limit = {8 * MAX_MEMORY_BYTES}").close()
        return lambda: 0
    found.restype = ctypes.c_int64
    found.argtypes = ()
    return found


def limit(db: sqlite3.Connection) -> None:
    """Put `LIMITS` on a connection."""
    for category, most in LIMITS.items():
        db.setlimit(category, most)


def unbound(db: sqlite3.Connection) -> None:
    """Give a connection back to the engine, whose `vacuum` attaches a database."""
    db.set_progress_handler(None, 0)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)


class Guard:
    """An SQLite authorizer and progress handler; what it refuses it also names in `refused`."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = frozenset(tables)
        self.trusted = False
        """True while the engine's own statements run."""
        self.writes: set[tuple[str, str]] = set()
        """(table, insert | update | delete) that a statement prepared since `reset` can do."""
        self.reads: set[tuple[str, str]] = set()
        """(table, column) that it reads; an empty column where it only counts rows."""
        self._used = memory_used()
        self.reset()

    def install(self, db: sqlite3.Connection) -> None:
        limit(db)
        db.set_authorizer(self.authorize)
        db.set_progress_handler(self._progress, STEPS_PER_CHECK)

    def reset(self, max_steps: int = MAX_STEPS) -> None:
        """Before each call."""
        self._steps, self._max_steps, self.refused = 0, max_steps, ""
        self._began, self._held = time.thread_time(), self._used()
        self.writes.clear()
        self.reads.clear()

    @contextmanager
    def trust(self) -> Iterator[None]:
        """For the engine's own statements."""
        self.trusted = True
        try:
            yield
        finally:
            self.trusted = False

    def authorize(self, action: int, first: str | None, second: str | None, db: str | None, trigger: str | None) -> int:
        """SQLite's callback. `first` and `second` mean what the action says; `db` is main, temp or an attached name."""
        if self.trusted or self._allowed(action, first, second, db, trigger):
            return sqlite3.SQLITE_OK
        self.refused = self.refused or _describe(action, first, second)
        return sqlite3.SQLITE_DENY

    def _allowed(self, action: int, first: str | None, second: str | None, db: str | None, trigger: str | None) -> bool:
        if action == sqlite3.SQLITE_SELECT:
            return True
        if action == sqlite3.SQLITE_FUNCTION:
            return second in FUNCTIONS
        if db not in ("main", None):
            return False
        if first == LOG:
            return action == sqlite3.SQLITE_INSERT and trigger is not None and trigger.startswith(TRIGGER)
        if action in _ROW_ACTIONS and first in self.tables:
            self.writes.add((str(first), _ROW_ACTIONS[action]))
            return True
        if action == sqlite3.SQLITE_READ and first in self.tables:
            self.reads.add((str(first), str(second)))
            return True
        return False

    def _progress(self) -> int:
        self._steps += STEPS_PER_CHECK
        if self.trusted:
            return 0
        if self._used() - self._held > MAX_MEMORY_BYTES:
            self.refused = f"more than {MAX_MEMORY_BYTES // 10**6} MB of memory"
            return 1
        return int(self._steps > self._max_steps or time.thread_time() - self._began > MAX_SECONDS)


class SchemaGuard:
    """The authorizer of schema.sql: tables and their indexes, nothing else; and the bounds of filling them."""

    def __init__(self) -> None:
        self.refused = ""
        self._steps = 0

    def install(self, db: sqlite3.Connection, *, max_bytes: int) -> None:
        """For the connection's life: the schema's own expressions run at every row that is put in."""
        limit(db)
        db.execute(f"pragma max_page_count = {max_bytes // db.execute('pragma page_size').fetchone()[0]}")
        db.set_progress_handler(self._progress, STEPS_PER_CHECK)
        db.set_authorizer(self.authorize)

    def _progress(self) -> int:
        self._steps += STEPS_PER_CHECK
        return int(self._steps > MAX_FILL_STEPS)

    def authorize(self, action: int, first: str | None, second: str | None, db: str | None, trigger: str | None) -> int:
        """SQLite's callback."""
        del trigger
        master = first in ("sqlite_master", "sqlite_schema")
        allowed = db in ("main", None) and (
            action in (sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_REINDEX)
            or (action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_READ) and master)
            or (action == sqlite3.SQLITE_READ and first is not None and not first.startswith(("sqlite_", "pragma_")))
            or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS)
        )
        if allowed:
            return sqlite3.SQLITE_OK
        self.refused = self.refused or _describe(action, first, second)
        return sqlite3.SQLITE_DENY


def _describe(action: int, first: str | None, second: str | None) -> str:
    name = second if action == sqlite3.SQLITE_FUNCTION else first
    return f"{_ACTIONS.get(action, f'action {action}')} {name or ''}".strip()


_ACTIONS = {
    sqlite3.SQLITE_ATTACH: "attaching",
    sqlite3.SQLITE_DETACH: "detaching",
    sqlite3.SQLITE_PRAGMA: "pragma",
    sqlite3.SQLITE_FUNCTION: "the function",
    sqlite3.SQLITE_READ: "reading",
    sqlite3.SQLITE_INSERT: "inserting into",
    sqlite3.SQLITE_UPDATE: "updating",
    sqlite3.SQLITE_DELETE: "deleting from",
    sqlite3.SQLITE_TRANSACTION: "the transaction statement",
    sqlite3.SQLITE_SAVEPOINT: "the savepoint",
    sqlite3.SQLITE_CREATE_TRIGGER: "creating the trigger",
    sqlite3.SQLITE_CREATE_VIEW: "creating the view",
    sqlite3.SQLITE_CREATE_VTABLE: "creating the virtual table",
    sqlite3.SQLITE_CREATE_TABLE: "creating the table",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "creating the temporary table",
    sqlite3.SQLITE_DROP_TABLE: "dropping the table",
    sqlite3.SQLITE_ALTER_TABLE: "altering the table",
    sqlite3.SQLITE_RECURSIVE: "recursion",
    sqlite3.SQLITE_ANALYZE: "analyzing",
}
