"""The frame of every stage: parameters, whole-or-nothing outputs, metrics, progress, and errors of one line."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from orchestra.config.schema import Params, load_params
from orchestra.errors import EXIT_ERROR, BudgetError, DataError, OrchestraError
from orchestra.files import atomic
from orchestra.files.yaml import load_yaml
from orchestra.system.ending import bug, print_traceback
from orchestra.system.environment import quiet
from orchestra.system.processes import FLOW_PID, die_with_parent
from orchestra.system.runs import BUG
from orchestra.system.storage import storage_named
from orchestra.text import one_line, plain

CAPPED = "capped: "
"""How the line of a stage begins that a cap of dollars has ended."""
SETTLED_S = 5.0
"""Before so many seconds a speed says little: what is loaded first takes most of them."""
LOST_RANK_S = 3.0
"""How long a rank with an error that nothing foresaw is silent: `distributed.launch` needs about one second to see that
another one died."""
FAILURE_KIND = ".state/logs/{}.error"
"""Where a stage that fails leaves the class of its error."""


class Meter:
    """Progress of one loop, at most a line every two seconds: `meter.advance()`, or `meter(done)` with a count.

    The time that is left follows from the speed since the first count: what an earlier run did took none of it. Counts
    up to `begun` are told again by a run that continues, and count for nothing.
    """

    def __init__(
        self, say: Callable[[str], None], label: str, total: int, *, every_s: float = 2.0, begun: int = 0
    ) -> None:
        self.say, self.label, self.total, self.every_s, self.begun = say, label, total, every_s, begun
        self.done = 0
        self._first: tuple[int, float] | None = None
        self._said = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self(self.done + count)

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        if 0 < done <= self.begun:
            return
        self.done = done
        self.total = self.total if total is None else total
        now = time.monotonic()
        self._first = self._first or (done, now)
        if done >= self.total or now - self._said >= self.every_s:
            self._said = now
            first, began = self._first
            self.say(self._line(done - first, now - began) + (f" · {note}" if note else ""))

    def _line(self, made: int, spent_s: float) -> str:
        if not self.total:
            return f"{self.label} {self.done}"
        line = f"{self.label} {self.done}/{self.total} ({100 * self.done // self.total}%)"
        left_s = spent_s / made * (self.total - self.done) if made > 0 and spent_s >= SETTLED_S else 0.0
        return f"{line}, {left_s:.0f} s left" if left_s >= 1 else line


@dataclass
class Stage:
    """The context that a stage's main gets: `.params`, `.root`, and the ways to write, log and speak."""

    name: str
    params: Params
    root: Path
    _tracker: "_Tracker | None" = field(default=None, repr=False)
    _work: Path | None = field(default=None, init=False, repr=False)

    @classmethod
    def open(cls, name: str, root: Path | None = None, params: Params | None = None) -> Self:
        """A stage in `root` (default: the working directory) under its params.yaml."""
        root = (root or Path.cwd()).resolve()
        return cls(name, params or load_params(root / "params.yaml"), root, _Tracker.from_environment())

    def say(self, text: str) -> None:
        """One line on the screen, at once."""
        print(f"{self.name}: {plain(text)}", flush=True)

    def progress(self, total: int, label: str, begun: int = 0) -> Meter:
        """The `Meter` of one loop, to call as it goes on."""
        return Meter(self.say, label, total, begun=begun)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Send numbers to this stage's MLflow run; without one, nothing."""
        if self._tracker is not None:
            self._tracker.metrics(metrics, step)

    def log_artifact(self, path: Path) -> None:
        """Copy a file or folder to this stage's MLflow run; without one, nothing."""
        if self._tracker is not None:
            self._tracker.artifact(self.root / path)

    def flush(self) -> None:
        """Send what is still buffered."""
        if self._tracker is not None:
            self._tracker.flush()

    @contextlib.contextmanager
    def write_dir(self, relative: str | Path) -> Iterator[Path]:
        """An empty folder to fill; it takes its place only if the block ends well, so none is ever half-written."""
        with atomic.whole_folder(self.root / relative) as folder:
            yield folder

    def write_text(self, relative: str | Path, text: str) -> None:
        """Write a file, whole or not at all."""
        atomic.write_text(self.root / relative, text)

    def write_json(self, relative: str | Path, value: Any) -> None:
        """Write JSON, whole or not at all; a NaN or infinity is a `DataError`."""
        try:
            text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, default=str)
        except ValueError as error:
            raise DataError(str(error), where=str(relative), fix="a number in it is not finite: see the log") from None
        self.write_text(relative, text + "\n")

    def work_dir(self) -> Path:
        """`work/<stage>/<fingerprint>`: state that survives a kill, for exactly the inputs at its first call."""
        if self._work is None:
            self._work = self.root / "work" / self.name / stage_fingerprint(self.root, self.name, self.params)
        self._work.mkdir(parents=True, exist_ok=True)
        return self._work

    def other_work(self) -> list[Path]:
        """What attempts with other code, data or parameters left."""
        own = self.work_dir()
        return sorted(folder for folder in own.parent.iterdir() if folder != own)

    def done(self) -> None:
        """The stage did its work: send what is buffered; the state of other attempts is of no more use.

        In a flow they stay until it has compared the stage's inputs, and then go with the stage's own.
        """
        self.flush()
        if self._work is not None and not {"RANK", FLOW_PID} & os.environ.keys():
            for folder in self.other_work():
                shutil.rmtree(folder, ignore_errors=True)


