"""`orchestra gc`: lists the files that no alias, release, branch or open run refers to; deletes them on request."""

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestra.config.schema import load_params
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir
from orchestra.files.yaml import load_yaml
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.releases.trial import read_trial
from orchestra.system.runs import SHORT, runs
from orchestra.system.storage import ARTIFACTS
from orchestra.system.workspace import Screen, locked
from orchestra.text import aligned
from tasks.approval import waits
from tasks.platform import dvc
from tasks.platform.aliases import aliases
from tasks.platform.commands import run_command
from tasks.platform.evidence import KEPT, PREFIX
from tasks.platform.registry import PROMOTED, STORE, ModelVersion, Registry, known
from tasks.platform.tracking import PARENT, experiment, own_database
from tasks.records.cached import CACHE, FOLDER, check_listings, of_dvc, of_sweeps, with_files
from tasks.records.models import CHECKPOINTS, MODEL, training_run

WORK = "work"
PREFECT_RESULTS = ".state/prefect/storage"
COLLECTED = "orchestra.collected"
"""Tag of a version whose kept checkpoint was deleted here: when."""
OUT = "out."
"""How MLflow's tags begin that name the hash of a stage's output."""
DAY_S = 86_400
SHOWN = 5
"""Leftovers of each kind that are named."""


@dataclass(frozen=True)
class Leftover:
    """Something that can be deleted."""

    kind: str
    path: Path
    size: int
    """Bytes."""
    why: str
    version: ModelVersion | None = None
    """The registered version whose checkpoint it is."""
    run: str = ""
    """The run of MLflow that goes with it."""


@dataclass(frozen=True)
class References:
    """What refers to something, by what it refers to."""

    checkpoints: dict[str, str]
    """Why each kept checkpoint stays, by its hash."""
    versions: list[ModelVersion]
    """Those whose files stay."""


def keepers(root: Path, registry: Registry, newest: int) -> References:
    """Every version that an alias names, that serves, is on trial or waits, and the `newest` that were champions."""
    found: dict[str, str] = {}
    every = sorted(registry.versions(), key=lambda one: -one.number)
    named = aliases(root, registry.model_name)
    champions = [one for one in every if PROMOTED in one.tags][:newest]
    for version in every:
        names = [alias for alias, number in named.items() if number == version.number]
        names += ["waits for approval"] if waits(version) else []
        if names or version in champions:
            why = ", ".join(names) or f"one of the last {newest} champions"
            found[version.checkpoint_hash] = f"version {version.number}: {why}"
    serving, trial = read(root / SERVING), read_trial(root)
    if serving is not None:
        found.setdefault(serving.checkpoint_hash, f"version {serving.version}: serves")
    if trial is not None:
        found.setdefault(trial.serving.checkpoint_hash, f"version {trial.serving.version}: on trial")
    return References(found, [one for one in every if one.checkpoint_hash in found])


def leftovers(
    root: Path,
    registry: Registry,
    kept: References,
    days: float,
    run_days: float | None = None,
    say: Callable[[str], object] = str,
) -> list[Leftover]:
    """What nothing refers to and is older than so many days, of every kind; the caller holds the workspace's lock.

    With `run_days` also runs that ended before so many days, though MLflow lists them. `say` is told what comes next.
    """
    before = time.time() - days * DAY_S
    every: list[Leftover] = []
    for what, some in (
        ("checkpoints", _checkpoints(root, registry, kept)),
        ("outputs of every branch and tag", _outputs(root, registry, kept)),
        ("evidence", _evidence(root, kept)),
        ("training state", _training(root)),
        ("databases put aside", _replaced(root)),
        ("errors that Prefect stored", _errors(root)),
        ("runs", _deleted_runs(root, registry.client)),
        ("old runs", () if run_days is None else _old_runs(root, registry, run_days)),
    ):
        say(f"looking at {what}")
        every += some
    return [one for one in every if _changed(one.path) <= before]


