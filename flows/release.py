"""The release flow: serve the champion again, or go back to the version before it, in one command."""

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from orchestra.workspace import Screen, locked
from tasks._stage import Stage

TIMEOUT_S = 1800

screen = Screen()


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_rollback(root: Path) -> int:
    """Champion and previous change places; the one taken out is not promoted again by itself."""
    from tasks.promote import rollback

    return rollback(Stage.open("promote", root)).number


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_deploy(root: Path, decision: Any = None) -> Any:
    """Serve the champion; the old server leaves only when the new one answers."""
    from tasks.deploy import deploy

    return deploy(Stage.open("deploy", root), decision)


@flow(name="release")
def release(rollback: bool = False) -> State[Any]:
    """Serve the registry's champion, after a rollback if asked for; safe to run again."""
    root = Path.cwd()
    with locked(root):
        if rollback:
            number: Any = run_rollback.with_options(name="rollback")(root)
            screen(f"release: version {number} is the champion again")
        made: Any = run_deploy.with_options(name="deploy")(root)
        if not made.url:
            return Completed(name="Nothing", message=made.note, data=None)
        screen(f"release: version {made.version} serves at {made.url} ({made.engine})")
        screen(made.trace)
        return Completed(message=f"{made.outcome}: version {made.version} at {made.url}", data=made.version)
