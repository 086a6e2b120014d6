"""Stages run apart from the repository's own outputs, their results kept by a fingerprint of all that went in.

Each run has a folder that looks like the repository: links to its code, catalogue, domains, recipes and base, a
params.yaml of its own, and outputs of its own. The stage's real main runs there, as DVC would run it. A finished result
is reused; a killed run continues.
"""

import hashlib
import json
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.config.overrides import apply
from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError, ServiceError
from orchestra.files import atomic
from orchestra.files.yaml import load_yaml
from orchestra.system.environment import threads_each
from orchestra.system.processes import kill_tree, run_child
from tasks.experiments.sealed import wording
from tasks.platform.dvc import StageError, StageKilled, stage_env
from tasks.platform.stage import stage_fingerprint

CODE = ("dvc.yaml", "orchestra", "tasks")
SPENT, DONE, LOG = "spent.json", "done.json", "log.txt"
TAIL = 40
"""Last lines of a stage that its failure is read from."""


@dataclass(frozen=True)
class Kept:
    """One stage's result."""

    stage: str
    folder: Path
    """Its outputs lie here under their usual names: models/sft, reports/evaluate.json, …"""
    seconds: float
    """Wall clock of all attempts together, those included that a kill ended."""
    reused: bool

    @property
    def minutes(self) -> float:
        return self.seconds / 60


