"""`orchestra push` and `pull`: outputs, checkpoints and the registry's database in a store that machines share.

In the store: dvc/ is a DVC remote, models/ holds checkpoints by their hash, state/ MLflow's database and artifacts, and
latest.json, which is written last, names what belongs together: whoever reads it finds all of it.
"""

import argparse
import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestra.config.schema import load_params
from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, DataError, OrchestraError, ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir, hash_file, keep, verify_kept
from orchestra.system.artifacts import CONNECT_S, FIX, READ_S, ask_place, environment, filesystem, store_failure
from orchestra.system.backup import backup, restore
from orchestra.system.environment import quiet
from orchestra.system.storage import ARTIFACTS, MLFLOW, storage_failure
from orchestra.system.workspace import locked
from orchestra.text import one_line
from orchestra.types import Record
from tasks.platform.commands import run_command
from tasks.platform.dvc import LOCK, recover
from tasks.platform.registry import STORE
from tasks.platform.tracking import own_database
from tasks.records.listings import TRUSTED, fetch_folder, fetch_listings, lock_file

LATEST, KNOWN = "latest.json", ".state/storage.json"
PULLING = "pulling "
"""How the file of that name begins while a pull is not at its end."""
WHOLE = ".whole"
"""Ends the name of an object beside a checkpoint whose every file is there."""
STATES = 5
"""Databases that the store keeps, the newest."""
LARGE_MB = 100
"""Megabytes of artifacts here, of an experiment that began before the store, whose upload with each push is told."""
DVC = {"dvc", "dvc_data", "dvc_objects", "dvc_s3"}
"""Whose errors are those of the store, beside those of the libraries that speak to it."""
LOGGERS = ("dvc", "dvc_data", "dvc_objects")
"""What DVC prints through."""
ATTEMPTS = 2
"""Of each upload, around those of the client; five would be minutes before a broken store is named."""


class Latest(Record):
    """What one machine pushed, as latest.json names it."""

    id: str
    """Of this push."""
    made: datetime
    lock: str
    """The text of dvc.lock; empty where no stage ran."""
    state: str = ""
    """SHA-256 of the file in state/; empty where MLflow is a server, which all machines reach."""
    checkpoints: tuple[str, ...] = ()


def push(root: Path, storage: Storage, *, replace: bool = False) -> str:
    """Copy what is not in the store yet, then let latest.json name it; returns one line.

    The caller holds the workspace's lock. Raises `ConfigError` where another machine pushed since this one last pushed
    or pulled, unless `replace`; `ServiceError` of one line for a store that does not answer.
    """
    recover(root)
    with named_errors(storage):
        ask_place(storage.url, storage)
        store = _SharedFolder(storage)
        if not replace:
            store.refuse_newer(_known(root))
        lock = (root / LOCK).read_text(encoding="utf-8") if (root / LOCK).is_file() else ""
        outputs = store.push_outputs(root) if lock else 0
        state, checkpoints, lost = "", [], 0
        if own_database(root) and (root / MLFLOW).is_file():
            kept = atomic.whole_entries(root / STORE)
            checkpoints = [folder.name for folder in kept if store.push_checkpoint(folder)]
            lost = len(kept) - len(checkpoints)
            state = store.push_state(root)
        now = datetime.now(UTC)
        made = Latest(
            id=hashlib.sha256(f"{now}{state}{lock}".encode()).hexdigest()[:16],
            made=now, lock=lock, state=state, checkpoints=tuple(checkpoints),
        )  # fmt: skip
        if not replace:
            # Another machine may have pushed during the uploads. A write on a condition works at Amazon only.
            store.refuse_newer(_known(root))
        store.write(LATEST, made.model_dump_json(indent=1).encode())
        atomic.write_text(root / KNOWN, made.id + "\n")
        store.forget_states(state)
    told = f"{outputs} outputs and {len(checkpoints)} checkpoints are in {storage.url}"
    told += f"; {lost} damaged checkpoints of {STORE} are not" if lost else ""
    mb = sum(file.stat().st_size for file in (root / ARTIFACTS).rglob("*") if file.is_file()) / 1e6
    if state and mb > LARGE_MB:
        told += f"; warning: each push sends all {mb:.0f} MB of {ARTIFACTS}: orchestra gc --runs-older-than 90 --delete"
    return told


