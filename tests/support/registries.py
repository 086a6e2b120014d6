"""A workspace with git, DVC and a registry of several champions, made by the libraries themselves."""

import contextlib
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dvc.repo import Repo

from orchestra.config.schema import load_params
from orchestra.files.checkpoint import hash_dir
from orchestra.system.storage import MLFLOW
from tasks.platform import dvc
from tasks.platform.registry import CHAMPION, PREVIOUS, PROMOTED, ModelVersion, Registry
from tests.support.databases import make_database
from tests.support.worlds import ROOT

STAGE = "stages:\n  copy:\n    cmd: cp source out.txt\n    deps: [source]\n    outs: [out.txt]\n"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
IGNORED = "/.state/\n/work/\n/out.txt\n/models/\n"


def make_workspace(root: Path) -> None:
    """An empty workspace whose one stage copies `source` to out.txt."""
    root.mkdir(parents=True)
    files = {"dvc.yaml": STAGE, "params.yaml": (ROOT / "params.yaml").read_text(), ".gitignore": IGNORED}
    for name, text in files.items():
        (root / name).write_text(text)
    shell(root, "git", "init", "-q", "-b", "main")
    Repo.init(str(root)).close()
    make_database(root)


def commit(root: Path) -> None:
    shell(root, "git", "add", "-A")
    shell(root, *GIT, "commit", "-qm", "one")


def run_stage(root: Path, text: str) -> str:
    """Run the stage on that text; the hash of its output."""
    (root / "source").write_text(text)
    with contextlib.chdir(root), Repo() as repo:
        repo.reproduce()
    return dvc.hashes(root, "copy").outputs["out.txt"]


def register(root: Path, numbers: Sequence[int], runs: Sequence[str]) -> Registry:
    """Champions in that order, one after another, each of its MLflow run."""
    registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
    for number, run in zip(numbers, runs, strict=True):
        checkpoint = root / "models/grpo"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "weights").write_text(str(number))
        registry.add(checkpoint, hash_dir(checkpoint), {PROMOTED: "true"}, run)
    return registry


def make_champion(root: Path, weights: str, run: str | None = None) -> ModelVersion:
    """A promoted version of that checkpoint, as promote registers it."""
    checkpoint = root / "models/grpo"
    shutil.rmtree(checkpoint, ignore_errors=True)
    (checkpoint / "deep").mkdir(parents=True)
    (checkpoint / "deep/model.safetensors").write_text(weights)
    registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
    before = registry.at(CHAMPION)
    version = registry.add(checkpoint, hash_dir(checkpoint), {PROMOTED: "true"}, run)
    if before is not None and before.number != version.number:
        registry.point(PREVIOUS, before)
    registry.point(CHAMPION, version)
    return version


def remove_run(root: Path, run_id: str) -> None:
    """Take a run out of MLflow's database, as `mlflow gc` does."""
    with closing(sqlite3.connect(root / MLFLOW)) as db, db:
        for table in ("tags", "latest_metrics", "metrics", "params", "runs"):
            db.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run_id,))


def shell(root: Path, *command: str) -> None:
    subprocess.run(command, cwd=root, check=True, capture_output=True)
