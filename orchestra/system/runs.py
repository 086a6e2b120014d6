"""The record of each flow run in `.state/runs`: what it did, what failed, and whether its process still lives."""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, JsonValue, ValidationError, field_validator

from orchestra.errors import ConfigError, OrchestraError
from orchestra.files import atomic
from orchestra.system.processes import alive, started_at
from orchestra.system.workspace import locked_elsewhere
from orchestra.text import one_line
from orchestra.types import Record, Usd

RUNS = ".state/runs"
"""One JSON file a flow run, named by its id. Prefect and MLflow know more, and take seconds to ask."""
KEPT = 50
"""Ended runs of each flow whose records are kept."""
RUNNING, FAILED, KILLED, STOPPED = "Running", "Failed", "Killed", "Stopped"
"""How a run is. Any other word is the name of a normal ending: Completed, Rejected, Partial."""
AWAITING = "AwaitingApproval"
"""The normal ending of a run whose version waits for a person."""
CAPPED = "Capped"
"""The normal ending of a run that came to its cap of dollars: it decided nothing."""
PARTIAL = "Partial"
"""The normal ending of a run that was asked to stop after a stage: it promotes, serves and pushes nothing."""
TAKEN_BACK = "RolledBack"
"""The normal ending of a run whose new version did not pass its canary: the version before it serves."""
SKIPPED = "Skipped"
"""The normal ending of a run that was due while another one worked in the workspace; it is not on record."""
SHORT = (CAPPED, PARTIAL)
"""The normal endings before the last stage: a later run goes on from what these left."""
SILENT = timedelta(hours=1)
"""After so long without a sign a run of another machine is taken for killed; only where no lock tells. A monitor takes
minutes."""
ZERO = Decimal(0)
CONTINUES = "it continues, unless code, data or parameters changed"
"""What a run that was ended does when it is run again."""
BUG = "Bug"
"""The kind of a failure that no error of ours says."""
ASKED_BY = "ORCHESTRA_ASKED_BY"
"""Environment variable: the schedule, trigger or run that asked for this one."""
CARRIED = ("ORCHESTRA_TASK_RUNNER", "ORCHESTRA_CASSETTE")
"""Environment variables that decide how a run works, so that a rerun needs them too."""


def in_short(why: Sequence[str], most: int = 3) -> str:
    """The first reasons of a stage, and how many more there are."""
    return "; ".join(why[:most]) + (f" and {len(why) - most} more" if len(why) > most else "")


class StageRecord(Record):
    """One stage of a run."""

    state: str
    """Running, Failed, unchanged, ran, restored; of promote and deploy, what they decided."""
    began: datetime
    ended: datetime | None = None
    why: tuple[str, ...] = ()
    """Why it ran; empty when nothing had changed."""
    usd: Usd = Decimal(0)
    """Dollars that it booked."""

    @property
    def unfinished(self) -> bool:
        return self.state in (RUNNING, FAILED)


class RunFailure(Record):
    """Why a run failed."""

    kind: str
    """The class of the error, which the runbook has an entry for; Bug, Killed."""
    what: str
    where: str = ""
    fix: str = ""
    """What to do, for a person."""
    stage: str = ""

    @property
    def line(self) -> str:
        """One line: where, what and the fix."""
        return str(OrchestraError(self.what, where=self.where, fix=self.fix))

    @classmethod
    def of(cls, error: BaseException, stage: str = "") -> "RunFailure":
        """The failure that an exception tells of; an error that another process said keeps the kind it had there."""
        if isinstance(error, OrchestraError):
            kind = str(getattr(error, "kind", "") or type(error).__name__)
            return cls(kind=kind, what=one_line(error.what), where=error.where, fix=error.fix, stage=stage)
        # Prefect turns a `kill` during a task into an error of its own, which the library does not import.
        if isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__name__ == "TerminationSignal":
            return cls(kind=STOPPED, what="stopped by hand", fix=f"run it again: {CONTINUES}", stage=stage)
        if type(error).__name__ == "Pause":
            fix = f"resume it there, or run it again: {CONTINUES}"
            return cls(kind=STOPPED, what="suspended in Prefect", fix=fix, stage=stage)
        if type(error).__name__ == "CancelledError":
            what, fix = "its run was suspended or lost its place in Prefect", f"run it again: {CONTINUES}"
            return cls(kind=STOPPED, what=what, fix=fix, stage=stage)
        if isinstance(error, TimeoutError):
            return cls(kind="TimeLimit", what=one_line(str(error)) or "it took too long", stage=stage)
        return cls(kind=BUG, what=one_line(f"{type(error).__name__}: {error}"), stage=stage)


