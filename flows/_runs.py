"""Flow runs of this workspace: alone where they change it, and those whose process was killed marked as crashed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause
from prefect.states import Crashed

from orchestra.errors import OrchestraError
from orchestra.system.runs import ASKED_BY, AWAITING, FAILED, STOPPED, RunFailure, RunJournal, save, stale
from orchestra.system.workspace import Screen, locked


@contextlib.contextmanager
def under_way(root: Path, *, alone: bool) -> Iterator[RunJournal]:
    """The record of the present flow run; `alone`: with the workspace's lock. It tells how the block ended."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None and context.flow is not None
    run = context.flow_run
    with locked(root) if alone else contextlib.nullcontext():
        crash_stale(root, run.id, alone=alone)
        more = {"parameters": dict(run.parameters), "asked_by": _asked_by(run), "alone": alone}
        journal = RunJournal.begin(root, str(run.id), run.name, context.flow.name, **more)
        try:
            yield journal
        except Pause:
            journal.end(AWAITING, "a person must answer: orchestra status")
            raise
        except BaseException as error:
            failure = RunFailure.of(error)
            journal.end(STOPPED if failure.kind == STOPPED else FAILED, str(error), failure)
            if run.deployment_id is not None:
                # A worker ran it: its log is where one looks, and Prefect's own lines do not go there.
                Screen()(f"{journal.record.flow} {run.name} failed: {failure.line} — orchestra why {run.name}")
            raise
        if journal.record.ended is None:
            journal.end("Completed")


def retryable(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Of a task: only what can go better the second time, as its error says."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, OrchestraError) and failure.retryable


def crash_stale(root: Path, own: UUID, *, alone: bool) -> int:
    """Mark this workspace's runs whose process is gone as crashed; returns how many.

    Prefect cannot know that a process was killed: its run would say Running for ever. The holder of the workspace's
    lock (`alone`) knows that no other run under it works, also none of another machine or of a container that is gone.
    Other runs elsewhere are left to an automation on missing heartbeats.
    """
    crashed = 0
    for record in stale(root, alone=alone):
        if record.id != str(own):
            crashed += _crash(UUID(record.id))
            save(root, record)
    return crashed


def _asked_by(run: FlowRun) -> str:
    """Who asked, of a run that no person started: what the environment names, or Prefect's deployment."""
    if told := os.environ.get(ASKED_BY):
        return told
    if run.deployment_id is None:
        return ""
    from prefect.runtime import deployment

    name: str = deployment.name
    if run.auto_scheduled:
        return f"schedule {name}"
    by = run.created_by.display_value if run.created_by is not None else None
    return f"deployment {name}" + (f", by {by}" if by else "")


def _crash(run_id: UUID) -> bool:
    """Whether the run still said that it runs, on the API in use."""
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(run_id)
        except ObjectNotFound:
            return False
        if run.state is None or not run.state.is_running():
            return False
        client.set_flow_run_state(run_id, Crashed(message="its process was killed"), force=True)
        return True
