"""Samples and verdicts of trials, in the store that gateways share."""

import time
from pathlib import Path

from orchestra.serving.shared.database import Database
from orchestra.serving.shared.samples import KEEP_S, Finding, Sample, TrialSamples

FOUND = Finding(verdict="passed", why="x")


def trial(database: Database, name: str, made: float) -> TrialSamples:
    """One with three samples and a verdict of that time."""
    samples = TrialSamples(database, name)
    for _ in range(3):
        samples.add(Sample(arm="champion", failed=False, seconds=1.0, usd=0.0))
    samples.find(FOUND)
    with database.change() as store:
        store.execute("UPDATE findings SET made = ? WHERE trial = ?", (made, name))
    return samples


def test_a_verdict_deletes_what_trials_left_that_ended_long_ago(tmp_path: Path) -> None:
    database, now = Database(tmp_path / "store.sqlite"), time.time()
    old, ended, present = trial(database, "old", now), trial(database, "ended", now), trial(database, "present", now)
    with database.change() as store:
        store.execute("UPDATE findings SET made = ? WHERE trial = 'old'", (now - KEEP_S - 1,))
    present.find(FOUND)
    assert old.found() is None and ended.found() == FOUND and present.found() == FOUND
    with database.look() as store:
        left = store.execute("SELECT trial, count(*) FROM samples GROUP BY trial ORDER BY trial").fetchall()
    assert left == [("ended", 3), ("present", 3)]


def test_an_old_trial_keeps_its_own_verdict(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite")
    one = trial(database, "one", time.time() - KEEP_S - 1)
    assert one.find(Finding(verdict="worse", why="y")) == FOUND