class RunRecord(Record):
    """One flow run."""

    id: str
    name: str
    """Prefect's name of it, for people."""
    flow: str
    began: datetime
    ended: datetime | None = None
    state: str = RUNNING
    message: str = ""
    asked_by: str = ""
    """The schedule or trigger that asked for it; empty: a person."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Of the flow."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Those of `CARRIED` that were set."""
    stages: dict[str, StageRecord] = Field(default_factory=dict)
    """In the order in which they began."""
    failure: RunFailure | None = None
    mlflow_run: str = ""
    host: str = ""
    pid: int = 0
    started: str = ""
    """The kernel's start tick of the process: with the pid it names one process for ever."""
    alone: bool = True
    """Whether it works under the workspace's lock."""

    @field_validator("environment")
    @classmethod
    def _only_carried(cls, found: dict[str, str]) -> dict[str, str]:
        """A backup of others can hold any record, and a rerun sets what it names: PYTHONPATH would run their code."""
        return {name: value for name, value in found.items() if name in CARRIED}

    @property
    def here(self) -> bool:
        """Whether it is of this machine; a container that starts again has another name."""
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether it is under way; one of another machine counts so."""
        return self.ended is None and self.has_process

    @property
    def has_process(self) -> bool:
        """Whether its process runs, also after the run's end; one of another machine counts as running."""
        return not self.here or (alive(self.pid) and started_at(self.pid) == self.started)

    @property
    def elsewhere(self) -> bool:
        """Whether it says that it works under the lock on another machine, which may be a container that is gone."""
        return self.ended is None and self.alone and not self.here

    @property
    def failed(self) -> bool:
        return self.state in (FAILED, KILLED, STOPPED)

    @property
    def stage(self) -> str:
        """The stage that runs or failed; empty when there is none."""
        if self.failure is not None:
            return self.failure.stage
        return next((name for name, one in self.stages.items() if one.state == RUNNING), "")

    def as_of_now(self, root: Path, *, free: bool) -> "RunRecord":
        """The same, but a run that is gone says Killed. `free`: nobody else has the lock that it works under."""
        if self.ended is not None or (self.lives and not (self.elsewhere and free) and not self._silent(root)):
            return self
        stage = self.stage
        failure = RunFailure(kind=KILLED, what="its process was killed", fix=f"run it again: {CONTINUES}", stage=stage)
        update = {"state": KILLED, "message": failure.what, "failure": failure, "ended": self._last_sign(root)}
        return self.model_copy(update=update)

    def _silent(self, root: Path) -> bool:
        """Whether it works elsewhere, not under the lock, which would tell of its end, and long said nothing."""
        return not self.alone and not self.here and datetime.now(UTC) - self._last_sign(root) > SILENT

    def _last_sign(self, root: Path) -> datetime:
        """When it last began or ended a stage, or wrote to the log of the one that ran."""
        signs = [self.began, *(one.ended or one.began for one in self.stages.values())]
        with contextlib.suppress(FileNotFoundError):  # promote and deploy have no log of their own.
            signs.append(datetime.fromtimestamp((root / f".state/logs/{self.stage}.log").stat().st_mtime, UTC))
        return max(signs)


class Note(Protocol):
    """Writes down how a stage ended, and the dollars it booked."""

    def __call__(self, state: str, usd: Decimal = ZERO) -> None: ...