def _checkpoints(root: Path, registry: Registry, kept: References) -> Iterator[Leftover]:
    versions = {one.checkpoint_hash: one for one in registry.versions()}
    for folder in atomic.whole_entries(root / STORE):
        if folder.name not in kept.checkpoints:
            version = versions.get(folder.name)
            whose = "no version" if version is None else f"version {version.number}"
            yield Leftover("kept checkpoints", folder, _size(folder), f"of {whose}, which nothing refers to", version)


def _evidence(root: Path, kept: References) -> Iterator[Leftover]:
    """The gate's evidence and the monitor's reference; MLflow has the evidence too."""
    stays = {name[:PREFIX] for name in kept.checkpoints}
    for file in atomic.whole_entries(root / KEPT):
        if file.name[:PREFIX] not in stays:
            yield Leftover("evidence", file, _size(file), "of a checkpoint that nothing refers to")


def _outputs(root: Path, registry: Registry, kept: References) -> Iterator[Leftover]:
    """Objects of DVC's cache that neither the workspace, a branch, a tag, a sweep, a kept version nor an open run uses.

    A cache elsewhere may be shared with other workspaces: nothing of it is told.
    """
    cache = root / CACHE
    # A link, too, leads elsewhere.
    if not cache.is_dir() or not cache.resolve().is_relative_to(root.resolve()):
        return
    check_listings(root)
    used = with_files(root, [*of_dvc(root), *of_sweeps(root), *_of_runs(registry, kept)])
    for folder in atomic.whole_entries(cache):
        for file in atomic.whole_entries(folder):
            if (folder.name + file.name).removesuffix(FOLDER) not in used:
                yield Leftover("outputs of stages", file, _size(file), "no stage, branch, version or open run uses it")


def _of_runs(registry: Registry, kept: References) -> Iterator[str]:
    """Outputs of the runs that made the kept versions, and of runs that MLflow calls open."""
    client = registry.client
    found = [run for one in kept.versions if one.run_id and (run := known(client.get_run, one.run_id)) is not None]
    found += _search(client, registry.root, "attributes.status = 'RUNNING'")
    for run in found:
        yield from (value for key, value in run.data.tags.items() if key.startswith(OUT))


