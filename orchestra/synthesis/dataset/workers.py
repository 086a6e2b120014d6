"""Makes a set of examples on this machine: its shards in as many processes as asked for, then the whole."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params
from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.synthesis.dataset.shards import SHARD_SIZE, Synthesis
from orchestra.synthesis.partition import Shard
from orchestra.system.processes import die_with_parent

Progress = Callable[[int], None]
"""Called with the number of examples that are done."""


def synthesize(
    params: Params,
    root: Path,
    out: Path,
    *,
    workers: int = 1,
    on_progress: Progress = lambda _: None,
    say: Callable[[str], None] = print,
    shard_size: int = SHARD_SIZE,
    run: Budget | None = None,
) -> dict[str, Any]:
    """Write the set of `params.synthesize` to the folder `out`, which changes only at the end; returns its card.

    The same bytes whatever the number of `workers`. A run that was killed goes on with the shards it lacks.
    """
    synthesis = Synthesis.open(params, root, out, shard_size)
    make_missing(synthesis, workers, on_progress, say)
    return finish(synthesis, out, say, run)


def finish(
    synthesis: Synthesis, out: Path, say: Callable[[str], None] = print, run: Budget | None = None
) -> dict[str, Any]:
    """Put the made shards together as `out`, and remove them; what this costs is booked in the `run`."""
    with atomic.whole_folder(out) as folder:
        summary = synthesis.assemble(folder, say, run)
    synthesis.clear()
    return summary


def left(synthesis: Synthesis, say: Callable[[str], None]) -> tuple[list[Shard], int]:
    """The shards that are still to be made, and how many examples the others hold."""
    states = {shard: synthesis.state(shard) for shard in synthesis.shards}
    for shard, state in states.items():
        if state == "damaged":
            say(f"shard {shard.index} is damaged: it is made again")
    done = [shard for shard, state in states.items() if state == "whole"]
    if done:
        say(f"{len(done)} of {len(states)} shards are there already")
    return [shard for shard in states if shard not in done], sum(shard.size for shard in done)


def make_missing(synthesis: Synthesis, workers: int, on_progress: Progress, say: Callable[[str], None]) -> None:
    """Make what is missing. Raises the first error of a shard, and `ServiceError` when a worker was killed."""
    todo, done = left(synthesis, say)
    on_progress(done)
    if min(workers, len(todo)) <= 1:
        for shard in todo:
            start = done

            def advance(_: int) -> None:
                nonlocal done
                done += 1
                on_progress(done)

            synthesis.make(shard, advance)
            done = start + shard.size
        return
    # Spawned, not forked: a fork of a process with threads can hang.
    pool = ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn"), _begin, (os.getpid(),))
    with pool:
        try:
            futures = {pool.submit(synthesis.make, shard): shard for shard in todo}
            for future in as_completed(futures):
                future.result()
                done += futures[future].size
                on_progress(done)
        except BrokenProcessPool:
            fix = "run the same command again, with fewer --workers if memory is short"
            raise ServiceError("a worker process was killed", where="synthesize", fix=fix) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(parent: int) -> None:
    """In a worker: it dies with its parent, also when that is killed, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
