"""The sweep flow: the pipeline once for each combination of values, in copies of the workspace, and a table of them.

The copies share DVC's cache, so that stages with equal inputs run once; all of them are recorded in the same MLflow.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._runs import under_way
from orchestra.config.overrides import apply, effective, points
from orchestra.errors import ConfigError, OrchestraError
from orchestra.evaluation.report import TRAINED, read_comparison
from orchestra.files import atomic
from orchestra.system.processes import run_child
from orchestra.system.runs import ASKED_BY
from orchestra.system.workspace import Screen
from orchestra.text import digest, plain
from tasks.platform.tracking import connect, experiment, tracking_uri

FOLDER = "work/sweeps"
"""A copy of the workspace for each combination, named by it; what it made stays there."""
LAST_STAGE = "evaluate"
OTHERS = ("data/extra", "data/protected")
"""Folders that stages read and git ignores."""
PAID = ("data/versions", "work/extra")
"""Folders of what was paid for: ledgers and replies. Copies link to them, so that nothing is paid for twice and a
version's cap holds over all."""

screen = Screen()


@task(cache_policy=NONE, retries=1, retry_delay_seconds=5)
def run_point(root: Path, copy: Path, label: str, name: str) -> None:
    """The pipeline in that copy, up to the evaluation; its lines go to the screen with the combination before them."""
    env = {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri(root), ASKED_BY: f"sweep {name}: {label}"}
    command = [sys.executable, "-m", "flows", "retrain", "--until", LAST_STAGE]
    last = ""

    def read(line: str) -> None:
        nonlocal last
        last = plain(line.rstrip("\n"))
        screen(f"{label}: {last}")

    code = run_child(command, cwd=copy, env=env, on_line=read)
    if code != 0:
        raise OrchestraError(last.removeprefix("error: "), where=label, fix=f"cd {copy} && orchestra why")


@flow(name="sweep")
def sweep(overrides: list[str]) -> State[Any]:
    """Every combination in turn, then the table; what ran already is found in its copy or in DVC's cache."""
    root = Path.cwd()
    combinations = points(overrides)
    if len(combinations) < 2:
        raise ConfigError("a sweep needs more than one combination", where="--set", fix="write --set section.key=1,2,3")
    for assignments in combinations:
        effective(root / "params.yaml", assignments)
    with under_way(root, alone=True) as journal:
        # Made here, so that its artifacts lie in this workspace and not in a copy.
        experiment(connect(root), root)
        rows = []
        for assignments in combinations:
            label = " ".join(assignments)
            copy = make_copy(root, root / FOLDER / digest(label), assignments)
            with journal.stage(label) as note:
                run_point.with_options(name=label)(root, copy, label, journal.record.name)
                note("ran")
            rows.append((label, copy))
        text = table(rows)
        file = root / FOLDER / f"{journal.record.name}.md"
        atomic.write_text(file, text)
        screen(text)
        message = f"{len(rows)} combinations, compared in {file.relative_to(root)}"
        journal.end("Completed", message)
        return Completed(message=message, data=str(file))


def make_copy(root: Path, copy: Path, assignments: list[str]) -> Path:
    """The workspace's files, committed or not, with these values in params.yaml; a copy that is there is renewed.

    What git ignores, such as outputs, stays there as it is. What was paid for is the workspace's own.
    """
    copy.mkdir(parents=True, exist_ok=True)
    if not (copy / ".git").is_dir():
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    names = _listed(root)
    for name in _listed(copy) - names:
        (copy / name).unlink()
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy / name)
    for name in PAID:
        (root / name).mkdir(parents=True, exist_ok=True)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if not (copy / name).exists():
            (copy / name).symlink_to((root / name).resolve())
    apply(copy / "params.yaml", assignments)
    cache = (root / ".dvc" / "cache").resolve()
    (copy / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {cache}\n", encoding="utf-8")
    return copy


def _listed(root: Path) -> set[str]:
    """The files of a workspace that a copy has too; each has its own dvc.lock, which tells what it has run."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    names += [str(file.relative_to(root)) for folder in OTHERS for file in (root / folder).rglob("*")]
    # git lists a file that was deleted and not committed.
    return {name for name in names if name and name != "dvc.lock" and (root / name).is_file()}


def table(rows: list[tuple[str, Path]]) -> str:
    """Markdown: a row a combination, the trained policy's figures with their 95 % intervals, the best first."""
    found = [(label, read_comparison(copy / "reports/evaluation/comparison.json")) for label, copy in rows]
    ranked = sorted(found, key=lambda one: -(one[1].policies[TRAINED].utility.value or 0.0))
    lines = [
        "| values | solved | 95 % interval | ¢ / example | s / example | utility |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for label, comparison in ranked:
        one = comparison.policies[TRAINED]
        numbers = (
            _shown(one.accuracy.value, 100, "{:.1f} %"),
            f"{_shown(one.accuracy.low, 100, '{:.1f}')} to {_shown(one.accuracy.high, 100, '{:.1f}')} %",
            _shown(one.cost_usd.value, 100, "{:.3f}"),
            _shown(one.latency_s.value, 1, "{:.1f}"),
            _shown(one.utility.value, 1, "{:.3f}"),
        )
        lines.append(f"| {label} | {' | '.join(numbers)} |")
    simulated = " Experts are simulated." if any(one.simulated for _, one in found) else ""
    lines.append(f"\nMeasured on the held-out examples that chose it: confirm a choice on others.{simulated}")
    return "\n".join(lines) + "\n"


def _shown(value: float | None, factor: float, form: str) -> str:
    return "—" if value is None else form.format(value * factor)
