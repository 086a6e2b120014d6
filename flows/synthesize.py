"""The synthesize flow: one task per shard of a set of examples, on the configured task runner.

On a cluster, every worker must see the workspace: shards are written there and joined at the end.
"""

import importlib
import os
import re
import time
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.states import Completed
from prefect.task_runners import TaskRunner

from flows._runs import under_way
from orchestra.config.overrides import effective
from orchestra.config.schema import params_file
from orchestra.errors import ConfigError
from orchestra.synthesis.dataset.shards import SHARD_SIZE, Synthesis, sized
from orchestra.synthesis.dataset.workers import finish, left
from orchestra.synthesis.partition import Shard
from orchestra.system.workspace import Screen

SETTING = "ORCHESTRA_TASK_RUNNER"
"""`processes`, `processes:2` (workers), `dask:2` (a cluster of its own), `dask@tcp://host:8786` (one that is there)."""
RUNNERS = {
    "processes": ("prefect.task_runners", "ProcessPoolTaskRunner", "prefect"),
    "threads": ("prefect.task_runners", "ThreadPoolTaskRunner", "prefect"),
    "dask": ("prefect_dask", "DaskTaskRunner", "prefect-dask"),
    "ray": ("prefect_ray", "RayTaskRunner", "prefect-ray"),
}
"""Module, class, and the package that has it."""

screen = Screen()


def task_runner(setting: str) -> TaskRunner[Any]:
    """The task runner that a setting names; raises `ConfigError` for one that is unknown or not installed."""
    found = re.fullmatch(r"(\w+)(?::([1-9]\d*))?(?:@(\S+))?", setting)
    if found is None or found[1] not in RUNNERS or (found[3] and found[1] in ("processes", "threads")):
        fix = f"one of {', '.join(RUNNERS)}; with workers dask:2, with an address dask@tcp://host:8786"
        raise ConfigError(f"{setting!r} names no task runner", where=SETTING, fix=fix)
    name, workers, address = found[1], int(found[2] or 0), found[3]
    module, kind, package = RUNNERS[name]
    try:
        make: Any = getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError:
        raise ConfigError(f"{package} is not installed", where=SETTING, fix=f"pip install {package}") from None
    options: dict[str, Any] = {"address": address} if address else {}
    if workers:
        options |= {
            "dask": {"cluster_kwargs": {"n_workers": workers, "threads_per_worker": 1}},
            "ray": {"init_kwargs": {"num_cpus": workers}},
        }.get(name, {"max_workers": workers})
    runner: TaskRunner[Any] = make(**options)
    return runner


@task(cache_policy=NONE)
def make_shard(synthesis: Synthesis, shard: Shard) -> int:
    """Make one shard, on whichever machine this runs; returns its number of examples."""
    synthesis.make(shard)
    return shard.size


@flow(name="synthesize", task_runner=task_runner(os.environ.get(SETTING) or "processes"))
def synthesize(
    out: str = "data/generated",
    examples: int | None = None,
    overrides: list[str] | None = None,
    shard_size: int = SHARD_SIZE,
) -> State[Any]:
    """Make the shards that are missing and put the set together as `out`; `overrides` are --set's, for this once."""
    root, began = Path.cwd(), time.monotonic()
    params = effective(params_file(root), overrides or [])
    if examples is not None:
        params = sized(params, examples)
    with under_way(root, alone=True):
        synthesis = Synthesis.open(params, root, root / out, shard_size)
        todo, done = left(synthesis, screen)
        total = sum(shard.size for shard in synthesis.shards)
        for future in as_completed(make_shard.map(unmapped(synthesis), todo) if todo else []):
            done += future.result()
            screen(f"synthesize: {done}/{total} examples ({100 * done // total}%)")
        finish(synthesis, root / out, screen)
    message = f"{total} examples in {time.monotonic() - began:.0f} s, in {out}"
    screen(f"synthesize: {message}")
    return Completed(message=message, data=total)
