"""A change of what serves is found in MLflow with who, what and why."""

from pathlib import Path

import pytest

from tasks.platform.tracking import connect
from tasks.records.releases import ACTOR, EXPERIMENT, ReleaseRecord, actor, record
from tests.support.databases import make_database


def test_a_canary_that_was_rolled_back_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_database(tmp_path)
    monkeypatch.setenv(ACTOR, "nightly schedule")
    made = ReleaseRecord(
        kind="canary",
        before="3",
        wanted="4",
        after="3",
        outcome="rolled_back",
        why="new base",
        finding="a solved question costs 2.40 times as much",
        drained="Requests were cut after 1800 s: vllm-blue (version 3).",
        seconds=12.5,
    )
    run_id = record(tmp_path, made, {"candidate.requests": 120.0})
    client = connect(tmp_path)
    run = client.get_run(run_id)
    assert client.get_experiment(run.info.experiment_id).name == EXPERIMENT
    tags, metrics = run.data.tags, run.data.metrics
    assert tags["release.who"] == "nightly schedule" and tags["release.why"] == "new base"
    assert (tags["release.before"], tags["release.wanted"], tags["release.after"]) == ("3", "4", "3")
    assert run.info.status == "FAILED" and metrics == {"candidate.requests": 120.0, "release.seconds": 12.5}
    assert "costs 2.40 times" in tags["mlflow.note.content"] and "cut after 1800 s" in tags["mlflow.note.content"]


def test_without_a_name_the_user_and_the_machine_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ACTOR, raising=False)
    assert "@" in actor()
