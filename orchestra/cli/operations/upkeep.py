"""`orchestra backup`, `restore`, `push`, `pull` and `gc`: the state of a workspace elsewhere, and back; what can go."""

import os
from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import can_be_written, hand_over, workspace
from orchestra.errors import without_secrets

SERVERS = {"MLFLOW_TRACKING_URI": "MLflow", "PREFECT_API_URL": "Prefect"}


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", callback=can_be_written, help="The tar file to write.")],
) -> None:
    """Write databases, registered checkpoints, artifacts, keys and records to a file."""
    from orchestra.system.backup import backup as write
    from orchestra.system.workspace import Screen

    target, root, say = Path.cwd() / file, workspace(), Screen()
    contents = write(root, target, say=say)
    say("backup: done (100%)")
    print(f"{target}: {contents.line}")
    for variable, name in SERVERS.items():
        if os.environ.get(variable, "").startswith("http"):
            print(f"{name} is a server, {without_secrets(os.environ[variable])}: its database is backed up there")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `orchestra backup`.")],
) -> None:
    """Restore a backup, whole or not at all; the present databases are kept in .state/replaced-…"""
    from orchestra.serving.releases.control_channel import started_by_hand
    from orchestra.system.backup import restore as bring_back
    from orchestra.system.workspace import Screen, locked

    source, root = Path.cwd() / file, workspace()
    with locked(root):
        contents = bring_back(root, source, by_hand=started_by_hand, say=Screen())
    print(f"restored: {contents.line}, of {contents.made:%Y-%m-%d %H:%M} UTC")


def push(
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a newer push of another machine.")] = False,
) -> None:
    """Copy outputs, checkpoints and the registry to storage.url of params.yaml; each run ends with a push."""
    workspace()
    hand_over("tasks.records.shared", "push", replace=replace)


def pull(
    replace: Annotated[bool, typer.Option("--replace", help="Replace this workspace's own results.")] = False,
) -> None:
    """Fetch the last push, complete: outputs of stages, checkpoints, the registry with its history."""
    workspace()
    hand_over("tasks.records.shared", "pull", replace=replace)


def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete what is listed; without this option, only list it.")
    ] = False,
    champions: Annotated[
        int, typer.Option(min=1, help="Number of former champions, the newest, whose checkpoints stay.")
    ] = 3,
    days: Annotated[float, typer.Option(min=0, help="Keep files that changed within this number of days.")] = 30,
    runs_older_than: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="DAYS",
            help="Also MLflow's runs that ended more than this many days ago and that no version names.",
        ),
    ] = None,
) -> None:
    """List the files that no alias, release, branch or open run refers to; --delete deletes them."""
    workspace()
    more = {"runs_older_than": runs_older_than, "delete": delete}
    hand_over("tasks.records.leftovers", champions=champions, days=days, **more)
