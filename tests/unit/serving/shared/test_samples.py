"""Samples and verdicts of trials, in the store that gateways share."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.serving.shared.database import Database
from orchestra.serving.shared.samples import ARMS, KEEP_S, Arm, Finding, Sample, TrialSamples
from orchestra.statistics.sequential import ArmSamples

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


SAMPLES = st.builds(
    Sample, arm=st.sampled_from(ARMS), failed=st.booleans(), seconds=st.floats(0.001, 100), usd=st.floats(0, 1),
    solved=st.sampled_from([None, True, False]),
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(st.tuples(SAMPLES, st.booleans()), max_size=12))
def test_every_gateway_counts_every_sample_once(
    tmp_path_factory: pytest.TempPathFactory, given_: list[tuple[Sample, bool]]
) -> None:
    """Whichever of two wrote it, and however often they look."""
    file = tmp_path_factory.mktemp("trial") / "store.sqlite"
    stores = [Database(file) for _ in range(2)]
    one, other, another = (TrialSamples(store, name) for store, name in zip([*stores, stores[0]], "aab", strict=True))
    wanted: dict[Arm, ArmSamples] = {arm: ArmSamples() for arm in ARMS}
    for sample, first in given_:
        (one if first else other).add(sample)
        another.add(sample)
        wanted[sample.arm].add(sample.failed, sample.seconds, sample.usd, sample.solved)
        assert one.arms() == wanted
    assert other.arms() == wanted
    for store in stores:
        store.close()


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