def stage_fingerprint(root: Path, name: str, params: Params) -> str:
    """16 hex digits over the stage's command, its parameter sections and the contents of its inputs (code included)."""
    declared = _declared(root, name)
    values = params.model_dump(mode="json", by_alias=True, exclude={"budget"})  # It decides no result.
    sections = [section for section in declared.get("params", []) if isinstance(section, str)]
    chosen = {section: _pick(values, section) for section in sections} if sections else values
    digest = hashlib.sha256(json.dumps([declared.get("cmd", name), chosen], sort_keys=True).encode())
    for template in declared.get("deps", []):
        # DVC fills ${section.key} in from params.yaml.
        dep = re.sub(r"\$\{([\w.]+)\}", lambda match: str(_pick(values, match[1])), template)
        digest.update(dep.encode())
        for file in _files(root / dep):
            digest.update(str(file.relative_to(root)).encode())
            with file.open("rb") as content:  # A model's may be larger than the memory that is left.
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def run(name: str, main: Callable[[Stage], None]) -> None:
    """Run a stage as a process: an `OrchestraError` is one line and exit code 2, a bug a traceback and 1."""
    flow = os.environ.get(FLOW_PID, "")
    die_with_parent(int(flow) if flow.isdigit() else None)
    quiet()
    try:
        with storage_named(Path.cwd()):
            stage = Stage.open(name)
            main(stage)
            stage.done()
    except BudgetError as end:
        _fail(name, "BudgetError", f"{CAPPED}{end}")
    except OrchestraError as error:
        _fail(name, type(error).__name__, str(error))
    except MemoryError:
        _fail(name, "OutOfMemory", "out of memory — use a smaller batch or a larger machine")
    except Exception as error:
        if "RANK" in os.environ:
            # A rank that dies breaks what the others have with it, and their errors would hide its own: whoever started
            # them ends this one first.
            time.sleep(LOST_RANK_S)
        # torch's error of a full GPU, without its import; its advice follows after what fills the GPU.
        if type(error).__name__ == "OutOfMemoryError":
            said = one_line(str(error)).partition(" Of the allocated")[0].rstrip(".")
            _fail(name, "OutOfMemory", f"{said} — end what else uses the GPU, or use a smaller batch")
        print_traceback()
        _fail(name, BUG, bug(error), code=1)


def _fail(name: str, kind: str, line: str, code: int = EXIT_ERROR) -> NoReturn:
    """End the process: its line for a person, and the kind of the error for the flow, which DVC would not pass on."""
    with contextlib.suppress(OSError):
        atomic.write_text(Path.cwd() / FAILURE_KIND.format(name), kind)
    print(f"error: {name}: {line}", file=sys.stderr, flush=True)
    if "RANK" in os.environ:
        # Other ranks wait for this one's end; an exit would wait for its threads, which may play for an hour.
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _declared(root: Path, name: str) -> dict[str, Any]:
    """The stage's entry in dvc.yaml; empty for promote and deploy, which are no DVC stages."""
    file = root / "dvc.yaml"
    if not file.is_file():
        return {}
    entry = (load_yaml(file, if_missing="git checkout dvc.yaml") or {}).get("stages", {}).get(name, {})
    return entry if isinstance(entry, dict) else {}


def _pick(values: dict[str, Any], dotted: str) -> Any:
    chosen: Any = values
    for key in dotted.split("."):
        chosen = chosen.get(key) if isinstance(chosen, dict) else None
    return chosen


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def send(
    client: Any, run_id: str, metrics: Sequence[Any], params: Sequence[Any] = (), tags: Sequence[Any] = ()
) -> None:
    """Metrics, parameters and tags as MLflow has them, in as many requests as its limits ask for."""
    for start in range(0, len(metrics), 900):
        client.log_batch(run_id, metrics=metrics[start : start + 900])
    for start in range(0, max(len(params), len(tags)), 100):
        client.log_batch(run_id, params=params[start : start + 100], tags=tags[start : start + 100])


class _Tracker:
    """The stage's MLflow run, named by the environment of the flow; numbers go there in batches."""

    def __init__(self, uri: str, run_id: str) -> None:
        self.uri, self.run_id = uri, run_id
        self._client: Any = None
        self._buffer: list[Any] = []
        self._sent = time.monotonic()

    @classmethod
    def from_environment(cls) -> "Self | None":
        uri, run_id = os.environ.get("MLFLOW_TRACKING_URI"), os.environ.get("MLFLOW_RUN_ID")
        return cls(uri, run_id) if uri and run_id else None

    def metrics(self, metrics: dict[str, float], step: int | None) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        self._buffer += [Metric(key, float(value), now_ms, step or 0) for key, value in metrics.items()]
        if time.monotonic() - self._sent > 3 or len(self._buffer) > 500:
            self.flush()

    def artifact(self, path: Path) -> None:
        client = self._connect()
        if path.is_dir():
            client.log_artifacts(self.run_id, str(path), path.name)
        else:
            client.log_artifact(self.run_id, str(path))

    def flush(self) -> None:
        if self._buffer:
            batch, self._buffer = self._buffer, []
            send(self._connect(), self.run_id, batch)
        self._sent = time.monotonic()

    def _connect(self) -> Any:
        if self._client is None:
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=self.uri)
        return self._client
