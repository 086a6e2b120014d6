"""The run's ledger: one budget for all calls of a stage, under the cap of params.yaml; every charge is kept."""

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import LEDGERS, RANK, run_of, total
from orchestra.files import atomic
from orchestra.files.jsonl import stream_jsonl, whole_lines
from orchestra.system.retraining import reopen_lost
from orchestra.system.runs import RunRecord, runs
from orchestra.tools.replay.cassette import Cassette, Slot, scope
from orchestra.types import EXACT, Charge, add_up
from tasks.platform.stage import Stage

LEDGER = "ORCHESTRA_LEDGER"
"""Environment variable of a flow's stages: the file that all of them book in."""
JOB = "ORCHESTRA_JOB"
"""Environment variable of a scheduler's job: the name under which all of its runs and stages book, in one file."""


@contextlib.contextmanager
def run_ledger(root: Path, run: str) -> Iterator[None]:
    """Let every stage within the block book in one file, `.state/ledger/<run>.jsonl`, or in the job's."""
    before = os.environ.get(LEDGER)
    os.environ[LEDGER] = str(root / LEDGERS / f"{booked_as(run)}.jsonl")
    try:
        yield
    finally:
        os.environ.pop(LEDGER)
        if before is not None:
            os.environ[LEDGER] = before


def booked_as(run: str) -> str:
    """The name of a run's ledger: its own, or that of the job that it is a part of."""
    return os.environ.get(JOB) or run


class LedgerTail:
    """Dollars that a run books, counted from where one looked last; simulated experts at the prices of the book."""

    def __init__(self, root: Path, run: str) -> None:
        self.root, self.run = root, run
        self._read: dict[Path, int] = {}

    def take(self) -> Decimal:
        """Dollars booked since the last call."""
        spent = Decimal(0)
        for file in ledgers(self.root, self.run):
            for line in _whole_lines(file, self._read.get(file, 0)):
                self._read[file] = self._read.get(file, 0) + len(line)
                # Not as Charge: a run books 100,000 of them, and only this field matters.
                spent = EXACT.add(spent, Decimal(json.loads(line)["cost_usd"]))
        return spent


def _whole_lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """The lines from that byte on, one after another; half a line, which is being written, is left out."""
    with file.open("rb") as lines:
        lines.seek(start)
        yield from whole_lines(lines)


def by_stage(files: Iterable[Path]) -> dict[str, dict[str, Decimal]]:
    """Dollars in ledgers by stage, which a charge's phase begins with, and by component."""
    found: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for file in files:
        for line in _whole_lines(file):
            charge = json.loads(line)
            parts = found[charge.get("phase", "").partition("/")[0]]
            name = charge["component"]
            parts[name] = EXACT.add(parts[name], Decimal(charge["cost_usd"]))
    return found


def spent_by(root: Path, record: RunRecord) -> Decimal:
    """Dollars in the ledger of a run."""
    return LedgerTail(root, record.mlflow_run).take() if record.mlflow_run else Decimal(0)


def reopen_requests(root: Path) -> None:
    """Open the requests for a retraining again whose run is gone, with its dollars: its ledger is put away next."""
    reopen_lost(root, runs(root), lambda record: spent_by(root, record))


def ledgers(root: Path, run: str) -> list[Path]:
    """The files that the run's stages, and their ranks, have booked in."""
    return [file for whose, file in _booked(root / LEDGERS) if whose == run]


def others_ledgers(root: Path, run: str) -> list[tuple[str, Path]]:
    """The files of other runs, with whose they are."""
    return [(whose, file) for whose, file in _booked(root / LEDGERS) if whose != run]


def bring_back(root: Path, client: Any, run: str) -> None:
    """The ledgers of a run that is retried, where another run put them into its MLflow record meanwhile: what it spent
    counts on, and the record is not replaced by a shorter one."""
    folder = root / LEDGERS
    for one in client.list_artifacts(run):
        file = folder / one.path
        if file.suffix == ".jsonl" and run_of(file) == run and not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder, prefix=".back-") as partial:
                atomic.replace(Path(client.download_artifacts(run, one.path, partial)), file)


def _booked(folder: Path) -> list[tuple[str, Path]]:
    return [(run_of(file), file) for file in sorted(folder.glob("*.jsonl"))]


def open_budget(stage: Stage, folder: Path | None = None, *, rank: int = 0, shares: Sequence[int] = (1,)) -> Budget:
    """The budget of this process: its run's or its job's, or outside of both one in `folder` (default: the stage's work
    folder).

    Several ranks book in a file each and have their `shares` of what the cap has left: together they cannot cross it.
    """
    named, job = os.environ.get(LEDGER), os.environ.get(JOB)
    if job and not named:
        named = str(stage.root / LEDGERS / f"{job}.jsonl")
    first = Path(named) if named else (folder or stage.work_dir()) / "ledger.jsonl"
    own = first if rank == 0 else first.with_name(f"{first.stem}{RANK}{rank}.jsonl")
    cap = stage.params.budget.run_usd
    if cap is not None:
        others_usd = add_up(
            _spent(file) for whose, file in _booked(first.parent) if whose == first.stem and file != own
        )
        with localcontext(rounding=ROUND_FLOOR):
            own_usd = _spent(own)
            cap = own_usd + (cap - own_usd - others_usd) * shares[rank] / sum(shares)
    return Budget(own, cap, stage.name)


class KeptReplies(Cassette):
    """What a stage was replied, in its work folder: where it was killed, it goes on without paying for that again."""

    def __init__(self, stage: Stage, *, rank: int = 0, since: Callable[[], str] = str) -> None:
        """A file for each rank. `since` names what the stage would go on from now: requests are numbered from there, as
        they will be when it does."""
        super().__init__(stage.work_dir() / f"replies{f'{RANK}{rank}' if rank else ''}.jsonl")
        self._since = since

    def slot(self, request: dict[str, Any], entry: str = "", **more: Any) -> Slot:
        with scope(self._since()):
            return super().slot(request, entry, **more)


def _spent(file: Path) -> Decimal:
    return total(stream_jsonl(file, Charge, fix="restore the ledger", whole=True)) if file.exists() else Decimal(0)


def tell(stage: Stage, budget: Budget, replies: Cassette | None = None) -> None:
    """Say what the run has spent so far, and what a cassette has spared or recorded; log what the stage spent, by
    component, with that of its other ranks."""
    if replies is not None and (replies.replayed or not isinstance(replies, KeptReplies)):
        stage.say(replies.summary())
    stage.say(f"spent in this run: {budget.summary()}")
    run = [file for whose, file in _booked(budget.path.parent) if whose == run_of(budget.path)]
    stage.log_metrics({f"spent/{name}_usd": float(usd) for name, usd in by_stage(run)[stage.name].items()})
