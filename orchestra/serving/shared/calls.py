"""Conversations that wait for a caller's tool: the token ids up to the call, by its id, so that they go on exactly."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Sequence

from orchestra.serving.shared.database import Database, delete_old

KEEP_S = 24 * 3600.0
"""Seconds that a call is remembered. Afterwards its conversation is made from its messages."""


class Calls:
    """Remembered calls. The turns that ran inside before a call are in no message; here they are kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def remember(self, owner: str, digest: str, ids: Sequence[int]) -> str:
        """A new call's id. `owner` may go on with it, where `digest` (of what came before) is the same."""
        call_id = f"call_{secrets.token_hex(12)}"
        now = time.time()
        with self._database.change() as store:
            delete_old(store, "calls", "id", now - KEEP_S)
            row = (call_id, owner, digest, array("I", ids).tobytes(), now)
            store.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", row)
        return call_id

    def recall(self, owner: str, call_id: str, digest: str) -> list[int] | None:
        """The token ids up to and with the call: (time,). None for a call that is not known, another's, or one that
        other messages led to."""
        with self._database.look() as store:
            # The ids are read only where all is right: a history may name hundreds of calls that are not.
            wanted = "SELECT ids FROM calls WHERE id = ? AND owner = ? AND digest = ?"
            found = store.execute(wanted, (call_id, owner, digest)).fetchone()
        return None if found is None else array("I", found[0]).tolist()
