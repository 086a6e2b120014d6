"""`orchestra backup`, `restore` and `gc`: the state of a workspace in one file, and back; and what can go."""

import os
from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import hand_over, workspace

SERVERS = {"MLFLOW_TRACKING_URI": "MLflow", "PREFECT_API_URL": "Prefect"}


def backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="The tar file to write.")]) -> None:
    """Write MLflow's and Prefect's databases, registered checkpoints, artifacts and records to a file."""
    from orchestra.system.backup import backup as write

    target, root = Path.cwd() / file, workspace()
    contents = write(root, target)
    print(f"{target}: {contents.line}")
    for variable, name in SERVERS.items():
        if os.environ.get(variable, "").startswith("http"):
            print(f"{name} is a server, {os.environ[variable]}: its database is backed up there")


def restore(file: Annotated[Path, typer.Argument(metavar="FILE", help="What `orchestra backup` wrote.")]) -> None:
    """Bring a backup back, whole or not at all; the databases that were here are kept in .state/replaced-…"""
    from orchestra.system.backup import restore as bring_back
    from orchestra.system.workspace import locked

    source, root = Path.cwd() / file, workspace()
    with locked(root):
        contents = bring_back(root, source)
    print(f"restored: {contents.line}, of {contents.made:%Y-%m-%d %H:%M} UTC")


def gc(
    delete: Annotated[bool, typer.Option("--delete", help="Delete what is shown; without it nothing is.")] = False,
    champions: Annotated[
        int, typer.Option(min=1, help="Number of former champions whose checkpoints stay, the newest.")
    ] = 3,
    days: Annotated[float, typer.Option(min=0, help="What changed within so many days stays.")] = 30,
) -> None:
    """Show what nothing refers to any more: no alias, release, branch or open run. With --delete: delete it."""
    workspace()
    options = ["--champions", str(champions), "--days", str(days)]
    hand_over("tasks.records.leftovers", *options, *["--delete"] * delete)