class RunJournal:
    """Writes the record of one run, at each change."""

    def __init__(self, root: Path, record: RunRecord) -> None:
        self.root, self.record = root, record

    @classmethod
    def begin(cls, root: Path, run_id: str, name: str, flow: str, **more: Any) -> "RunJournal":
        """A run of this process; one that is begun again (a retry) has a new record. Old records go."""
        pid = os.getpid()
        record = RunRecord(
            id=run_id,
            name=name,
            flow=flow,
            began=datetime.now(UTC),
            host=socket.gethostname(),
            pid=pid,
            started=started_at(pid) or "",
            environment={key: os.environ[key] for key in CARRIED if key in os.environ},
            **more,
        )
        journal = cls(root, record)
        journal.update()
        _forget_old(root, flow)
        return journal

    def update(self, **changes: Any) -> None:
        """Change fields of the record, and write it."""
        self.record = self.record.model_copy(update=changes)
        save(self.root, self.record)

    def end(self, state: str, message: str = "", failure: RunFailure | None = None) -> None:
        """The run ended; a failure that a stage told already stays as it is."""
        changes = {"state": state, "message": one_line(message), "failure": self.record.failure or failure}
        # A clock that was set back meanwhile may not end it before it began.
        self.update(ended=max(datetime.now(UTC), self.record.began), **changes)

    @contextlib.contextmanager
    def stage(self, name: str, why: tuple[str, ...] = ()) -> Iterator["Note"]:
        """A stage of the run, on record while the block lasts; call what it yields with how the stage ended."""
        began = datetime.now(UTC)

        def note(state: str, usd: Decimal = ZERO, failure: RunFailure | None = None) -> None:
            ended = None if state == RUNNING else max(datetime.now(UTC), began)
            found = StageRecord(state=state, began=began, ended=ended, why=why, usd=usd)
            changes = {} if failure is None else {"failure": failure}
            self.update(stages={**self.record.stages, name: found}, **changes)

        note(RUNNING)
        try:
            yield note
        except BaseException as error:
            note(FAILED, ZERO, RunFailure.of(error, name))
            raise


def save(root: Path, record: RunRecord) -> None:
    """Write a record, whole or not at all."""
    atomic.write_text(root / RUNS / f"{record.id}.json", record.model_dump_json(indent=1) + "\n")


def runs(root: Path) -> list[RunRecord]:
    """Every record, newest first; a run that is gone says Killed. Damaged files are left out."""
    found = list(_on_disk(root))
    free = any(one.elsewhere for one in found) and not locked_elsewhere(root)
    return sorted((one.as_of_now(root, free=free) for one in found), key=lambda one: one.began, reverse=True)


def stale(root: Path, *, alone: bool) -> list[RunRecord]:
    """The runs that are gone and whose record does not say so yet, as Killed. `alone`: the caller has the lock."""
    found = ((one, one.as_of_now(root, free=alone)) for one in _on_disk(root))
    return [now for before, now in found if now.ended != before.ended]


def find(records: list[RunRecord], wanted: str | None) -> RunRecord:
    """The run of that name, or whose id begins so; without one the newest that failed and has no later run of its flow.

    An older failure is history: nobody who types `rerun` means it. Raises `ConfigError` where there is none, or more
    than one.
    """
    if not records:
        raise ConfigError("no run is on record", where=RUNS, fix="orchestra run")
    if wanted is None:
        for one in newest_by_flow(records).values():
            if one.failed or one.state == CAPPED:
                return one
        raise ConfigError("no flow's newest run failed", where=RUNS, fix="name a run: orchestra runs lists them")
    found = [one for one in records if one.name == wanted] or [one for one in records if one.id.startswith(wanted)]
    if len(found) != 1:
        what = f"no run {wanted}" if not found else f"{wanted} is the beginning of {len(found)} ids"
        raise ConfigError(what, where=RUNS, fix="orchestra runs lists them")
    return found[0]


def newest_by_flow(records: list[RunRecord]) -> Mapping[str, RunRecord]:
    """The newest run of each flow, of records newest first."""
    newest: dict[str, RunRecord] = {}
    for one in records:
        newest.setdefault(one.flow, one)
    return newest


def _on_disk(root: Path) -> Iterator[RunRecord]:
    for file in (root / RUNS).glob("*.json"):
        # Written by another version of this program, or removed meanwhile.
        with contextlib.suppress(OSError, UnicodeDecodeError, ValidationError):
            record = RunRecord.model_validate_json(file.read_text(encoding="utf-8"))
            if record.id == file.stem:  # Any other id could lead out of the folder when the record is written.
                yield record


def _forget_old(root: Path, flow: str) -> None:
    ended = [one for one in runs(root) if one.flow == flow and one.ended is not None]
    for one in ended[KEPT:]:
        (root / RUNS / f"{one.id}.json").unlink(missing_ok=True)
