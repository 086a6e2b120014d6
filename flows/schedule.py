"""`python -m flows.schedule`: makes a schedule, with Prefect's server, pool, worker and deployment."""

import argparse
import asyncio
import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from flows._workspace import PREFECT_SETTINGS, settings
from orchestra.config.overrides import effective
from orchestra.errors import ConfigError, ServiceError
from orchestra.files import atomic
from orchestra.system import servers
from orchestra.system.workspace import workspace_id
from orchestra.text import aligned, digest, one_line
from tasks.platform.commands import run_command

ENTRYPOINTS = {name: f"flows/{name}.py:{name}" for name in ("retrain", "monitor", "release")}
"""Flows that can be scheduled."""
POOL = "local"
DEPLOYMENT, WATCH = "asked", "watch"
"""Names of the deployments that `orchestra retraining on` makes: the retraining, and the monitor that looks."""
WORKSPACE_TAG = r"orchestra-[0-9a-f]{12}"
"""How the tag of a workspace looks."""


def workspace_tag(root: Path) -> str:
    """Marks this workspace's schedules, on a server that several may share."""
    return f"orchestra-{workspace_id(root)[:12]}"


def workspace_tags(root: Path) -> list[str]:
    """The tag, and that of a schedule of an older version, which was made of the path alone."""
    return [workspace_tag(root), f"orchestra-{digest(str(root.resolve()))[:12]}"]


def _tagged(tags: Iterable[str]) -> bool:
    """Whether they are of any workspace's schedule; one of prefect.yaml has no such tag."""
    return any(re.fullmatch(WORKSPACE_TAG, tag) for tag in tags)


def taken(root: Path, flow: str, name: str) -> bool:
    """Whether another workspace has that deployment: Prefect would replace it unsaid.

    On the workspace's own server, what a move or a restore left may be replaced.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.settings import PREFECT_API_URL

    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
        found = client.read_deployment_by_name(f"{flow}/{name}")
        if _tagged(found.tags) and not _is_of(root, found):
            return not (servers.owns_prefect(root, str(PREFECT_API_URL.value())) and _left(root, found))
    return False


def _is_of(root: Path, deployment: Any) -> bool:
    return not set(workspace_tags(root)).isdisjoint(deployment.tags)


def _left(root: Path, deployment: Any) -> bool:
    """Whether its folder is this one or gone, as after a move or a restore. A folder that may not be read is there."""
    options = [one for step in deployment.pull_steps or () for one in step.values()]
    folders = [Path(one["directory"]) for one in options if "directory" in one]
    try:
        return all(one == root or not one.exists() for one in folders)
    except PermissionError:
        return False


def add(root: Path, name: str, flow: str, cron: str, timezone: str, overrides: list[str]) -> None:
    """Start what is needed and deploy; a schedule of that name is replaced. Nothing starts for a wrong argument."""
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.types.names import WITHOUT_BANNED_CHARACTERS

    if not name.strip() or not re.fullmatch(WITHOUT_BANNED_CHARACTERS, name):
        fix = "write a name such as nightly, without / % & < >"
        raise ConfigError(f"{name!r} is no name for a schedule", where="schedule", fix=fix)
    if flow not in ENTRYPOINTS:
        raise ConfigError(f"no flow {flow!r}", where="--flow", fix=f"one of: {', '.join(ENTRYPOINTS)}")
    if name == DEPLOYMENT or (name == WATCH and flow != "monitor"):
        what = f"{name} is a deployment of `orchestra retraining on`"
        raise ConfigError(what, where="schedule", fix="write another name, such as nightly")
    if overrides and flow != "retrain":
        raise ConfigError(f"{flow} takes no parameters", where="--set", fix="leave it out")
    effective(root / "params.yaml", overrides)
    comes: Any = None
    try:
        schedule = CronSchedule(cron=cron, timezone=timezone)
        # Prefect also takes six fields, and a day that never comes.
        comes = len(cron.split()) == 5 and next(CronSim(cron, datetime.now(UTC)), None)
    except (ValidationError, CronSimError) as error:
        # Pydantic's own text has several lines and an address.
        if isinstance(error, ValidationError) and error.errors()[0]["loc"] == ("timezone",):
            fix = "write a name such as UTC or Europe/Berlin"
            raise ConfigError(f"{timezone!r} is no time zone", where="--timezone", fix=fix) from None
    if not comes:
        fix = 'write five fields, such as "0 3 * * *"'
        raise ConfigError(f"{cron!r} is no schedule", where="--cron", fix=fix)
    for line in servers.start(root, worker=POOL):
        print(line, flush=True)
    with connected(root) as address:
        what = f"{flow} of {root.name} on a schedule; `orchestra schedule {name} --remove` ends it."
        parameters = {"overrides": overrides} if overrides else {}
        deploy(root, name, flow, schedule=schedule, parameters=parameters, description=what)
        # Prefect's names are of a flow: it would keep one of another flow beside it.
        others = [one for one in own_deployments(root) if one.name == name and one.entrypoint != ENTRYPOINTS[flow]]
        _delete(root, others)
    for one in others:
        print(f"{name}: it takes the place of the schedule of {_flow_of(one)}")
    print(f"{name}: {flow} at {cron!r} {timezone}" + "".join(f", {one}" for one in overrides))
    print(f"runs and logs: {address.removesuffix('/api')}; orchestra schedule lists, --remove ends it")


def deploy(
    root: Path,
    name: str,
    flow: str,
    *,
    description: str,
    schedule: Any = None,
    parameters: dict[str, Any] | None = None,
) -> None:
    """Make or replace a deployment of this workspace, for the worker of our pool.

    Raises `ConfigError` where another workspace has one of that flow and name.
    """
    from prefect.flows import Flow

    if taken(root, flow, name):
        fix = f"write another name, such as {name}-{root.name}"
        raise ConfigError(f"another workspace has {flow}/{name} on this Prefect server", where="schedule", fix=fix)
    _make_pool()
    loaded: Any = Flow.from_source(source=str(root), entrypoint=ENTRYPOINTS[flow])
    loaded.deploy(
        name,
        work_pool_name=POOL,
        schedule=schedule,
        parameters=parameters or {},
        job_variables={"env": _environment()},
        concurrency_limit=_one_at_a_time(),
        tags=["orchestra", workspace_tag(root)],
        description=description,
        build=False,
        push=False,
        print_next_steps=False,
    )


def monitors(root: Path) -> list[Any]:
    """This workspace's deployments of the monitor."""
    return [one for one in own_deployments(root) if one.entrypoint == ENTRYPOINTS["monitor"]]


