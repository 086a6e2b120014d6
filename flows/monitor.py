"""The monitor flow: what serves is the champion, unharmed, and answers; otherwise the run fails with the reason."""

import time
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._runs import under_way
from monitoring.drift import MIN_EPISODES, WINDOW, drift, sample
from orchestra.errors import ServiceError
from orchestra.evaluation.report import TRAINED
from orchestra.files.jsonl import read_jsonl
from orchestra.serving.client import ask, gateway_url
from orchestra.serving.records.telemetry import TRACES, served
from orchestra.serving.releases.deployment import LAST, last_deployment
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.releases.trial import read_trial
from orchestra.system.workspace import Screen
from orchestra.types import Episode
from tasks.platform.stage import Stage

TIMEOUT_S = 120
EPISODES = "reports/evaluation/episodes.jsonl"

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


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def check_answer(root: Path) -> float:
    """The gateway answers the question that its release asked, and as it did then; returns the seconds it took.

    A real expert may answer in other words, so then any answer will do.
    """
    began = time.monotonic()
    released = last_deployment(root)
    sample = released.sample if released is not None else None
    if released is None or sample is None:
        raise ServiceError("no release left a question to ask", where=LAST, fix="orchestra release")
    reply = ask(
        sample.question,
        released.preference,
        domain=released.domain,
        root=root,
        url=gateway_url(root),
        timeout_s=TIMEOUT_S / 2,
    )
    if not reply.answer or (sample.simulated and reply.answer != sample.answer):
        what = f"it answers {reply.answer[:60]!r} to {sample.question[:60]!r}, at its release {sample.answer[:60]!r}"
        raise ServiceError(what, where=reply.version, fix="see .state/traces; orchestra release --rollback")
    return time.monotonic() - began


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def check_drift(root: Path) -> str:
    """How the served episodes differ from the evaluated ones; told, never a failure: a person has to judge it."""
    evaluated = root / EPISODES
    serving = read(root / SERVING)
    assert serving is not None
    current = sample(served(root / TRACES, serving.fingerprint, limit=WINDOW))
    if not evaluated.is_file() or current.episodes < MIN_EPISODES:
        return f"too few requests to tell drift ({current.episodes} of {MIN_EPISODES})"
    reference = sample(e for e in read_jsonl(evaluated, Episode) if e.policy == TRAINED)
    return "; ".join(str(signal) for signal in drift(reference, current)) or "no drift"


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def export_traces(root: Path) -> str:
    """The gateway's new traces are in MLflow; returns how many."""
    from tasks.records.traces import export

    return export(root, Stage.open("monitor", root).params.deploy).line


@flow(name="monitor")
def monitor() -> State[Any]:
    """Every check; the first that fails ends the flow with its one line."""
    root = Path.cwd()
    with under_way(root, alone=False) as journal:
        with journal.stage("champion") as note:
            version: Any = check_champion.with_options(name="champion")(root)
            note(f"version {version}")
        with journal.stage("answer") as note:
            seconds: Any = check_answer.with_options(name="answer")(root)
            note("as at its release")
        with journal.stage("drift") as note:
            moved: Any = check_drift.with_options(name="drift")(root)
            note(moved)
        with journal.stage("traces") as note:
            told: Any = export_traces.with_options(name="traces")(root)
            note(told)
        message = f"version {version} is the champion and answered in {seconds:.2f} s; {moved}"
        screen(f"monitor: {message}")
        journal.end("Completed", message)
        return Completed(message=message, data=version)
