"""Flow runs whose process is gone: the workspace's lock is ours, so nobody else can be running."""

import os
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed


def crash_stale(own: UUID, flow_name: str = "retrain") -> int:
    """Mark other running runs of the flow as crashed; returns how many. Only on this workspace's own API.

    A shared API (a cluster's) also knows runs of other workspaces; there an automation on missing heartbeats does it.
    """
    if "127.0.0.1" not in os.environ.get("PREFECT_API_URL", ""):
        return 0
    with get_client(sync_client=True) as client:
        running: Any = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
        named = FlowFilter(name=FlowFilterName(any_=[flow_name]))
        stale = [run for run in client.read_flow_runs(flow_filter=named, flow_run_filter=running) if run.id != own]
        for run in stale:
            client.set_flow_run_state(run.id, Crashed(message="its process was killed"), force=True)
    return len(stale)
