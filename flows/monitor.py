"""The monitor flow: checks that the served model is the champion, is undamaged and answers; fails with the reason."""

import time
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._runs import under_way
from flows.retraining import announce, look, served_drift
from monitoring.drift import Signal
from orchestra.errors import ServiceError
from orchestra.serving import client
from orchestra.serving.releases.deployment import LAST, last_deployment
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.releases.trial import read_trial
from orchestra.system.runs import RunJournal
from orchestra.system.workspace import Screen
from tasks.platform.stage import Stage
from tasks.records import judged

TIMEOUT_S = 120
ANSWER_S = 60.0
"""Seconds that the check question may take with simulated experts; real ones take minutes."""

screen = Screen()


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def check_champion(root: Path) -> str:
    """The released checkpoint is the registry's champion, and its files are whole; returns the version."""
    from tasks.promote import champion

    serving, best = read(root / SERVING), champion(Stage.open("monitor", root))
    if serving is None or best is None:
        raise ServiceError("nothing was released", where=SERVING, fix="make pipeline")
    trial = read_trial(root)
    if trial is not None and trial.serving.checkpoint_hash == best.checkpoint_hash:
        # It is on its way: a release tries it beside the one that serves.
        return f"{serving.version} (a {trial.mode} of version {trial.serving.version} runs)"
    if serving.checkpoint_hash != best.checkpoint_hash:
        what = f"version {serving.version} serves, the champion is version {best.number}"
        raise ServiceError(what, where=SERVING, fix="orchestra release")
    return serving.version


@task(cache_policy=NONE)
def check_answer(root: Path) -> float:
    """The gateway answers the question that its release asked, and as it did then; returns the seconds it took.

    A real expert may answer in other words, so then any answer will do.
    """
    began = time.monotonic()
    released = last_deployment(root)
    sample = released.sample if released is not None else None
    if released is None or sample is None:
        raise ServiceError("the last release stored no test question", where=LAST, fix="orchestra release")
    reply = client.ask(
        sample.question,
        released.preference,
        domain=released.domain,
        root=root,
        url=client.gateway_url(root),
        timeout_s=ANSWER_S if sample.simulated else None,
        check=True,
    )
    if not reply.answer or (sample.simulated and reply.answer != sample.answer):
        what = f"it answers {reply.answer[:60]!r} to {sample.question[:60]!r}, at its release {sample.answer[:60]!r}"
        raise ServiceError(what, where=reply.version, fix="see .state/traces; orchestra release --rollback")
    return time.monotonic() - began


@task(cache_policy=NONE, timeout_seconds=judged.LOOK_S)
def check_drift(root: Path) -> tuple[str, list[Signal] | None]:
    """How the served episodes differ from the evaluated ones; told, never a failure: a person has to judge it."""
    return served_drift(root)


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def ask_retraining(root: Path, signals: list[Signal] | None, run: str) -> str:
    """Drift, prices, retired models and new data ask for the next retraining; Prefect is told when one is due."""
    return "; ".join(filter(None, (look(root, signals, f"monitor {run}"), announce(root))))


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def export_traces(root: Path) -> str:
    """The gateway's new traces are in MLflow; returns how many."""
    from tasks.records.traces import export

    return export(root, Stage.open("monitor", root).params.deploy).line


def _serving(root: Path, journal: RunJournal) -> tuple[str, float]:
    """The version that serves and the seconds of its answer; the first check that fails is the error."""
    with journal.stage("champion") as note:
        version: Any = check_champion.with_options(name="champion")(root)
        note(f"version {version}")
    with journal.stage("answer") as note:
        seconds: Any = check_answer.with_options(name="answer")(root)
        note("as at its release")
    return str(version), float(seconds)


def _asking(root: Path, journal: RunJournal) -> tuple[str, str]:
    """What drifted, and what asks for a retraining."""
    with journal.stage("drift") as note:
        found: Any = check_drift.with_options(name="drift")(root)
        moved, signals = found
        note(moved)
    with journal.stage("retraining") as note:
        asked: Any = ask_retraining.with_options(name="retraining")(root, signals, journal.record.name)
        note(asked)
    return str(moved), str(asked)


@flow(name="monitor")
def monitor() -> State[Any]:
    """Every check; the first that fails ends the flow with its one line, after what asks for a retraining was noted."""
    root = Path.cwd()
    with under_way(root, alone=False) as journal:
        failure: Exception | None = None
        version, seconds = "", 0.0
        try:
            version, seconds = _serving(root, journal)
        except Exception as error:  # Of whatever kind: what asks for a retraining is noted all the same.
            failure = error
        try:
            moved, asked = _asking(root, journal)
        except Exception as error:
            raise failure or error from None
        if failure is not None:
            raise failure
        with journal.stage("traces") as note:
            told: Any = export_traces.with_options(name="traces")(root)
            note(told)
        message = f"version {version} is the champion and answered in {seconds:.2f} s; {moved}; {asked}"
        screen(f"monitor: {message}")
        journal.end("Completed", message)
        return Completed(message=message, data=version)
