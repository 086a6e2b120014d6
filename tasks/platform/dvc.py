"""DVC: the order of the stages, which of them are stale and why, and running one of them."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.files.atomic import write_bytes
from orchestra.files.yaml import load_yaml
from orchestra.system.environment import quiet
from orchestra.system.processes import FLOW_PID, run_child
from orchestra.system.runs import CONTINUES, in_short
from tasks.platform.stage import CAPPED, FAILURE_KIND

DOMAINS = "data/domains"
NOISE = re.compile(
    r"^(Running stage |> exec |(Generating|Updating) lock file|To (track|enable) |\s+(git add|dvc config) "
    r"|Use `dvc push`|Stage '.*' (didn't change|is cached)|Data and pipelines are|WARNING: Some of the cache"
    r"|WARNING: Process '.*' with \(Pid \d+\), in RWLock-file|\s*$)"
)
"""DVC's own lines, which say nothing that the flow does not say."""

LOCK, LOCK_BEFORE = "dvc.lock", ".state/dvc.lock"
"""DVC empties its lock file and then writes it. While it works, a copy of what stood there is kept."""

LOOK_S = 60.0
"""Seconds between two looks at the inputs of a stage that runs."""

StageOutcome = Literal["ran", "restored", "unchanged"]


class StageError(OrchestraError):
    """A stage ended badly; what it said is the message."""

    kind: str = ""
    """The class of the error in the stage's own process; empty where it left none."""


class StageKilled(StageError):
    """A stage was ended by a signal (out of memory, by hand): it goes on from its last checkpoint when run again."""

    retryable = True


class StageCapped(StageError):
    """The next call of a stage could have crossed the cap of dollars: it goes on from there when it is run again."""


class ChangedDuringRun(StageError):
    """Code, data or parameters changed while a run worked with them: what it made is not the result of either."""


@dataclass(frozen=True)
class Hashes:
    """The entry of one stage in dvc.lock: contents hash by path, parameter by name."""

    inputs: dict[str, str]
    outputs: dict[str, str]
    params: dict[str, Any]


def stages(root: Path) -> dict[str, list[str]]:
    """Every stage in the order of DVC's graph, with the reasons why it is stale (none: it is current)."""
    quiet()
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            # DVC's status speaks of stages by their address as seen from the working directory.
            order = {str(stage.name): str(stage.addressing) for stage in _sorted(repo.index.graph)}
            status: dict[str, list[Any]] = repo.status()
    except DvcException as error:
        raise explained(error, root) from None
    reasons = {name: [why for part in status.get(at, []) for why in _reasons(part)] for name, at in order.items()}
    return {
        name: why if not why or hashes(root, name).outputs else ["it has not run yet"] for name, why in reasons.items()
    }


def _sorted(graph: Any) -> list[Any]:
    """DVC's graph points from a stage to those it needs; those come first, ties by name."""
    import networkx

    order = networkx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: str(stage.name))
    return list(order)