def note_monitor(root: Path) -> None:
    """Keep when a monitor is due, if one is scheduled, so that Prometheus can tell one that stopped from none."""
    if found := monitors(root):
        plans = [_due(each.schedule) for one in found for each in one.schedules]
        said, file = json.dumps([plan for plan in plans if plan]) + "\n", root / servers.MONITORED
        if not file.is_file() or file.read_text(encoding="utf-8") != said:  # Its time says since when.
            atomic.write_text(file, said)
    else:
        (root / servers.MONITORED).unlink(missing_ok=True)


def listed(root: Path) -> list[str]:
    """One line a deployment that this workspace can remove, with every schedule of it."""
    rows = []
    for one in deployments(root):
        when = "; ".join(f"{_plan(each.schedule)}{'' if each.active else ' off'}" for each in one.schedules)
        with_ = ", ".join(one.parameters.get("overrides") or [])
        state = ("paused" if one.paused else "", _cancelled(root, one))
        whose = "" if _is_of(root, one) else "of another workspace"
        rows.append((one.name, _flow_of(one), when or "not scheduled", with_, *state, whose))
    return aligned(rows) if rows else []


def _flow_of(deployment: Any) -> str:
    return str(deployment.entrypoint).rpartition(":")[2]


def _plan(schedule: Any) -> str:
    """When a schedule is due; a person may have made it in Prefect's UI."""
    if hasattr(schedule, "interval"):
        return f"every {schedule.interval}"
    return f"{getattr(schedule, 'cron', None) or one_line(schedule.rrule)!r} {schedule.timezone}"


def _due(schedule: Any) -> dict[str, Any]:
    """The same for `tasks.records.metrics`; {} for a rule of calendars, which only a person writes."""
    if hasattr(schedule, "interval"):
        return {"every_s": schedule.interval.total_seconds()}
    return {"cron": schedule.cron, "timezone": schedule.timezone or "UTC"} if hasattr(schedule, "cron") else {}


