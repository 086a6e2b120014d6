"""Shared by the commands: the workspace, the exit code, and the reading of amounts and dates."""

import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from orchestra.errors import ConfigError
from orchestra.files.atomic import STATE, make_folder
from orchestra.system import ending
from orchestra.system.workspace import alone, check_surroundings, locked_elsewhere

EACH_TIME = ("promote", "deploy")
"""Stages of a run that DVC does not know."""
Level = Literal["ok", "warning", "error"]
RunnerOption = Annotated[
    str | None,
    typer.Option(help="Run as a flow on a Prefect task runner: processes:2, dask:2, dask@ADDRESS, ray …"),
]
"""Where a command's parts run."""

INPUTS = ("data/catalogue", "data/domains", "data/extra")
"""Folders that stages read whole and commands write to."""


@dataclass(frozen=True)
class CheckResult:
    """One line: what was looked at, how it is, and the command that fixes it."""

    level: Level
    what: str
    found: str
    fix: str = ""


def parse_usd(text: str, option: str) -> Decimal:
    """Dollars, from zero to a trillion; raises `ConfigError` for anything else."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount <= 10**12):
        raise ConfigError(f"{text!r} is not an amount", where=option, fix="write dollars, such as 1.50")
    return amount


def parse_date(text: str) -> date:
    """The day of `--as-of`. Raises `ConfigError` unless the text is an ISO date."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a date", where="--as-of", fix="write YYYY-MM-DD") from None


def can_be_written(path: Path | None) -> Path | None:
    """Callback of every option that names an output: raises `ConfigError`, before any work, where none can be made.

    A file or a folder that is there already is left to the writer.
    """
    try:
        if path is not None and _is_device(path):
            what = "it is a device or a pipe, and a new file would take its place"
            raise ConfigError(what, where=str(path), fix="name a file")
        if path is not None and not path.exists():
            nearest = next(one for one in path.absolute().parents if one.exists())
            if not nearest.is_dir():
                what = "it is there already, as a file in place of a folder"
                raise ConfigError(what, where=str(nearest), fix="name another path")
            tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        what = f"nothing can be written there: {error.strerror}"
        raise ConfigError(what, where=str(path), fix="name another path") from None
    return path


def _is_device(path: Path) -> bool:
    """Whether it is neither a file nor a folder; /dev/stdout is neither, also where it leads to a file."""
    to_process = path.is_symlink() and str(path.readlink()).startswith("/proc/")
    return to_process or (path.exists() and not (path.is_file() or path.is_dir()))


def workspace(*, checked: bool = True) -> Path:
    """The repository: the nearest folder upwards with dvc.yaml and params.yaml; it becomes the working directory.

    Where libraries cannot work in it, raises `ConfigError`, unless the caller says so itself.
    """
    for folder in (here := Path.cwd(), *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            if checked:
                check_surroundings(folder)
            os.chdir(folder)
            if (state := folder / STATE).is_dir():
                make_folder(state)  # One of an older version is open.
            return folder
    without = next((folder for folder in (here, *here.parents) if (folder / "dvc.yaml").is_file()), None)
    if without is not None:
        file = without / "params.yaml"
        what = "the link leads to no file" if file.is_symlink() else "no such file"
        raise ConfigError(what, where=str(file), fix="git checkout params.yaml")
    raise ConfigError("no workspace here", where=str(here), fix="change into the cloned repository")


def spend_alone(context: typer.Context, folder: Path) -> None:
    """Until this command ends, no other spends from the ledger in the folder; raises `ServiceError` where one does.

    Each of two would go up to the cap, and a cassette has one writer at a time.
    """
    context.with_resource(alone(folder.resolve() / ".lock", folder, "with its ledger"))


def tell_beside_run(root: Path, written: Path) -> None:
    """Say, before `written` is, that a run works here and ends because of it: its inputs may not change."""
    place = os.path.relpath(written, root)
    if locked_elsewhere(root) and place.startswith(tuple(f"{one}{os.sep}" for one in INPUTS)):
        print(
            f"WARNING: a run works here, and {place} is an input of its stages: it ends with ChangedDuringRun after "
            "the stage — wait for it, or write elsewhere",
            file=sys.stderr,
            flush=True,
        )


def check_stages(root: Path, names: Iterable[str | None]) -> None:
    """Raises `ConfigError` for the first name that no stage of dvc.yaml has; None and the empty text name none."""
    from orchestra.files.yaml import load_yaml

    stages = list(load_yaml(root / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"])
    for name in filter(None, names):
        if name in EACH_TIME:
            what = f"{name} is no stage to choose: {' and '.join(EACH_TIME)} run each time, after {stages[-1]}"
            raise ConfigError(what, where="dvc.yaml", fix=f"one of: {', '.join(stages)}")
        if name not in stages:
            raise ConfigError(f"no stage {name}", where="dvc.yaml", fix=f"one of: {', '.join(stages)}")


def refuse_unused(context: typer.Context, options: Iterable[str], why: str, fix: str = "leave it out") -> None:
    """Raises `ConfigError` for the first of the options that was typed: it would change nothing, for that reason."""
    typed = {one.name: one.opts[0] for one in context.command.params if one.name and _typed(context, one.name)}
    for name in options:
        if name in typed:
            raise ConfigError(f"it changes nothing {why}", where=typed[name], fix=fix)


def all_but(context: typer.Context, name: str) -> list[str]:
    """The options of the command but for that one."""
    return [one.name for one in context.command.params if one.name and one.name != name]


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def hand_over(*arguments: str, **options: object) -> NoReturn:
    """Continue as `python -m ...` in this process: the library imports no flow, and a kill meets the right pid.

    `options` follow by their names, as `words` writes them.
    """
    ending.hand_over(*arguments, *words(**options))


def words(**options: object) -> list[str]:
    """Options of a command line, `--name=value`: a value may begin with a hyphen.

    True is the name alone, a list repeats it; None and False are left out. `cap_usd` is `--cap-usd`, and `from_`,
    which Python reserves without its underscore, `--from`.
    """
    found: list[str] = []
    for key, value in options.items():
        name = f"--{key.removesuffix('_').replace('_', '-')}"
        if value is True:
            found.append(name)
        elif value is not None and value is not False:
            found += [f"{name}={one}" for one in (value if isinstance(value, list) else [value])]
    return found