@dataclass
class Keeper:
    """Runs stages into `root`/work/learn."""

    root: Path
    say: Callable[[str], None]
    overrides: Sequence[str] = ()
    """`section.key=value`, laid over params.yaml in every run."""
    force: bool = False
    """Run everything again, once."""
    jobs: int = 1
    """Stages that run at once, each with its share of the cores."""
    _done: set[Path] = field(default_factory=set)
    """Folders that this very process ran."""
    _plans: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    @property
    def store(self) -> Path:
        return self.root / "work" / "learn"

    def run(
        self,
        stage: str,
        label: str,
        *,
        overrides: Sequence[str] = (),
        links: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
        env: Callable[[], Mapping[str, str]] = dict,
    ) -> Kept:
        """`python -m tasks.<stage> <arguments>` with the inputs in `links` (folder by relative path), or its result.

        `env` is asked for only if the stage runs. Raises `StageKilled` when a signal ended it, `KeyboardInterrupt` when
        `stop` did, otherwise `StageError` with the line that it said.
        """
        if self._stopped:
            raise KeyboardInterrupt
        with self._plans:
            folder = self._folder(stage, [*self.overrides, *overrides], links or {}, arguments)
        done = (folder / DONE).is_file()
        reused = done and folder not in self._done
        if not done:
            self._execute(stage, label, folder, arguments, env())
            shutil.rmtree(folder / "work", ignore_errors=True)
            (folder / DONE).touch()
        self._done.add(folder)
        kept = Kept(stage, folder, _seconds(folder), reused)
        again = ", from an earlier run" if reused else ""
        self.say(f"{label} · {stage}: done, {kept.minutes:.1f} min{again}")
        return kept

    def stop(self) -> None:
        """End the stages that other threads run: each is interrupted there, and a repeated command goes on."""
        import psutil

        self._stopped, store = True, self.store.resolve()
        for child in psutil.Process().children():
            with suppress(psutil.Error, ServiceError):
                if Path(child.cwd()).is_relative_to(store):
                    kill_tree(child.pid)

    def _folder(
        self, stage: str, overrides: Sequence[str], links: Mapping[str, Path], arguments: Sequence[str]
    ) -> Path:
        """Where the stage runs with these inputs, laid out."""
        plan = self.store / ".plan"
        shutil.rmtree(plan, ignore_errors=True)
        params = self._prepare(plan, overrides, links)
        folder = self.store / f"{stage}-{_fingerprint(plan, stage, params, arguments)}"
        if self.force and folder not in self._done:
            shutil.rmtree(folder, ignore_errors=True)
        if folder.is_dir():
            shutil.rmtree(plan)
            self._prepare(folder, overrides, links)
        else:
            atomic.replace(plan, folder)
        return folder

    def _prepare(self, folder: Path, overrides: Sequence[str], links: Mapping[str, Path]) -> Params:
        """Lay the links and params.yaml; outputs that are there stay."""
        for inner in (folder, folder / "data", folder / "models"):
            inner.mkdir(parents=True, exist_ok=True)
            for path in inner.iterdir():
                if path.is_symlink():
                    path.unlink()
        for relative, target in {**standing(self.root), **links}.items():
            if not target.exists():
                raise DataError("missing", where=str(target), fix="run the stage that makes it")
            (folder / relative).symlink_to(target.resolve())
        shutil.copyfile(self.root / "params.yaml", folder / "params.yaml")
        apply(folder / "params.yaml", overrides)
        return load_params(folder / "params.yaml")

    def _execute(self, stage: str, label: str, folder: Path, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", _module(folder, stage), *arguments]
        if self.jobs > 1:
            env = {**threads_each(self.jobs), **env}
        before, began = _seconds(folder), time.monotonic()
        tail: deque[str] = deque(maxlen=TAIL)

        def spent() -> None:
            _write(folder / SPENT, before + time.monotonic() - began)

        def read(line: str) -> None:
            if self._stopped:
                raise KeyboardInterrupt
            log.write(line)
            log.flush()
            tail.append(line.rstrip("\n"))
            if line.startswith(f"{stage}: "):
                self.say(f"{label} · {line.rstrip()}")
            # With every line, so that a kill loses no more than the seconds since.
            spent()

        try:
            with (folder / LOG).open("a", encoding="utf-8") as log:
                code = run_child(command, cwd=folder, env=stage_env(env), on_line=read)
        finally:
            spent()
        if self._stopped:
            raise KeyboardInterrupt
        if code != 0:
            raise _failure(stage, code, list(tail), (folder / LOG).relative_to(self.root))


def standing(root: Path) -> dict[str, Path]:
    """What every run links to, by relative path: code, and what lies in data/ and models/ but is no stage's output."""
    declared = load_yaml(root / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"]
    outputs = {out for stage in declared.values() for out in stage.get("outs", [])}
    found = {name: root / name for name in CODE}
    for parent in ("data", "models"):
        for path in sorted((root / parent).iterdir()):
            if (relative := f"{parent}/{path.name}") not in outputs and not path.name.startswith("."):
                found[relative] = path
    return found


def _fingerprint(folder: Path, stage: str, params: Params, arguments: Sequence[str]) -> str:
    """That of the stage; what is no stage of dvc.yaml depends on all that evaluate does, on the probes' sentences and
    on its own file."""
    own = folder / Path(*_module(folder, stage).split(".")).with_suffix(".py")
    declared = load_yaml(folder / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"]
    if stage in declared:
        return stage_fingerprint(folder, stage, params)
    sentences = json.dumps(wording((folder / "tasks").resolve().parent, params))
    world = [stage_fingerprint(folder, "evaluate", params), str(params.synthesize.price_spread), sentences]
    return hashlib.sha256(json.dumps([stage, *arguments, *world]).encode() + own.read_bytes()).hexdigest()[:16]


def _module(folder: Path, stage: str) -> str:
    """The module of its main: a stage of the pipeline lies in tasks/, an experiment below that."""
    return f"tasks.{stage}" if (folder / "tasks" / f"{stage}.py").is_file() else f"tasks.experiments.{stage}"


def _failure(stage: str, code: int, tail: Sequence[str], log: Path) -> StageError:
    if code < 0:
        return StageKilled(f"ended by a signal ({code})", where=stage, fix="run the same command again: it continues")
    said = [line for line in tail if line.startswith("error: ")] or list(tail)[-1:] or [f"exit code {code}"]
    text = re.sub(rf"^(error: )?({re.escape(stage)}: )?", "", said[-1])
    return StageError(f"{text} (full output: {log})", where=stage)


def _seconds(folder: Path) -> float:
    file = folder / SPENT
    return float(json.loads(file.read_text(encoding="utf-8"))["seconds"]) if file.is_file() else 0.0


def _write(file: Path, seconds: float) -> None:
    atomic.write_text(file, json.dumps({"seconds": seconds}))
