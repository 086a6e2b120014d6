"""Backup of the data that a workspace cannot make again: databases, registered checkpoints, artifacts, records."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import ValidationError

from orchestra import __version__
from orchestra.errors import DataError, ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_file
from orchestra.system.processes import Service, services
from orchestra.system.storage import (
    ARTIFACTS,
    DATABASES,
    GATEWAY,
    MLFLOW,
    PREFECT,
    RESTORING,
    check_database,
    database_failure,
    opened,
    snapshot,
)
from orchestra.system.workspace import locked_elsewhere
from orchestra.types import Record

FOLDERS = (
    *(".state/models", ARTIFACTS, ".state/runs", ".state/retraining", ".state/ledger"),
    *(".state/webhooks", ".state/judged", ".state/decisions", ".state/evidence"),
)
"""What the databases speak of: checkpoints, artifacts, records, the key of webhooks' secrets, verdicts that were paid
for, decision pages and the evidence behind them. A restore adds and removes nothing."""
ADDED = (f"{FOLDERS[0]}/", f"{ARTIFACTS}/")
"""What a restore only adds to: each file is of one checkpoint or run."""
FILES = (".state/operator.key", ".state/last_run.json")
"""The key of this workspace's own commands, which belongs to the gateway's database; the last run's summary."""
EVERYTHING = (*DATABASES, *FOLDERS, *FILES)
"""What a backup may hold; of folders all that is below them."""
ANOTHER = "take another backup"
CONTENTS = "contents.json"
"""The last file of a backup: without it the backup was cut off."""
WRITERS = {MLFLOW: ("mlflow",), PREFECT: ("prefect", "worker"), GATEWAY: ("gateway", "gateway-old", "gateway-ending")}
"""Servers that have a database open."""
PLACES = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "model_versions": ("source", "storage_location"),
    "logged_models": ("artifact_location",),
}
"""Columns of MLflow's database that hold the workspace's own path."""
UNPACKED = ".restore-"
"""How the name of a folder begins in which a backup is unpacked."""
MOST_CONTENTS = 64 * 2**20
"""Bytes that the list of contents may have."""


class BackupContents(Record):
    """What a backup holds."""

    made: datetime
    version: str
    """Of the program."""
    root: str
    """The workspace that it was made of: its path stands in MLflow's database."""
    files: dict[str, str]
    """SHA-256 by path."""

    @property
    def line(self) -> str:
        databases = [name for name in DATABASES if name in self.files]
        models = {name.split("/")[2] for name in self.files if name.startswith(f"{FOLDERS[0]}/")}
        return f"{', '.join(databases) or 'no database'}, {len(models)} checkpoints, {len(self.files)} files"


def backup(
    root: Path,
    target: Path,
    databases: Sequence[str] = tuple(DATABASES),
    folders: Sequence[str] = FOLDERS,
    files: Sequence[str] = FILES,
    say: Callable[[str], object] = str,
) -> BackupContents:
    """Write a tar file of the workspace's state, whole or not at all, also while servers and runs work.

    Each database is copied at one moment, before the files that it speaks of. Only its user may read the backup, since
    Prefect keeps addresses of webhooks in its database. `say` is told how far it is. Raises `DataError` where there is
    nothing to keep.
    """
    hashes: dict[str, str] = {}
    if not any((root / name).is_file() for name in databases):
        what = "neither MLflow, Prefect nor the gateway has a database here"
        raise DataError(what, where=str(root / ".state"), fix="orchestra run")
    with (
        atomic.whole_file(target, private=True) as partial,
        atomic.scratch_folder(target) as folder,
        tarfile.open(partial, "w") as archive,
    ):
        for name in databases:
            if (root / name).is_file():
                say(f"backup: {name}")
                check_database(root, name, beside=True)
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                snapshot(root / name, copy)
                check_database(folder, name)  # Of the copy, since writers of the other would have to wait.
                copy.chmod(stat.S_IMODE((root / name).stat().st_mode))
                hashes[name] = _add(archive, copy, name)
        every = list(_files(root, folders, files))
        for number, file in enumerate(every):
            say(f"backup: {number}/{len(every)} files ({100 * number // len(every)}%)")
            name = file.relative_to(root).as_posix()
            with contextlib.suppress(FileNotFoundError):  # Removed since it was listed.
                hashes[name] = _add(archive, file, name)
        contents = BackupContents(made=datetime.now(UTC), version=__version__, root=str(root.resolve()), files=hashes)
        text = contents.model_dump_json(indent=1).encode()
        entry = tarfile.TarInfo(CONTENTS)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return contents


