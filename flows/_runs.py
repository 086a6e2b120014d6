"""Flow runs of this workspace: alone where they change it, and those whose process was killed marked as crashed."""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause
from prefect.states import Completed, Crashed, Failed

from orchestra.errors import OrchestraError, ServiceError
from orchestra.files.checkpoint import hash_file
from orchestra.system.environment import quiet
from orchestra.system.runs import (
    ASKED_BY,
    AWAITING,
    FAILED,
    KILLED,
    SKIPPED,
    STOPPED,
    RunFailure,
    RunJournal,
    RunRecord,
    in_short,
    runs,
    save,
    stale,
)
from orchestra.system.workspace import Screen, locked
from tasks.platform.dvc import ChangedDuringRun


class AwaitsAnswer(Pause):
    """This run is suspended until a person answers; any other `Pause` is one of Prefect's UI, and decides nothing."""


@contextlib.contextmanager
def turn(root: Path) -> Iterator[State[Any] | None]:
    """The workspace's lock while the block lasts; yields the ending of a run that is due while another one works.

    None for a run for which a person waits: its error follows.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(root))
            skipped = None
        except ServiceError as error:
            skipped = _skipped(error)
        yield skipped


def _skipped(busy: ServiceError) -> State[Any] | None:
    run, flow = present()
    by_itself = run.deployment_id is not None and (run.auto_scheduled or run.parameters.get("asked"))
    if not by_itself or run.run_count > 1:  # A run that a person retries or answers does not end without a word.
        return None
    Screen()(f"{flow} {run.name} skipped: {busy.what}")
    return Completed(name=SKIPPED, message=busy.what)


@contextlib.contextmanager
def under_way(root: Path, *, alone: bool) -> Iterator[RunJournal]:
    """The record of the present flow run; `alone`: with the workspace's lock. It tells how the block ended."""
    quiet()  # A worker may have started this process.
    run, flow = present()
    more = {"parameters": dict(run.parameters), "asked_by": _asked_by(run), "alone": alone}
    begin = partial(RunJournal.begin, root, str(run.id), run.name, flow, **more)
    with contextlib.ExitStack() as stack:
        try:
            if alone:
                stack.enter_context(locked(root))
        except ServiceError as error:
            _failed(begin(), run, error)
            raise
        crash_stale(root, run.id, alone=alone)
        journal = begin()
        try:
            yield journal
        except AwaitsAnswer:
            journal.end(AWAITING, "a person must answer: orchestra status")
            raise
        except BaseException as error:
            _failed(journal, run, error)
            raise
        if journal.record.ended is None:
            journal.end("Completed")


class LoadedCode:
    """The project's code that this process has in memory: another one on disk would work beside it in later steps."""

    def __init__(self) -> None:
        loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if _ours(name)}
        self._files = {name: Path(file) for name, file in loaded.items() if file}
        self._hashes = {name: _hash(file) for name, file in self._files.items()}

    def check(self, fix: str = "orchestra rerun goes on with the new code") -> None:
        """Raises `ChangedDuringRun` where a file has another content now, or is gone."""
        if changed := [name for name, file in self._files.items() if _hash(file) != self._hashes[name]]:
            what = f"the code changed during the run ({in_short(sorted(changed))})"
            raise ChangedDuringRun(what, fix=fix)


def _hash(file: Path) -> str:
    return hash_file(file) if file.is_file() else ""


def _ours(module: str) -> bool:
    return module.partition(".")[0] in {"flows", "orchestra", "tasks"}


def present() -> tuple[FlowRun, str]:
    """The flow run of this process, and its flow."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None and context.flow is not None
    return context.flow_run, context.flow.name


def _failed(journal: RunJournal, run: FlowRun, error: BaseException) -> None:
    failure = RunFailure.of(error)
    journal.end(STOPPED if failure.kind == STOPPED else FAILED, str(error), failure)
    if run.deployment_id is not None:
        # A worker ran it: its log is where one looks, and Prefect's own lines do not go there.
        Screen()(f"{journal.record.flow} {run.name} failed: {failure.line} — orchestra why {run.name}")


def retryable(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Of a task: only what can go better the second time, as its error says."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, OrchestraError) and failure.retryable


def crash_stale(root: Path, own: UUID | None = None, *, alone: bool) -> int:
    """End this workspace's runs whose process is gone and that Prefect still calls running; returns how many.

    Prefect cannot know that a process was killed: its run would say Running for ever. The holder of the workspace's
    lock (`alone`) knows that no other run under it works, also none of another machine or of a container that is gone.
    Other runs elsewhere are left to an automation on missing heartbeats until an hour after their last sign.
    """
    crashed = 0
    for record in stale(root, alone=alone):
        if record.id != str(own):
            crashed += _crash(UUID(record.id))
            save(root, record)
    return crashed + _report_ended(root, own)


def _report_ended(root: Path, own: UUID | None) -> int:
    """Tell Prefect of the runs whose end it missed, because its server was down; returns how many."""
    ended = {UUID(one.id): one for one in runs(root) if one.ended is not None and not one.has_process}
    ended.pop(own or UUID(int=0), None)
    if not ended:
        return 0
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    wanted, told = FlowRunFilter(id=FlowRunFilterId(any_=list(ended)), state=running), 0
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=wanted):
            record = ended[run.id]
            # One that runs since after its end is retried: its new record is about to begin.
            if run.state is not None and record.ended is not None and run.state.timestamp <= record.ended:
                client.set_flow_run_state(run.id, _ending(record), force=True)
                told += 1
    return told


def _ending(record: RunRecord) -> State[Any]:
    if record.state == KILLED:
        return Crashed(message=record.message)
    return Failed(message=record.message) if record.failed else Completed(name=record.state, message=record.message)


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
