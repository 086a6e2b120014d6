"""Failures of the disk and of databases on it, in one line that names them and not the program that met them."""

import contextlib
import errno
import re
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from orchestra.errors import DataError, OrchestraError, ServiceError
from orchestra.files import atomic
from orchestra.system.artifacts import LIBRARIES, store_failure
from orchestra.text import one_line

CLIENTS = frozenset(
    {"mlflow", "sqlalchemy", "psycopg", "psycopg2", "requests", "urllib3", "httpx", "httpx2", "httpcore"}
)
"""Packages whose errors are about a server."""
ROOM = 256 * 2**20
"""Bytes: less free room ends a run before it begins, and so does a limit on the size of a file below it."""
LEAST = 2**20
"""Bytes of room without which hardly any program works."""
BESIDE = 256 * 2**20
"""Bytes of a database whose pages are read beside work: a second. Its writers wait, and MLflow's give up after 20 s."""
COPY, COPY_S = ".check-", 3600.0
"""How the folder of a copy that is read begins, and seconds after which one was left by a killed check."""
LOG_TAIL = 64 * 2**10
"""Bytes of a log that are read for what the disk said."""

UNLIMITED = "ulimit -f unlimited"
FREE_ROOM = "free some room (df -h), then run the same command again"
REASONS = {
    errno.ENOSPC: ("the disk is full", FREE_ROOM),
    errno.EDQUOT: ("the user's share of the disk is used up", FREE_ROOM),
    errno.EFBIG: ("a file may not grow as far as it has to", UNLIMITED),
    errno.EROFS: ("the disk is read-only", "work in a copy on a disk that can be written"),
    errno.EIO: ("the disk cannot read or write", "see what the kernel says: dmesg"),
    errno.EACCES: ("this user may not read or write it", "ls -ld the path; chown or chmod it"),
    errno.EPERM: ("this user may not change it", "ls -ld the path; chown or chmod it"),
    errno.EISDIR: ("it is a folder, and a file is needed", "name a file"),
    errno.EEXIST: ("it is there already, perhaps as a file in place of a folder", "name another path"),
    errno.ENOTDIR: ("a part of the path is a file, and a folder is needed", "name another path"),
    errno.EMFILE: ("this process may open no more files", "ulimit -n 4096"),
    errno.ENFILE: ("this machine may open no more files", "end other programs"),
}
"""What is wrong and what helps, by the system's number."""
OF_A_PATH = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.EEXIST, errno.ENOTDIR)
"""Only with a path do these speak of the disk: sockets, signals and open files have some of them too."""
MLFLOW, PREFECT, GATEWAY = ".state/mlflow.db", ".state/prefect/prefect.db", ".state/gateway.sqlite"
DATABASES = {
    MLFLOW: "the next run begins a new record and registers its model as version 1",
    PREFECT: "the next run begins a new history of flows",
    GATEWAY: "orchestra restore FILE brings the keys back: without one the gateway asks nobody for a key",
}
"""The databases of a workspace, and what happens without one."""
ARTIFACTS = ".state/mlartifacts"
"""Where MLflow's artifacts are without a store of their own."""
RESTORING = ".state/restoring"
"""There while `orchestra restore` changes databases: one that was killed has to be completed first."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
UNWRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, *CLOSED)
SAID = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|database or disk is full"
    r"|disk I/O error|attempt to write a readonly database|database disk image is malformed|file is not a database"
)
"""How the system and SQLite say it in a log."""


def check_storage(root: Path, room: int = ROOM) -> None:
    """Raises `ServiceError` unless the workspace can be written, with `room` bytes free for files of that size."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < room:
        what = f"files may not be larger than {limit / 1e6:.1f} MB here; a run needs {room / 1e6:.0f} MB"
        raise ServiceError(what, where="the limit on the size of files", fix=UNLIMITED)
    free = shutil.disk_usage(root).free
    if free < room:
        what = f"{free / 1e6:.0f} MB are free; a run needs {room / 1e6:.0f} MB"
        raise ServiceError(what, where=f"the disk of {root}", fix=FREE_ROOM)
    with storage_named(root):
        atomic.try_writing(root / ".state")