def _training(root: Path) -> Iterator[Leftover]:
    """State of training that was interrupted, unless the last run could still go on from it."""
    last = next((one for one in runs(root) if one.flow == "retrain"), None)
    if last is not None and (last.failed or last.ended is None or last.state in SHORT):
        return
    for stage in load_yaml(root / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"]:
        for folder in atomic.whole_entries(root / WORK / stage):
            yield Leftover("training state", folder, _size(folder), f"{stage}: no run goes on from it")


def _replaced(root: Path) -> Iterator[Leftover]:
    """Databases that a restore or a pull put aside."""
    for folder in sorted((root / ".state").glob("replaced-*")):
        yield Leftover("replaced databases", folder, _size(folder), "put aside by a restore or a pull")


def _errors(root: Path) -> Iterator[Leftover]:
    """What Prefect stores of each run that failed, and never reads or deletes after the run's end."""
    for file in atomic.whole_entries(root / PREFECT_RESULTS):
        yield Leftover("errors that Prefect stored", file, _size(file), "of a run that failed")


def _deleted_runs(root: Path, client: Any) -> Iterator[Leftover]:
    """Artifacts of runs that were deleted in MLflow, in the workspace's own store."""
    from mlflow.entities import ViewType

    if own_database(root):
        for run in _search(client, root, run_view_type=ViewType.DELETED_ONLY):
            folder = root / ARTIFACTS / run.info.run_id
            if folder.is_dir():
                yield Leftover("artifacts of deleted runs", folder, _size(folder), f"run {run.info.run_name}")


def _old_runs(root: Path, registry: Registry, days: float) -> Iterator[Leftover]:
    """Runs with artifacts in the workspace's own store that ended before so many days, unless a registered version
    names them, a run above or below them, or the one that made its checkpoint, or one of the workspace's."""
    client = registry.client
    if not own_database(root):
        return
    above = {run.info.run_id: run.data.tags.get(PARENT, run.info.run_id) for run in _search(client, root)}
    needed = [run for one in _pages(client.search_model_versions) for run in _runs_of(client, one)]
    # A later run may register what the workspace has now.
    current = [folder for stage in CHECKPOINTS if (folder := root / "models" / stage).is_dir()]
    needed += [training_run(registry, hash_dir(folder)) for folder in current]
    named = {above.get(run, run) for run in needed}
    before = int(max(0.0, time.time() - days * DAY_S) * 1000)
    for run in _search(client, root, f"attributes.end_time <= {before} AND attributes.status != 'RUNNING'"):
        run_id, ended = run.info.run_id, datetime.fromtimestamp(run.info.end_time / 1000, UTC)
        folder = root / ARTIFACTS / run_id
        if folder.is_dir() and above.get(run_id) not in named:
            why = f"run {run.info.run_name} of {ended:%Y-%m-%d}, which no version names"
            yield Leftover("old runs", folder, _size(folder), why, run=run_id)


def _runs_of(client: Any, version: Any) -> Iterator[str]:
    """The run that registered a version of MLflow's, those that its tags name, and the one that made its checkpoint."""
    yield from (str(version.run_id), *version.tags.values())
    if MODEL in version.tags and (model := known(client.get_logged_model, version.tags[MODEL])) is not None:
        yield str(model.source_run_id)


def _search(client: Any, root: Path, wanted: str = "", **more: Any) -> Iterator[Any]:
    """Every run that fits."""
    return _pages(client.search_runs, [experiment(client, root)], wanted, **more)


def _pages(search: Callable[..., Any], *arguments: Any, **more: Any) -> Iterator[Any]:
    """Everything that is found, of which MLflow tells 1,000 at a time."""
    token = None
    while token != "":
        page = search(*arguments, page_token=token, **more)
        token = page.token or ""
        yield from page


def delete(registry: Registry, found: Sequence[Leftover]) -> int:
    """Delete them; a version whose checkpoint goes says so. Returns the bytes that were freed."""
    for one in found:
        if one.run:
            # MLflow goes on to hold its numbers, and `mlflow gc` deletes those too.
            registry.client.delete_run(one.run)
        if one.version is not None:
            registry.tag(one.version, {COLLECTED: f"{datetime.now(UTC):%Y-%m-%d}"})
        if one.path.is_dir():
            shutil.rmtree(one.path)
        else:
            one.path.unlink(missing_ok=True)
    return sum(one.size for one in found)


def told(root: Path, kept: References, found: Sequence[Leftover]) -> Iterator[str]:
    """What stays and why, and what goes, largest first."""
    for why in kept.checkpoints.values():
        yield f"stays: {why}"
    kinds: dict[str, list[Leftover]] = {}
    for one in sorted(found, key=lambda each: -each.size):
        kinds.setdefault(one.kind, []).append(one)
    for kind, some in kinds.items():
        yield f"{kind}: {len(some)}, {_megabytes(sum(one.size for one in some))}"
        rows = [(f"  {one.path.relative_to(root)}", _megabytes(one.size), one.why) for one in some[:SHOWN]]
        yield from aligned(rows)
        if len(some) > SHOWN:
            yield f"  and {len(some) - SHOWN} more"


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_symlink() and file.is_file())


def _changed(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_mtime
    return time.time()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def main(arguments: list[str]) -> None:
    """Show, and delete."""
    parser = argparse.ArgumentParser(prog="python -m tasks.records.leftovers", description=__doc__)
    parser.add_argument("--delete", action="store_true")
    parser.add_argument("--champions", type=int, default=3)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--runs-older-than", type=float)
    options, root = parser.parse_args(arguments), Path.cwd()
    # Nothing may begin to refer to something meanwhile.
    with locked(root):
        # A DVC that was killed may have left an empty lock file, which DVC itself cannot read.
        dvc.recover(root)
        registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
        kept = keepers(root, registry, options.champions)
        found = leftovers(root, registry, kept, options.days, options.runs_older_than, say=Screen())
        print("\n".join(told(root, kept, found)) or "nothing is registered")
        if not found:
            print(f"nothing older than {options.days:g} days is left over")
        elif options.delete:
            print(f"deleted: {_megabytes(delete(registry, found))}")
        else:
            print("nothing was deleted: orchestra gc --delete")


if __name__ == "__main__":
    run_command(main)