def pull(root: Path, storage: Storage, *, replace: bool = False) -> str:
    """Bring back what was pushed last: outputs of stages, checkpoints, MLflow's database; returns one line.

    The caller holds the workspace's lock. Raises `ConfigError` where the workspace has results of its own, unless
    `replace`: then its database goes to `.state/replaced-…`. `DataError` for what is damaged in the store. Where the
    store has nothing newer, the present database stays: nothing tells whether a rollback changed it since the push.
    """
    # The next run would put the lock file of before a kill in the place of the one that is pulled.
    recover(root)
    with named_errors(storage):
        ask_place(storage.url, storage)
        store = _SharedFolder(storage)
        latest = store.latest()
        if latest is None:
            raise DataError(
                "the store is empty: no machine has pushed to it",
                where=storage.url,
                fix="orchestra push, on the other machine",
            )
        known, database = _known(root), bool(latest.state) and (root / MLFLOW).is_file()
        newest = known == latest.id and not replace
        own = (root / LOCK).is_file() and (root / LOCK).read_text(encoding="utf-8") != latest.lock
        own = own or (database and not newest)
        if own and known != PULLING + latest.id and not replace:
            what = "this workspace has results of its own"
            fix = "orchestra push, or orchestra pull --replace: its database goes to .state/replaced-…"
            raise ConfigError(what, where=str(root), fix=fix)
        if not newest:
            # A pull that is killed goes on with the same command, and a push is refused meanwhile.
            atomic.write_text(root / KNOWN, PULLING + latest.id + "\n")
        for digest in latest.checkpoints:
            store.pull_checkpoint(root, digest)
        if latest.state and not (newest and database):
            store.pull_state(root, latest.state)
        if latest.lock:
            with lock_file(root / LOCK, latest.lock):
                store.pull_outputs(root)
        atomic.write_text(root / KNOWN, latest.id + "\n")
    return f"what was pushed on {latest.made:%Y-%m-%d %H:%M} UTC is here: {len(latest.checkpoints)} checkpoints"


class _SharedFolder:
    """The objects below one address."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.url = storage, storage.url.rstrip("/")
        self.files = filesystem(storage)

    def latest(self) -> Latest | None:
        try:
            return Latest.model_validate_json(self.files.cat_file(f"{self.url}/{LATEST}"))
        except FileNotFoundError:
            return None
        except ValidationError:
            raise DataError(
                "is not a list that orchestra push wrote", where=f"{self.url}/{LATEST}", fix="orchestra push --replace"
            ) from None

    def refuse_newer(self, known: str) -> None:
        """Raises `ConfigError` where the last push is another than the one that is known."""
        latest = self.latest()
        if latest is not None and latest.id != known:
            what = f"another machine pushed on {latest.made:%Y-%m-%d %H:%M} UTC"
            raise ConfigError(what, where=self.url, fix="orchestra pull --replace, or orchestra push --replace")

    def write(self, name: str, content: bytes) -> None:
        self.files.pipe_file(f"{self.url}/{name}", content)

    def push_outputs(self, root: Path) -> int:
        """Upload every file of the outputs that is not there; how many.

        Each is looked for by its hash. `dvc push` takes the list of a folder for its contents, but DVC uploads that
        list also where a file failed that an earlier folder has, too: it would never send that file again.
        """
        with self._repo(root) as repo:
            wanted = set().union(*repo.used_objs(remote="shared", push=True).values())
            there = repo.cloud.get_remote_odb("shared", "push")
            there.fs.fs.retries = ATTEMPTS
            sent = repo.cloud.transfer(
                repo.cache.local, there, wanted, shallow=False, hardlink=False, validate_status=_all_known
            )
            if sent.failed:
                raise ServiceError(f"{len(sent.failed)} files failed to upload", where=self.url, fix=FIX)
            return len(sent.transferred)

    def pull_outputs(self, root: Path) -> None:
        from dvc.exceptions import CheckoutError

        try:
            with self._repo(root) as repo:
                fetch_listings(repo, "shared", self.url)
                repo.pull(remote="shared", force=True)
        except CheckoutError:
            raise DataError(
                "files of outputs are not in the store",
                where=self.url,
                fix="orchestra push, on a machine that has them",
            ) from None

    def push_checkpoint(self, folder: Path) -> bool:
        """Upload a kept checkpoint, unless all of it is there; False for one that is damaged here, which stays here."""
        place = f"{self.url}/models/{folder.name}"
        if not self.files.exists(place + WHOLE):
            try:
                verify_kept(folder)
            except DataError:
                return False
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                self.files.put_file(str(file), f"{place}/{file.relative_to(folder).as_posix()}")
            self.files.pipe_file(place + WHOLE, b"")
        return True

    def pull_checkpoint(self, root: Path, digest: str) -> None:
        """Download a checkpoint that is not here, and keep it if it is the one of that hash."""
        store = root / STORE
        if (store / digest).is_dir():
            return
        store.mkdir(parents=True, exist_ok=True)
        place = f"{self.url}/models/{digest}"
        with tempfile.TemporaryDirectory(dir=store, prefix=".download-") as folder:
            found = Path(folder) / "files"
            fetch_folder(self.files, place, found)
            if hash_dir(found) != digest:
                fix = f"delete {place}{WHOLE}; then orchestra push, on a machine that has it whole"
                raise DataError("the checkpoint is damaged in the store", where=place, fix=fix)
            keep(found, store)

    def push_state(self, root: Path) -> str:
        """Upload MLflow's database with its artifacts; the SHA-256 of the file."""
        with tempfile.TemporaryDirectory(dir=root / ".state", prefix=".push-") as folder:
            file = Path(folder) / "state.tar"
            backup(root, file, (MLFLOW,), (ARTIFACTS,), ())
            digest = hash_file(file)
            self.files.put_file(str(file), f"{self.url}/state/{digest}")
        return digest

    def pull_state(self, root: Path, digest: str) -> None:
        atomic.make_folder(root / ".state")
        place = f"{self.url}/state/{digest}"
        with tempfile.TemporaryDirectory(dir=root / ".state", prefix=".pull-") as folder:
            file = Path(folder) / "state.tar"
            self.files.get_file(place, str(file))
            if hash_file(file) != digest:
                raise DataError("the database is damaged in the store", where=place, fix="push again")
            try:
                # Keys and schedules stay with their machine.
                restore(root, file, (MLFLOW, ARTIFACTS))
            except DataError as error:
                raise DataError(error.what, where=place, fix=TRUSTED) from None

    def forget_states(self, newest: str) -> None:
        """Delete all but the last databases."""
        found = self.files.ls(f"{self.url}/state", detail=True) if newest else []
        old = sorted((one for one in found if not one["name"].endswith(newest)), key=lambda one: one["LastModified"])
        for one in old[: max(0, len(old) - STATES + 1)]:
            self.files.rm_file(one["name"])

    @contextlib.contextmanager
    def _repo(self, root: Path) -> Iterator[Any]:
        """DVC with the store as its remote, for this once; of what it logs, the first error joins the one raised."""
        quiet()
        for name, value in environment(self.storage).items():
            os.environ.setdefault(name, value)
        from dvc.repo import Repo

        remote = {"url": f"{self.url}/dvc", "connect_timeout": CONNECT_S, "read_timeout": READ_S, "verify": True}
        if self.storage.endpoint is not None:
            remote["endpointurl"] = self.storage.endpoint
        heard = _Heard()
        try:
            with heard, Repo(str(root), config={"remote": {"shared": remote}}) as repo:
                yield repo
        except Exception as error:
            if not heard.first or isinstance(error, DataError):
                raise
            what = error.what if isinstance(error, OrchestraError) else f"{heard.errors} files failed"
            raise ServiceError(f"{what}: {heard.first}", where=self.url, fix=FIX) from error


