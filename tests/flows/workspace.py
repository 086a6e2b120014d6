"""A workspace as a user has it: the repository's files in an empty folder under git, and the CLI run as a process."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestra.system.processes import free_port

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
"""Long, since the cores may be shared; on two idle ones a whole run takes about a minute."""


@dataclass(frozen=True)
class Workspace:
    root: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    """Variables of this user alone."""

    @property
    def env(self) -> dict[str, str]:
        """The user's environment, without what this process' own Prefect or pytest put there."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT", "PYTEST", "MLFLOW_"))}
        return kept | {"OMP_NUM_THREADS": "1", "ORCHESTRA_SKIP_VLLM": "1", **self.extra}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "orchestra.cli.main", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`orchestra …` in the background, its output in one pipe."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def orchestra(self, *arguments: str, code: int = 0, timeout_s: float = TIMEOUT_S) -> list[str]:
        """The lines that `orchestra …` prints; fails when it ends with another code."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout.splitlines()

    def lock(self, stage: str) -> dict[str, str]:
        """Hash by output path, from dvc.lock."""
        lock = yaml.safe_load((self.root / "dvc.lock").read_text(encoding="utf-8"))
        return {out["path"]: out["md5"] for out in lock["stages"][stage]["outs"]}

    def runs(self) -> list[Any]:
        """Every MLflow run, newest first."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self.root}/.state/mlflow.db")
        where = client.get_experiment_by_name("orchestra")
        assert where is not None
        return list(client.search_runs([where.experiment_id]))

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / ".state" / "last_run.json").read_text(encoding="utf-8"))
        return found


def make(root: Path) -> Workspace:
    """A clone of the repository's files (not its outputs), with tests/micro.yaml laid over params.yaml."""
    subprocess.run(["git", "clone", "-q", _committed().name, str(root)], check=True)
    subprocess.run(["git", "remote", "remove", "origin"], cwd=root, check=True)
    return Workspace(root)


@functools.cache
def _committed() -> tempfile.TemporaryDirectory[str]:
    """What `make` clones: packing every file takes git longer than a clone, so it is done once per process."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        # A run in the repository itself leaves its dvc.lock there.
        if name != "dvc.lock" and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    for key, value in yaml.safe_load((root / "tests/micro.yaml").read_text(encoding="utf-8")).items():
        params[key] = {**params[key], **value} if isinstance(value, dict) else value
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    commit(root)
    return folder


def free_ports() -> list[str]:
    """Options of `orchestra up` for ports that nobody has."""
    return [word for name in ("prefect", "mlflow", "metrics") for word in (f"--{name}-port", str(free_port()))]


def commit(root: Path) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["add", "-A"], [*identity, "commit", "-q", "-m", "start"]):
        subprocess.run(["git", *command], cwd=root, check=True)
