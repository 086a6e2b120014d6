"""Answers kept by their Idempotency-Key: what was answered is not done or paid for again; what failed is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from sqlite3 import Connection

from orchestra.serving.shared.database import LEASE_S, Database, delete_old
from orchestra.serving.wire.errors import ApiError, bad_request

KEEP_S = 24 * 3600.0
RUNNING_S = LEASE_S
"""Seconds after which a request that never ended may be begun again: its gateway was killed."""
MAX_NAME = 200


class Answers:
    """By owner and name."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: set[tuple[str, str]] = set()

    def begin(self, owner: str, name: str, body: bytes) -> bytes | None:
        """The answer that was given; None: this request is the first of its name and must `finish` or `forget`.

        Raises `ApiError` 409 while the first one runs, and where the name was used for another request.
        """
        if not 0 < len(name) <= MAX_NAME:
            raise bad_request(f"an Idempotency-Key has 1 to {MAX_NAME} characters")
        digest, now = hashlib.sha256(body).hexdigest(), time.time()
        with self._database.change() as store:
            if (owner, name) in self._running:
                # It runs here, though the clock may have jumped or the machine slept since it was last stated.
                _state(store, [(owner, name)])
            delete_old(store, "answers", "owner, name", now - KEEP_S)
            expired = "DELETE FROM answers WHERE owner = ? AND name = ? AND (made < ? OR body IS NULL AND made < ?)"
            store.execute(expired, (owner, name, now - KEEP_S, now - RUNNING_S))
            row = store.execute(
                "SELECT digest, body FROM answers WHERE owner = ? AND name = ?", (owner, name)
            ).fetchone()
            if row is None:
                store.execute("INSERT INTO answers VALUES (?, ?, ?, NULL, ?)", (owner, name, digest, now))
                self._running.add((owner, name))
                return None
        if row[0] != digest:
            raise _conflict("this Idempotency-Key was used for another request", "idempotency_mismatch")
        if row[1] is None:
            raise _conflict("the first request with this Idempotency-Key still runs", "in_progress", 2)
        return bytes(row[1])

    def renew(self) -> None:
        """Keep the names of this process's requests under way."""
        if self._running:
            with self._database.change() as store:
                _state(store, tuple(self._running))

    def finish(self, owner: str, name: str, body: bytes) -> None:
        """Keep the answer."""
        self._running.discard((owner, name))
        with self._database.change() as store:
            store.execute("UPDATE answers SET body = ? WHERE owner = ? AND name = ?", (body, owner, name))

    def forget(self, owner: str, name: str) -> None:
        """It came to nothing: the next try is a first one."""
        self._running.discard((owner, name))
        with self._database.change() as store:
            store.execute("DELETE FROM answers WHERE owner = ? AND name = ? AND body IS NULL", (owner, name))


def _state(store: Connection, running: Iterable[tuple[str, str]]) -> None:
    """State that the requests of these owners and names run now."""
    rows = [(time.time(), *one) for one in running]
    store.executemany("UPDATE answers SET made = ? WHERE owner = ? AND name = ? AND body IS NULL", rows)


def _conflict(message: str, code: str, retry_after_s: float | None = None) -> ApiError:
    return ApiError(409, message, kind="invalid_request_error", code=code, retry_after_s=retry_after_s)