def opened(file: Path, mode: Literal["ro", "rw"], wait_s: float = 5.0) -> contextlib.closing[sqlite3.Connection]:
    """An SQLite file that is there, whatever its path holds, closed at the end; waits so long for who has it locked."""
    return contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=wait_s))


def check_restored(root: Path, name: str) -> None:
    """Raises `DataError` where a restore was ended before that database, and all else, was in its place."""
    if (root / RESTORING).exists():
        what = "orchestra restore was ended before all files were in their places"
        raise DataError(what, where=name, fix="orchestra restore FILE again")


def check_database(root: Path, name: str, *, beside: bool = False) -> bool:
    """Raises `DataError` of one line where a database of `DATABASES` is damaged or half restored; none is whole.

    Every page is read. Meanwhile nobody can write, or the write-ahead log grows. `beside` work of others, of a file
    beyond `BESIDE` only size and schema are. Returns whether every page was. Contents that changed within a well-formed
    page cannot be found out.
    """
    file = root / name
    check_restored(root, name)
    if not file.is_file():
        return True
    check = "quick_check" if beside else "integrity_check"
    try:
        complete = not beside or file.stat().st_size <= BESIDE
        # Opened to be written: what a killed writer left behind is rolled back first, as by any other opening.
        with opened(file, "rw", 60) as db:
            db.execute("BEGIN")
            # A file that is shorter than its header says is refused here.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            problem = str(db.execute(f"PRAGMA {check}(1)").fetchone()[0]) if complete else "ok"
            (page,) = db.execute("PRAGMA page_size").fetchone()
            # SQLite reads a page that is cut off as if zeros followed.
            if file.stat().st_size % page:
                problem = "its last page is cut off"
    except sqlite3.DatabaseError as error:
        raise database_failure(error, name) from None
    if problem != "ok":
        raise _damaged(problem.splitlines()[-1], name)
    return complete


def snapshot(database: Path, copy: Path) -> None:
    """The database as it is at one moment, whoever writes to it: they wait for the copying at most."""
    with opened(database, "ro", 60) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def check_used_database(root: Path, name: str) -> bool:
    """`check_database` of one that others write to meanwhile: the pages of a copy are read.

    Returns whether every page was: not where no copy can be made.
    """
    file, state = root / name, root / ".state"
    check_database(root, name, beside=True)
    if not file.is_file():
        return True
    for left in state.glob(f"{COPY}*"):
        # Of a check that was killed.
        if time.time() - left.stat().st_mtime > COPY_S:
            shutil.rmtree(left, ignore_errors=True)
    log = file.with_name(f"{file.name}-wal")
    size = sum(one.stat().st_size for one in (file, log) if one.is_file())
    if shutil.disk_usage(root).free < size + ROOM:
        return False
    try:
        with tempfile.TemporaryDirectory(dir=state, prefix=COPY) as folder:
            (copy := Path(folder) / name).parent.mkdir(parents=True)
            snapshot(file, copy)
            return check_database(Path(folder), name)
    except OSError:  # A disk that is full or read-only says nothing of the database.
        return False
    except sqlite3.DatabaseError as error:
        if _primary(error) in UNWRITTEN:
            return False
        raise database_failure(error, name) from None


def database_failure(error: sqlite3.Error, where: str) -> OrchestraError:
    """The one line for a database that cannot be used; `where` is its path, of which none is ever to be deleted."""
    code = _primary(error)
    if code in DAMAGED:
        return _damaged(str(error), where)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return ServiceError("another process has the database locked", where=where, fix="try again; orchestra status")
    if code in CLOSED:
        what, fix = f"the database cannot be opened to be written: {error}", f"ls -ld {where}* and its folder"
        return ServiceError(what, where=where, fix=f"{fix}; chown or chmod them")
    fix = FREE_ROOM if code in UNWRITTEN else "orchestra doctor"
    return ServiceError(f"the database cannot be used: {error}", where=where, fix=fix)