def _reasons(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    reasons = []
    for kind, changed in part.items():
        for path, change in changed.items():
            if isinstance(change, dict):
                reasons += [f"{path}: {key} {how}" for key, how in change.items()]
            elif kind == "changed outs":
                reasons.append(f"output {path} {'not there' if change == 'deleted' else change}")
            else:
                reasons.append(f"{path} {'not there' if change == 'deleted' else change}")
    return reasons


def explained(error: Exception, root: Path) -> OrchestraError:
    """An error of DVC as one line."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())
    if "not inside of a DVC repository" in text or "not a git repository" in text:
        return ConfigError("no DVC workspace", where=str(root), fix="clone the repository with git and run inside it")
    if "is busy" in text or "acquire lock" in text:
        return ServiceError("another DVC command works here", where=".dvc", fix="wait for it to end, then try again")
    if LOCK in text:
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", LOCK], cwd=root, capture_output=True, check=False
        )
        fix = f"rm {LOCK}; DVC restores the outputs from its cache" if tracked.returncode else f"git checkout {LOCK}"
        return ConfigError(text, where=LOCK, fix=fix)
    return ConfigError(text, where="dvc.yaml", fix="fix dvc.yaml, params.yaml or the file it names")


def hashes(root: Path, name: str) -> Hashes:
    """The stage's entry of dvc.lock; empty before its first run."""
    entry = _entry(root, name)
    params = {key: value for values in entry.get("params", {}).values() for key, value in values.items()}
    return Hashes(_md5s(entry.get("deps", [])), _md5s(entry.get("outs", [])), params)


def _entry(root: Path, name: str) -> dict[str, Any]:
    file = root / LOCK
    lock = _lock(file, (found := file.stat()).st_mtime_ns, found.st_size) if file.is_file() else {}
    entry: dict[str, Any] = (lock or {}).get("stages", {}).get(name, {})
    return entry


@lru_cache(maxsize=1)
def _lock(file: Path, changed: int, size: int) -> Any:
    """dvc.lock, which is read some ten times a run."""
    return load_yaml(file, if_missing="run the pipeline", of_dvc=True)


def _md5s(entries: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["path"]: str(entry.get("md5", "")) for entry in entries}


def repro(
    root: Path,
    name: str,
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    force: bool = False,
) -> StageOutcome:
    """Run `dvc repro --single-item <name>` to its end, passing on what it prints.

    The child dies with the calling thread; when this function is left early (a time limit, a cancellation), it and all
    below it are ended. A line tells of an input that changes while that can still be undone; `on_line` then gets it
    from another thread, one call at a time.

    Raises `StageKilled` when a signal ended the stage, `ChangedDuringRun` when its inputs are other ones now, otherwise
    `StageError`.
    """
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", *(["--force"] if force else []), name]
    (root / FAILURE_KIND.format(name)).unlink(missing_ok=True)
    recover(root)
    made = _made_by(root, name)
    before, entries = _inputs(root, name)
    write_bytes(root / LOCK_BEFORE, (root / LOCK).read_bytes() if (root / LOCK).is_file() else b"")
    outcome: StageOutcome = "ran"
    tail: deque[str] = deque(maxlen=40)
    one_at_a_time = threading.Lock()

    def say(line: str) -> None:
        with one_at_a_time:
            on_line(line)

    def read(line: str) -> None:
        nonlocal outcome
        line = line.rstrip("\n")
        tail.append(line)
        if "didn't change, skipping" in line:
            outcome = "unchanged"
        elif "is cached - skipping run" in line:
            outcome = "restored"
        if not NOISE.match(line):
            say(line)

    code, holds = -1, False
    try:
        with _watched(lambda: _changed(before, _inputs(root, name)[0], made), name, say):
            code = run_child(command, cwd=root, env=stage_env(env), on_line=read)
        if code == 0 and outcome != "unchanged" and (changed := _changed(before, _inputs(root, name)[0], made)):
            what = f"code, data or parameters changed while it ran ({in_short(changed)}), so it is stale"
            raise ChangedDuringRun(what, where=name, fix="orchestra rerun runs it again")
        holds = code == 0
    finally:
        if holds:
            (root / LOCK_BEFORE).unlink()
        else:
            if code == 0:
                _forget(root, name, entries)
            recover(root, own=True)
    if code != 0:
        failure = _failure(name, code, list(tail))
        told = root / FAILURE_KIND.format(name)
        if isinstance(failure, StageError) and told.is_file():
            failure.kind = told.read_text(encoding="utf-8")
        raise failure
    return outcome


def _inputs(root: Path, name: str) -> tuple[dict[str, Any], "_RunCache"]:
    """What DVC would record as the stage's inputs now, and its run cache; it reads no file that it hashed before."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    found: dict[str, Any] = {}
    try:
        with Repo(str(root)) as repo:
            cache = _RunCache.of(Path(repo.stage_cache.cache_dir))
            for dep in (dep for stage in repo.index.stages if stage.name == name for dep in stage.deps):
                value = dep.get_hash().value if dep.exists else None
                parts = value.items() if isinstance(value, dict) else ()  # A file of parameters: value by key.
                found |= {f"{dep.def_path}: {key}": one for key, one in parts} or {str(dep.def_path): value}
    except DvcException as error:
        raise explained(error, root) from None
    return found, cache


def _made_by(root: Path, name: str) -> set[str]:
    """Inputs that the stage is about to write itself: domains by a model (`synthesize.writer.domains`)."""
    if name != "synthesize":
        return set()
    with contextlib.suppress(OrchestraError):  # The stage says what is wrong in them.
        wanted = load_params(root / "params.yaml").synthesize
        missing = wanted.writer and any(not (root / DOMAINS / one).is_dir() for one in wanted.writer.domains)
        return {DOMAINS} if missing and wanted.generator != "rules" else set()
    return set()


def _changed(before: dict[str, Any], now: dict[str, Any], made: set[str]) -> list[str]:
    """Inputs that the stage did not make and that are other ones now: DVC hashes them when it ends."""
    return [one for one in sorted(before | now) if before.get(one) != now.get(one) and one not in made]


@contextlib.contextmanager
def _watched(changed: Callable[[], list[str]], name: str, say: Callable[[str], None]) -> Iterator[None]:
    """While the block lasts, tell of inputs that changed, and of inputs that are again what they were."""
    ended = threading.Event()

    def look() -> None:
        told: list[str] = []
        while not ended.wait(LOOK_S):
            with contextlib.suppress(OrchestraError, OSError):  # Half-written: the next look, or the end, tells.
                if (found := changed()) == told:
                    continue
                told = found
                undo = "undo it before the stage ends, or it has to run again"
                say(f"{name}: warning: {in_short(found)} changed while it runs: {undo}" if found else
                    f"{name}: its inputs are again what they were when it began")  # fmt: skip

    watcher = threading.Thread(target=look, name=f"inputs of {name}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@dataclass(frozen=True)
class _RunCache:
    """Where DVC keeps which outputs came of which inputs, and the entries that were there."""

    folder: Path
    entries: frozenset[Path]

    @classmethod
    def of(cls, folder: Path) -> Self:
        return cls(folder, frozenset(folder.glob("*/*/*")))


def _forget(root: Path, name: str, before: _RunCache) -> None:
    """Take what DVC just recorded of the stage out of its run cache, which other workspaces may share."""
    recorded = _entry(root, name)
    for entry in _RunCache.of(before.folder).entries - before.entries:
        # Another workspace's, half-written, may be gone; and DVC fails at a folder without an entry.
        with contextlib.suppress(OrchestraError, OSError):
            if load_yaml(entry, if_missing="run the pipeline", of_dvc=True) == recorded:
                entry.unlink()
                entry.parent.rmdir()


def recover(root: Path, *, own: bool = False) -> None:
    """Put dvc.lock back as it was before a DVC that did not come to its end; only for the holder of the run's lock.

    A whole one stays, since git may have changed it since, unless this process made the copy: `own`. A stage whose
    entry is lost runs again, or DVC restores its outputs from the cache.
    """
    before = root / LOCK_BEFORE
    if not before.is_file():
        return
    if own or _cut(root / LOCK):
        if content := before.read_bytes():
            write_bytes(root / LOCK, content)
        else:
            (root / LOCK).unlink(missing_ok=True)
    before.unlink()


def _cut(lock: Path) -> bool:
    """Whether a DVC that was killed left this lock file, as far as it shows."""
    content = lock.read_bytes() if lock.is_file() else b""
    if not content.endswith(b"\n"):
        return True
    if b"\n<<<<<<< " in content:
        return False  # A merge of git's, which a person ends.
    try:
        return not isinstance(load_yaml(lock, if_missing="run the pipeline", of_dvc=True), dict)
    except OrchestraError:
        return True


def stage_env(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a stage: this interpreter's `python` first in PATH, params.yaml and nothing else."""
    env = {**os.environ, FLOW_PID: str(os.getpid()), **extra}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    # DVC looks at params.yaml only: another file would make it call a stage current that is not.
    env.pop("ORCHESTRA_PARAMS", None)
    return env


def _failure(name: str, code: int, tail: list[str]) -> OrchestraError:
    """DVC ends with 255 whatever went wrong, so the text decides."""
    said = [line.removeprefix("error: ").removeprefix(f"{name}: ") for line in tail if line.startswith("error: ")]
    if said and said[-1].startswith(CAPPED):
        return StageCapped(said[-1].removeprefix(CAPPED), where=name)
    if said:
        return StageError(f"{said[-1]} (full output: .state/logs/{name}.log)", where=name)
    text = "\n".join(tail)
    ended = re.search(r"exited with (-?\d+)", text)
    if (ended and (int(ended[1]) < 0 or int(ended[1]) > 128)) or code < 0:
        signal = ended[1] if ended else code
        return StageKilled(f"ended by a signal ({signal})", where=name, fix=f"run the same command again: {CONTINUES}")
    if "is busy" in text or "Unable to acquire lock" in text:
        return ServiceError("another DVC command works here", where=name, fix="wait for it to end, then try again")
    if "No possible cache link types" in text:
        what, fix = "DVC cannot write its outputs", "see that their folder is writable and has room (ls -ld, df -h)"
        return StageError(what, where=name, fix=f"{fix}; then the same command again")
    errors = [line for line in tail if line.startswith("ERROR:")] or tail[-1:] or [f"exit code {code}"]
    return StageError(errors[0].removeprefix("ERROR: "), where=name, fix=f"see .state/logs/{name}.log")
