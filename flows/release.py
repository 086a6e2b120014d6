"""The release flow: serve the champion again, another version, or the one before it, in one command."""

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._runs import under_way
from orchestra.errors import ConfigError
from orchestra.system.workspace import Screen
from tasks.platform.stage import Stage

TIMEOUT_S = 1800

screen = Screen()


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_move(root: Path, to: int | None) -> str:
    """That version is champion, or the one before the champion; returns what changed, for a person."""
    from tasks.rollback import rollback, switch

    stage = Stage.open("promote", root)
    return (rollback(stage) if to is None else switch(stage, to)).line


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_deploy(root: Path, decision: Any = None) -> Any:
    """Serve the champion; the old server leaves only when the new one answers."""
    from tasks.deploy import deploy

    return deploy(Stage.open("deploy", root), decision)


@flow(name="release")
def release(rollback: bool = False, to: int | None = None) -> State[Any]:
    """Serve the registry's champion, after a rollback or a switch if asked for; safe to run again."""
    root = Path.cwd()
    if rollback and to is not None:
        raise ConfigError("--rollback and --to exclude each other", where="release", fix="leave one out")
    with under_way(root, alone=True) as journal:
        if rollback or to is not None:
            move = "rollback" if rollback else "switch"
            with journal.stage(move) as note:
                moved: Any = run_move.with_options(name=move)(root, to)
                note(moved)
            screen(f"release: {moved}")
        with journal.stage("deploy") as note:
            made: Any = run_deploy.with_options(name="deploy")(root)
            note(f"version {made.version} {made.outcome}")
        journal.end("Completed", made.note or f"version {made.version} serves")
        if not made.url:
            return Completed(name="Nothing", message=made.note, data=None)
        screen(f"release: version {made.version} serves at {made.url} ({made.engine})")
        screen(made.trace)
        return Completed(message=f"{made.outcome}: version {made.version} at {made.url}", data=made.version)