def _damaged(problem: str, where: str) -> DataError:
    what, aside = f"the database is damaged: {problem}", f"mkdir -p .state/damaged && mv {where}* .state/damaged/"
    then = next((follows for name, follows in DATABASES.items() if where.endswith(name)), "orchestra doctor")
    return DataError(what, where=where, fix=f"{aside}; then {then}")


@contextlib.contextmanager
def storage_named(root: Path | None = None, log: Path | None = None) -> Iterator[None]:
    """Raise an error whose cause is the disk or a database again, as an `OrchestraError` of one line."""
    try:
        yield
    except OrchestraError:
        raise
    except Exception as error:
        failure = storage_failure(error, root, log) or _client_failure(error)
        if failure is None:
            raise
        # Not `from error`: what a library says may hold the password of its address.
        raise failure from None


def _client_failure(error: Exception) -> OrchestraError | None:
    """The one line for what a client of a server raised: MLflow's, a database's, HTTP's."""
    if type(error).__module__.partition(".")[0] not in CLIENTS:
        return None
    what = f"{type(error).__name__}: {one_line(str(error))[:400]}"
    return ServiceError(what, where="a server that this command uses", fix="orchestra doctor; check its address")


def storage_failure(error: BaseException, root: Path | None = None, log: Path | None = None) -> OrchestraError | None:
    """The one line for an error that the disk, a database or the store on S3 began; None where none of them did.

    SQLite does not say why it cannot write: with `root`, the workspace is tried. Nor does a server that answers with a
    failure: with `log`, where it writes, the workspace is tried and the log is read.
    """
    for cause in _chain(error):
        if isinstance(cause, OSError):
            what, fix = REASONS.get(cause.errno or 0, ("", ""))
            if what and (cause.filename is not None or cause.errno not in OF_A_PATH):
                # A rename has two paths. The second one is the user's, the first a partial file's.
                where = cause.filename2 or cause.filename or root or "the disk"
                return ServiceError(what, where=str(where), fix=fix)
        elif isinstance(cause, sqlite3.DatabaseError) and _primary(cause) in DAMAGED:
            where = "a database in .state"
            return DataError(f"it is damaged: {cause}", where=where, fix="orchestra doctor says which one")
        elif isinstance(cause, sqlite3.DatabaseError) and _primary(cause) in UNWRITTEN:
            closed = "ls -ld .state .state/*; chown or chmod what this user may not write"
            fix = closed if _primary(cause) in CLOSED else FREE_ROOM
            return _tried(root) or ServiceError(f"cannot be written: {cause}", where="a database", fix=fix)
        elif type(cause).__module__.partition(".")[0] in LIBRARIES:
            return store_failure(cause, "the store of storage.url")
    return None if log is None else _tried(root, log)


def blame_storage(root: Path, log: Path) -> None:
    """Raises `OrchestraError` where the disk is why a program failed: now, or by what the end of its log says."""
    check_storage(root, LEAST)
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL))
        if found := SAID.findall(file.read().decode("utf-8", "replace")):
            raise ServiceError(f"the disk failed: {found[-1]}", where=str(log), fix=FREE_ROOM)


def _tried(root: Path | None, log: Path | None = None) -> OrchestraError | None:
    try:
        if root is not None and log is not None:
            blame_storage(root, log)
        elif root is not None:
            check_storage(root)
    except OrchestraError as failure:
        return failure
    return None


def _primary(error: sqlite3.Error) -> int:
    """SQLite's code without its extension."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, from the last to the first."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        yield following
        following = following.__cause__ or following.__context__
