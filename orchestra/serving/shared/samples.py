"""What the requests of a trial gave, and the verdict on it: in the shared store, so that every gateway counts alike."""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Literal

from orchestra.serving.shared.database import Database
from orchestra.statistics.sequential import ArmSamples
from orchestra.types import Record

Arm = Literal["champion", "candidate"]
ARMS: tuple[Arm, Arm] = ("champion", "candidate")
Verdict = Literal["worse", "passed", "ended"]
"""ended: nobody waits for it any more, and nothing was found."""
KEEP_S = 30 * 24 * 3600.0
"""Seconds that the samples and the verdict of a trial are kept after its end."""
OLD_AT_ONCE = 10_000
"""Old samples that a verdict deletes at most."""


class Finding(Record):
    """The verdict on a trial."""

    verdict: Verdict
    why: str


class Sample(Record):
    """One request of a trial."""

    arm: Arm
    failed: bool
    seconds: float
    usd: float
    solved: bool | None = None
    """None: not judged."""


class TrialSamples:
    """Those of one trial."""

    def __init__(self, database: Database, trial: str) -> None:
        self._database, self._trial = database, trial
        self._arms: dict[Arm, ArmSamples] = {arm: ArmSamples() for arm in ARMS}
        self._read, self._reading = 0, threading.Lock()

    def add(self, sample: Sample) -> None:
        row = (self._trial, sample.arm, sample.failed, sample.seconds, sample.usd, sample.solved, time.time())
        with self._database.change() as store:
            store.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def arms(self) -> dict[Arm, ArmSamples]:
        """By arm: those known, and those that came since the last time, of every gateway."""
        query = (
            "SELECT rowid, arm, failed, seconds, usd, solved FROM samples WHERE trial = ? AND rowid > ? ORDER BY rowid"
        )
        with self._reading:
            with self._database.look() as store:
                rows = store.execute(query, (self._trial, self._read)).fetchall()
            for self._read, arm, failed, seconds, usd, solved in rows:
                self._arms[arm].add(bool(failed), seconds, usd, None if solved is None else bool(solved))
            return self._arms

    def find(self, finding: Finding) -> Finding:
        """Keep the verdict; the one that is kept, since the first one holds."""
        with self._database.change() as store:
            row = (self._trial, finding.verdict, finding.why, time.time())
            store.execute("INSERT OR IGNORE INTO findings VALUES (?, ?, ?, ?)", row)
            self._delete_old(store)
        found = self.found()
        assert found is not None
        return found

    def _delete_old(self, store: sqlite3.Connection) -> None:
        """Samples and verdicts of trials that ended long ago."""
        ended = "SELECT trial FROM findings WHERE made < ? AND trial != ?"
        some = f"SELECT rowid FROM samples WHERE trial IN ({ended}) LIMIT {OLD_AT_ONCE}"
        empty = f"trial IN ({ended}) AND trial NOT IN (SELECT trial FROM samples)"
        before = (time.time() - KEEP_S, self._trial)
        store.execute(f"DELETE FROM samples WHERE rowid IN ({some})", before)
        store.execute(f"DELETE FROM findings WHERE {empty}", before)

    def found(self) -> Finding | None:
        """The verdict; None while there is none."""
        with self._database.look() as store:
            row = store.execute("SELECT verdict, why FROM findings WHERE trial = ?", (self._trial,)).fetchone()
        return None if row is None else Finding(verdict=row[0], why=row[1])