def _cancelled(root: Path, deployment: Any) -> str:
    """Why Prefect cancelled the newest run that was due; empty where it did not."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    due = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment.id]),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(not_any_=[StateType.SCHEDULED])),
    )
    with connected(root), get_client(sync_client=True) as client:
        newest = client.read_flow_runs(flow_run_filter=due, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
    state = newest[0].state if newest else None
    said = one_line(state.message or "") if state is not None and state.is_cancelled() else None
    return "" if said is None else f"newest run cancelled: {said}"


def remove(root: Path, name: str) -> None:
    """Delete a schedule, its own of any flow before another workspace's; with the last one the worker ends.

    Raises `ConfigError` for one that there is not, and `ServiceError` where the worker would end during a run of its.
    """
    every = deployments(root)
    named = [one for one in every if one.name == name]
    if not named:
        names = ", ".join(dict.fromkeys(str(one.name) for one in every))
        fix = f"one of: {names}" if names else "orchestra schedule lists those there are"
        raise ConfigError(f"no schedule {name}", where="schedule", fix=fix)
    # An older version made a second one for another flow.
    found = [one for one in named if _is_of(root, one)] or named[:1]
    last = len(every) == len(found)
    if last and (run := servers.played(root)) is not None:
        what = f"{name} is the last schedule: its worker would end, and it plays {run.name}"
        raise ServiceError(what, where="schedule", fix=f"wait for it, or end it: kill {run.pid}")
    _delete(root, found)
    print(f"{name}: removed")
    if last and servers.forget_worker(root):
        print("worker: ended, since no schedule is left")


def _delete(root: Path, found: Iterable[Any]) -> None:
    """Delete deployments, and note which monitor is due then."""
    from prefect.client.orchestration import get_client

    with connected(root), get_client(sync_client=True) as client:
        for one in found:
            client.delete_deployment(one.id)
        note_monitor(root)


def catch_up(root: Path) -> None:
    """End the runs that are gone and that Prefect still calls running: no schedule begins one beside them."""
    with connected(root):
        from flows._runs import crash_stale

        if ended := crash_stale(root, alone=False):
            print(f"prefect: closed what it still called running, and is gone: {ended}")
        (root / servers.MONITORED).unlink(missing_ok=True)  # Nothing was due while the server was down.
        note_monitor(root)


@contextlib.contextmanager
def connected(root: Path) -> Iterator[str]:
    """Prefect's client speaks to the API that is set, or to that of `orchestra up`; yields its address.

    Raises `ServiceError` without either.
    """
    found = servers.prefect_client(root)
    if not found:
        raise ServiceError("Prefect's server does not run", where="schedule", fix="orchestra up")
    os.environ.update(found)
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    # Prefect reads its environment when it is imported, which may have been before the server was started.
    wanted = {PREFECT_API_URL: found[servers.PREFECT_URL]}
    if login := os.environ.get(servers.PREFECT_LOGIN):
        wanted[PREFECT_API_AUTH_STRING] = login
    with temporary_settings(wanted):
        yield found[servers.PREFECT_URL]


def deployments(root: Path) -> list[Any]:
    """Those that this workspace can remove, by name: its own, and on its own server all."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    with connected(root) as address, get_client(sync_client=True) as client:
        own = servers.owns_prefect(root, address)
        tags = DeploymentFilterTags(all_=["orchestra"]) if own else DeploymentFilterTags(any_=workspace_tags(root))
        found: list[Any] = client.read_deployments(deployment_filter=DeploymentFilter(tags=tags))
    return sorted((one for one in found if _tagged(one.tags)), key=lambda one: str(one.name))


def own_deployments(root: Path) -> list[Any]:
    """Those that this workspace made, by name; another one's run in another folder."""
    return [one for one in deployments(root) if _is_of(root, one)]


def _make_pool() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    async def make() -> None:
        async with get_client() as client:
            try:
                await client.read_work_pool(POOL)
            except ObjectNotFound:
                await client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))

    asyncio.run(make())


def _one_at_a_time() -> Any:
    """A run that is due while another runs is left out: the next one does its work."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy

    return ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def _environment() -> dict[str, str]:
    """Of the runs: what a flow that `orchestra run` starts has, too. The worker passes its own Prefect's address on."""
    kept = ("MLFLOW_TRACKING_URI", "OMP_NUM_THREADS", "ORCHESTRA_SKIP_VLLM")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "DO_NOT_TRACK": "true",
        **PREFECT_SETTINGS,
    }


def main(arguments: list[str]) -> None:
    """Add, list or remove; after a start of the server, catch up."""
    parser = argparse.ArgumentParser(prog="python -m flows.schedule", description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--cron")
    parser.add_argument("--timezone", default="UTC")
    parser.add_argument("--flow", default="retrain")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--remove", action="store_true")
    parser.add_argument("--catch-up", action="store_true", help="close runs whose end Prefect's server missed")
    told, root = parser.parse_args(arguments), Path.cwd()
    settings(root)
    if told.catch_up:
        catch_up(root)
    elif told.name is None:
        print("\n".join(listed(root)) or "nothing is scheduled")
        note_monitor(root)
    elif told.remove:
        remove(root, told.name)
    else:
        add(root, told.name, told.flow, told.cron, told.timezone, told.overrides)


if __name__ == "__main__":
    run_command(main)