def restore(
    root: Path,
    source: Path,
    allowed: Sequence[str] = EVERYTHING,
    by_hand: Callable[[Path], Sequence[Service]] = lambda _root: (),
    say: Callable[[str], object] = str,
) -> BackupContents:
    """Bring a backup back, whole or not at all; the caller holds the workspace's lock. `allowed`: of `EVERYTHING`;
    `by_hand`: finds the running gateways that no release started, for a backup with the gateway's database.

    Everything is unpacked and checked first. The databases that were here go to `.state/replaced-…`. A restore that is
    killed while files change places is named by whatever opens a database next; the same command completes it. Raises
    `ServiceError` while a server has a database open, `DataError` for what is no whole backup or holds anything else.
    """
    state = root / ".state"
    atomic.make_folder(state)
    for left in state.glob(f"{UNPACKED}*"):
        shutil.rmtree(left)  # Of a restore that was killed.
    with tempfile.TemporaryDirectory(dir=state, prefix=UNPACKED) as folder:
        unpacked = Path(folder)
        say("restore: unpacking and checking every file")
        contents = _unpack(source, unpacked, allowed)
        writers = {name for database in contents.files for name in WRITERS.get(database, ())}
        if running := [service.name for service in services(root) if service.name in writers]:
            fix = f"orchestra stop {' '.join(running)}"
            raise ServiceError(f"{' and '.join(running)} runs", where="restore", fix=fix)
        for service in by_hand(root) if GATEWAY in contents.files else ():
            what, fix = f"the gateway at {service.url} runs", f"end it as it was started (process {service.pid})"
            raise ServiceError(what, where="restore", fix=fix)
        for name in DATABASES:
            say(f"restore: {name}")
            check_database(unpacked, name)
        for name in (GATEWAY, MLFLOW):
            if (unpacked / name).is_file():
                _check_schema(unpacked / name, source)
        if (unpacked / GATEWAY).is_file():
            _keep_revoked(root / GATEWAY, unpacked / GATEWAY, source)
        if (unpacked / MLFLOW).is_file():
            _move_places(unpacked / MLFLOW, contents.root, str(root.resolve()))
        for name in contents.files:  # Where a disk is full, it ends here, and nothing was replaced.
            if name.startswith(ADDED):
                atomic.move(unpacked / name, root / name)
        atomic.write_text(root / RESTORING, "")  # Until all of it is in its place.
        for name in contents.files:
            if name not in DATABASES and not name.startswith(ADDED):
                atomic.move(unpacked / name, root / name)
        _exchange(root, unpacked, [name for name in DATABASES if name in contents.files])
        (root / RESTORING).unlink()
    return contents


def _exchange(root: Path, unpacked: Path, names: list[str]) -> None:
    """Put the databases in their places; those that were there go aside."""
    aside = root / ".state" / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for name in names:
        place = root / name
        # SQLite's journals belong to the file they were written for.
        for old in sorted(place.parent.glob(f"{place.name}*")):
            atomic.move(old, aside / old.name)
        atomic.move(unpacked / name, place)


def _files(root: Path, folders: Sequence[str], files: Sequence[str]) -> Iterator[Path]:
    yield from (root / name for name in files if (root / name).is_file())
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(root / folder).parts)
            if file.is_file() and not file.is_symlink() and not hidden:
                yield file


