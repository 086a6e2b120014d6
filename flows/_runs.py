"""Flow runs of this workspace: alone where they change it, and those whose process was killed marked as crashed."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from orchestra.files import atomic
from orchestra.system.processes import alive, started_at
from orchestra.system.workspace import locked

RUNS = ".state/runs"
"""A file for each flow run that is under way, named by its id; what it leaves behind tells that it was killed."""


@contextlib.contextmanager
def under_way(root: Path, *, alone: bool) -> Iterator[FlowRun]:
    """The present flow run, on record for as long as the block lasts; `alone`: with the workspace's lock."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    run = context.flow_run
    with locked(root) if alone else contextlib.nullcontext():
        crash_stale(root, run.id)
        file = root / RUNS / f"{run.id}.json"
        pid = os.getpid()
        atomic.write_text(file, json.dumps({"host": socket.gethostname(), "pid": pid, "started": started_at(pid)}))
        try:
            yield run
        finally:
            file.unlink(missing_ok=True)


def crash_stale(root: Path, own: UUID) -> int:
    """Mark this workspace's runs whose process is gone as crashed; returns how many.

    Prefect cannot know that a process was killed: its run would say Running for ever. Runs on other machines (a
    cluster that shares the workspace) are left to an automation on missing heartbeats.
    """
    crashed = 0
    for file in (root / RUNS).glob("*.json"):
        try:
            run_id, told = UUID(file.stem), json.loads(file.read_text(encoding="utf-8"))
            here, pid, started = told["host"] == socket.gethostname(), int(told["pid"]), told["started"]
        except (ValueError, KeyError, TypeError):
            # Half a file: it was killed in the midst of writing.
            file.unlink(missing_ok=True)
            continue
        if not here or (run_id != own and alive(pid) and started_at(pid) == started):
            continue
        crashed += run_id != own and _crash(run_id)
        file.unlink(missing_ok=True)
    return crashed


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
