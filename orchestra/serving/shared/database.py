"""The shared store: one private SQLite file, whose every change is one transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from orchestra.files.atomic import make_folder
from orchestra.serving.wire.errors import StoreError
from orchestra.system.storage import GATEWAY, check_restored, database_failure

STORE = GATEWAY
WAIT_S = 5.0
"""Seconds that a change waits for another gateway's."""
OLD_AT_ONCE = 100
"""Old rows that one change deletes, while other gateways wait; far more than it adds."""
LEASE_S = 60.0
"""Seconds for which a gateway states what it works on (see `leases`); one that was killed does not go on."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, digest TEXT NOT NULL, ids BLOB NOT NULL, made REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_made ON calls (made);
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, created REAL NOT NULL, revoked REAL,
    per_minute INTEGER, budget_usd TEXT, period TEXT NOT NULL,
    spent_usd TEXT NOT NULL, spent_in TEXT NOT NULL,
    requests INTEGER NOT NULL, tokens REAL NOT NULL, filled REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (id INTEGER PRIMARY KEY, key TEXT NOT NULL, usd TEXT NOT NULL, until REAL NOT NULL);
CREATE INDEX IF NOT EXISTS holds_key ON holds (key);
CREATE TABLE IF NOT EXISTS answers (
    owner TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, body BLOB, made REAL NOT NULL,
    PRIMARY KEY (owner, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_made ON answers (made);
CREATE TABLE IF NOT EXISTS samples (
    trial TEXT NOT NULL, arm TEXT NOT NULL, failed INTEGER NOT NULL, seconds REAL NOT NULL, usd REAL NOT NULL,
    solved INTEGER, made REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS samples_trial ON samples (trial);
CREATE TABLE IF NOT EXISTS findings (
    trial TEXT PRIMARY KEY, verdict TEXT NOT NULL, why TEXT NOT NULL, made REAL NOT NULL
) WITHOUT ROWID;
"""


class Database:
    """A connection that threads may share, one at a time."""

    def __init__(self, file: Path) -> None:
        """Raises `OrchestraError` when the file cannot be used."""
        check_restored(file.parent.parent, str(file))  # A new one in its place would have no keys.
        make_folder(file.parent)
        with contextlib.suppress(FileExistsError):
            # Private from its first byte: it holds conversations.
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self.held: set[int | None] = set()
        """Rows of `holds` of this process's calls under way."""
        self._lock, self._file = threading.Lock(), file
        try:
            self._connection = sqlite3.connect(file, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
            # A change is safe once it is in the log; the log is flushed at its checkpoints.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise database_failure(error, str(file)) from None

    @contextlib.contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other gateway's comes between; undone when the block raises. Raises `StoreError`."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has undone it already; one that cannot be committed would be in every later one's way.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """The connection, to read from. Raises `StoreError`."""
        with self._lock, self._told():
            yield self._connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises SQLite's errors as `StoreError`."""
        try:
            yield
        except sqlite3.Error as error:
            found = database_failure(error, str(self._file))
            raise StoreError(found.what, where=found.where, fix=found.fix) from None

    def close(self) -> None:
        self._connection.close()


def delete_old(store: sqlite3.Connection, table: str, key: str, before: float) -> None:
    """Delete the oldest rows made before that time, `OLD_AT_ONCE` at most; the table has an index on `made`."""
    oldest = f"SELECT {key} FROM {table} WHERE made < ? ORDER BY made LIMIT {OLD_AT_ONCE}"
    store.execute(f"DELETE FROM {table} WHERE ({key}) IN ({oldest})", (before,))