class _Hashed:
    """A file that is read once: to be copied, and to be hashed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self.digest.update(part)
        return part


def _add(archive: tarfile.TarFile, file: Path, name: str) -> str:
    """Add a file; returns its SHA-256."""
    with file.open("rb") as opened:
        entry = tarfile.TarInfo(name)
        found = os.fstat(opened.fileno())
        entry.size, entry.mtime, entry.mode = found.st_size, int(found.st_mtime), stat.S_IMODE(found.st_mode)
        hashed = _Hashed(opened)
        archive.addfile(entry, hashed)
    return hashed.digest.hexdigest()


def _unpack(source: Path, folder: Path, allowed: Sequence[str]) -> BackupContents:
    """Unpack a backup and check every file against its list; nothing of it can leave the folder."""
    if source.is_dir() or not source.exists():
        what = "it is a folder and no backup" if source.is_dir() else "no such file"
        raise DataError(what, where=str(source), fix="name a file that orchestra backup wrote")
    try:
        with tarfile.open(source, "r:") as archive:
            for entry in archive:
                if entry.name != CONTENTS:
                    _check_name(entry.name, source, allowed)
                _take(archive, entry, folder, source)
        listed = folder / CONTENTS
        if listed.stat().st_size > MOST_CONTENTS:
            raise DataError("its list of contents is too long", where=str(source), fix=ANOTHER)
        contents = BackupContents.model_validate(json.loads(listed.read_bytes()))
    except FileNotFoundError:
        what = "it is cut off: its list of contents is missing"
        raise DataError(what, where=str(source), fix=ANOTHER) from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        what = f"it holds a file where it also holds a folder: {type(error).__name__}"
        raise DataError(what, where=str(source), fix=ANOTHER) from None
    except (tarfile.TarError, ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"it is no whole backup: {type(error).__name__}", where=str(source), fix=ANOTHER) from None
    for name, digest in contents.files.items():
        _check_name(name, source, allowed)
        file = folder / name
        if not file.is_file() or hash_file(file) != digest:
            raise DataError(f"{name} in it is damaged", where=str(source), fix=ANOTHER)
    return contents


def _take(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path, source: Path) -> None:
    """Unpack one file. `extractall` would need Python 3.11.4 to keep links and foreign paths out."""
    # A sparse file of a few bytes would be unpacked to any size.
    held = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
    if held is None:
        raise DataError(f"it holds {entry.name}, which is no file", where=str(source), fix=ANOTHER)
    file = folder / entry.name
    file.parent.mkdir(parents=True, exist_ok=True)
    with held, file.open("wb") as written:
        shutil.copyfileobj(held, written)
    private = entry.name in (*DATABASES, *FILES) or entry.name.startswith(".state/webhooks/")
    file.chmod(0o600 if private else entry.mode & 0o644 | 0o600)  # Keys stay private, whatever the archive says.
    os.utime(file, (entry.mtime, entry.mtime))


def _check_name(name: str, source: Path, allowed: Sequence[str]) -> None:
    """Refuse a path that is not among those that are allowed."""
    known = name in allowed or name.startswith(tuple(f"{one}/" for one in FOLDERS if one in allowed))
    odd = (
        name != Path(name).as_posix()
        or name in FOLDERS
        or any(len(os.fsencode(part)) > 255 for part in name.split("/"))
    )
    if not known or odd or ".." in Path(name).parts or not name.isprintable():
        whose = "no backup does" if tuple(allowed) == EVERYTHING else "no push sends"
        raise DataError(f"it holds {name}, which {whose}", where=str(source), fix=ANOTHER)


def _check_schema(database: Path, source: Path) -> None:
    """Refuse what would run at a change: a trigger could undo a revocation or never end, as a view could. MLflow's own
    trigger guards its secrets."""
    query = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view') AND tbl_name != 'secrets'"
    with opened(database, "ro") as db:
        found = db.execute(query).fetchone()
    if found is not None:
        raise DataError(f"a database in it has the {found[0]} {found[1]}", where=str(source), fix=ANOTHER)


def _move_places(database: Path, old: str, new: str) -> None:
    """Let MLflow's database speak of this workspace's folder, where the backup was made in another."""
    if old == new:
        return
    with opened(database, "rw", 60) as db, db:
        for table, columns in PLACES.items():
            there = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            for column in there.intersection(columns):
                for before, after in ((Path(old).as_uri(), Path(new).as_uri()), (old, new)):
                    db.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                        (after, len(before) + 1, len(before) + 1, f"{before}/"),
                    )


def adapt_places(root: Path) -> None:
    """Let the MLflow database of a workspace that was moved or copied speak of its present folder.

    Artifacts of its runs that lie only in the old folder are copied. Nothing is done beside a run of another process.
    """
    database, here = root / MLFLOW, root.resolve()
    if not database.is_file() or locked_elsewhere(root):
        return
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE 'file://%/' || ?"
    try:
        with opened(database, "ro", 60) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone() is None:
                return  # MLflow did not fill it yet.
            places = [Path(url2pathname(urlsplit(place).path)) for (place,) in db.execute(query, (ARTIFACTS,))]
            # A folder with two names, as a link makes it, is no other one; one that nobody may read is as if gone.
            foreign = [one for one in places if not (os.path.isdir(one.parents[1]) and one.parents[1].samefile(here))]
            if not foreign:
                return
            runs = [run for (run,) in db.execute("SELECT run_uuid FROM runs WHERE run_uuid NOT LIKE '%/%'")]
        for place in foreign:
            for run in runs:
                if os.path.isdir(place / run) and not (here / ARTIFACTS / run).exists():
                    with atomic.whole_folder(here / ARTIFACTS / run) as copy:
                        shutil.copytree(place / run, copy, dirs_exist_ok=True)
            _move_places(database, str(place.parents[1]), str(here))
    except sqlite3.DatabaseError as error:
        raise database_failure(error, MLFLOW) from None


def _keep_revoked(present: Path, restored: Path, source: Path) -> None:
    """Let no API key that was revoked since the backup be valid again; raises `DataError` where the restored table does
    not take that."""
    revoked: list[tuple[float, str]] = []
    # A damaged one is why it is restored.
    with contextlib.suppress(sqlite3.DatabaseError), opened(present, "ro") as db:
        revoked = db.execute("SELECT revoked, id FROM keys WHERE revoked IS NOT NULL").fetchall()
    with contextlib.suppress(sqlite3.DatabaseError), opened(restored, "rw") as db, db:
        db.executemany("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", revoked)
        valid = {key for (key,) in db.execute("SELECT id FROM keys WHERE revoked IS NULL")}
        if valid.isdisjoint(key for _, key in revoked):
            return
    if revoked:
        raise DataError("its table of API keys takes no revocation", where=str(source), fix=ANOTHER)