class _Heard(logging.Handler):
    """In the place of DVC's handlers, which print a line a file; keeps the first error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first, self.errors = "", 0
        self._before: dict[str, list[logging.Handler]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.first = self.first or one_line(str(cause or record.getMessage()))
        self.errors += 1

    def __enter__(self) -> None:
        import dvc  # Sets its handlers.

        assert dvc
        for name in LOGGERS:
            logger = logging.getLogger(name)
            self._before[name], logger.handlers = logger.handlers, [self]

    def __exit__(self, *_: object) -> None:
        for name, handlers in self._before.items():
            logging.getLogger(name).handlers = handlers


def _all_known(status: Any) -> None:
    """Raises `DataError` for files of outputs that are neither here nor in the store."""
    if status.missing:
        what = f"{len(status.missing)} files of outputs are neither here nor in the store"
        raise DataError(what, where=".dvc/cache", fix="orchestra run makes them again; then orchestra push")


def _known(root: Path) -> str:
    """The push that this workspace made or pulled last; empty where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return (root / KNOWN).read_text(encoding="utf-8").strip()
    return ""


@contextlib.contextmanager
def named_errors(storage: Storage) -> Iterator[None]:
    """Errors of the store, and of the libraries that speak to it, as one line."""
    if not storage.shared:
        raise ConfigError("storage.url is local", where="params.yaml", fix="storage.url: s3://BUCKET/FOLDER")
    try:
        yield
    except Exception as error:
        # Only this machine's files have a name in an error of the system.
        here = isinstance(error, OSError) and error.filename is not None
        failure = (storage_failure(error) if here else None) or store_failure(error, storage.url)
        if failure is None and type(error).__module__.partition(".")[0] in DVC:
            failure = ServiceError(one_line(str(error)) or type(error).__name__, where=storage.url, fix=FIX)
        if failure is None or failure is error:
            raise
        raise failure from error


def main(arguments: list[str]) -> None:
    """Push or pull."""
    parser = argparse.ArgumentParser(prog="python -m tasks.records.shared", description=__doc__)
    parser.add_argument("action", choices=["push", "pull"])
    parser.add_argument("--replace", action="store_true")
    told, root = parser.parse_args(arguments), Path.cwd()
    with locked(root):
        act = push if told.action == "push" else pull
        print(f"{told.action}: {act(root, load_params(root / 'params.yaml').storage, replace=told.replace)}")


if __name__ == "__main__":
    run_command(main)
