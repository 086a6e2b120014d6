"""`orchestra push` and `pull`: outputs, checkpoints and the registry's database in a store that machines share.

In the store: dvc/ is a DVC remote, models/ holds checkpoints by their hash, state/ MLflow's database and artifacts, and
latest.json, which is written last, names what belongs together: whoever reads it finds all of it.
"""

import argparse
import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestra.config.schema import load_params
from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir, hash_file, keep
from orchestra.system.artifacts import CONNECT_S, FIX, READ_S, filesystem, store_failure
from orchestra.system.backup import backup, restore
from orchestra.system.environment import quiet
from orchestra.system.storage import MLFLOW
from orchestra.system.workspace import locked
from orchestra.text import one_line
from orchestra.types import Record
from tasks.platform.commands import run_command
from tasks.platform.registry import STORE
from tasks.platform.tracking import own_database

LATEST, LOCK, KNOWN = "latest.json", "dvc.lock", ".state/storage.json"
PULLING = "pulling "
"""How the file of that name begins while a pull is not at its end."""
WHOLE = ".whole"
"""Ends the name of an object beside a checkpoint whose every file is there."""
STATES = 5
"""Databases that the store keeps, the newest."""
DVC = {"dvc", "dvc_data", "dvc_objects", "dvc_s3"}
"""Whose errors are those of the store, beside those of the libraries that speak to it."""


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

    Raises `ConfigError` where another machine pushed since this one last pushed or pulled, unless `replace`;
    `ServiceError` of one line for a store that does not answer.
    """
    with _named(storage):
        store = _SharedFolder(storage)
        before = store.latest()
        if before is not None and before.id != _known(root) and not replace:
            what = f"another machine pushed on {before.made:%Y-%m-%d %H:%M} UTC"
            raise ConfigError(what, where=storage.url, fix="orchestra pull --replace, or orchestra push --replace")
        lock = (root / LOCK).read_text(encoding="utf-8") if (root / LOCK).is_file() else ""
        outputs = store.push_outputs(root) if lock else 0
        state, checkpoints = "", []
        if own_database(root) and (root / MLFLOW).is_file():
            checkpoints = [store.push_checkpoint(folder) for folder in atomic.whole_entries(root / STORE)]
            state = store.push_state(root)
        now = datetime.now(UTC)
        made = Latest(
            id=hashlib.sha256(f"{now}{state}{lock}".encode()).hexdigest()[:16],
            made=now, lock=lock, state=state, checkpoints=tuple(checkpoints),
        )  # fmt: skip
        store.write(LATEST, made.model_dump_json(indent=1).encode())
        atomic.write_text(root / KNOWN, made.id + "\n")
        store.forget_states(state)
    return f"{outputs} outputs and {len(checkpoints)} checkpoints are in {storage.url}"


def pull(root: Path, storage: Storage, *, replace: bool = False) -> str:
    """Bring back what was pushed last: outputs of stages, checkpoints, MLflow's database; returns one line.

    The caller holds the workspace's lock. Raises `ConfigError` where the workspace has results of its own, unless
    `replace`: then its database goes to `.state/replaced-…`. `DataError` for what is damaged in the store.
    """
    with _named(storage):
        store = _SharedFolder(storage)
        latest = store.latest()
        if latest is None:
            raise DataError(
                "the store is empty: no machine has pushed to it",
                where=storage.url,
                fix="orchestra push, on the other machine",
            )
        own = (root / LOCK).is_file() and (root / LOCK).read_text(encoding="utf-8") != latest.lock
        own = own or bool(latest.state and (root / MLFLOW).is_file())
        if own and _known(root) not in (latest.id, PULLING + latest.id) and not replace:
            what = "this workspace has results of its own"
            raise ConfigError(
                what, where=str(root), fix="orchestra pull --replace: its database goes to .state/replaced-…"
            )
        # One that is killed goes on with the same command, and pushes nothing meanwhile.
        atomic.write_text(root / KNOWN, PULLING + latest.id + "\n")
        for digest in latest.checkpoints:
            store.pull_checkpoint(root, digest)
        if latest.state:
            store.pull_state(root, latest.state)
        if latest.lock:
            atomic.write_text(root / LOCK, latest.lock)
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

    def write(self, name: str, content: bytes) -> None:
        self.files.pipe_file(f"{self.url}/{name}", content)

    def push_outputs(self, root: Path) -> int:
        with self._repo(root) as repo:
            return int(repo.push(remote="shared"))

    def pull_outputs(self, root: Path) -> None:
        with self._repo(root) as repo:
            repo.pull(remote="shared", force=True)

    def push_checkpoint(self, folder: Path) -> str:
        """Upload a kept checkpoint, unless all of it is there; its hash."""
        place = f"{self.url}/models/{folder.name}"
        if not self.files.exists(place + WHOLE):
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                self.files.put_file(str(file), f"{place}/{file.relative_to(folder).as_posix()}")
            self.files.pipe_file(place + WHOLE, b"")
        return folder.name

    def pull_checkpoint(self, root: Path, digest: str) -> None:
        """Download a checkpoint that is not here, and keep it if it is the one of that hash."""
        store = root / STORE
        if (store / digest).is_dir():
            return
        store.mkdir(parents=True, exist_ok=True)
        place = f"{self.url}/models/{digest}"
        with tempfile.TemporaryDirectory(dir=store, prefix=".download-") as folder:
            found = Path(folder) / "files"
            self.files.get(place, str(found), recursive=True)
            if hash_dir(found) != digest:
                raise DataError(
                    "the checkpoint is damaged in the store", where=place, fix=f"delete {place}{WHOLE}; push"
                )
            keep(found, store)

    def push_state(self, root: Path) -> str:
        """Upload MLflow's database with its artifacts; the SHA-256 of the file."""
        with tempfile.TemporaryDirectory(dir=root / ".state", prefix=".push-") as folder:
            file = Path(folder) / "state.tar"
            backup(root, file, (MLFLOW,), (".state/mlartifacts",), ())
            digest = hash_file(file)
            self.files.put_file(str(file), f"{self.url}/state/{digest}")
        return digest

    def pull_state(self, root: Path, digest: str) -> None:
        (root / ".state").mkdir(exist_ok=True)
        place = f"{self.url}/state/{digest}"
        with tempfile.TemporaryDirectory(dir=root / ".state", prefix=".pull-") as folder:
            file = Path(folder) / "state.tar"
            self.files.get_file(place, str(file))
            if hash_file(file) != digest:
                raise DataError("the database is damaged in the store", where=place, fix="push again")
            restore(root, file)

    def forget_states(self, newest: str) -> None:
        """Delete all but the last databases."""
        found = self.files.ls(f"{self.url}/state", detail=True) if newest else []
        old = sorted((one for one in found if not one["name"].endswith(newest)), key=lambda one: one["LastModified"])
        for one in old[: max(0, len(old) - STATES + 1)]:
            self.files.rm_file(one["name"])

    def _repo(self, root: Path) -> Any:
        """DVC with the store as its remote, for this once."""
        quiet()
        from dvc.repo import Repo

        remote = {"url": f"{self.url}/dvc", "connect_timeout": CONNECT_S, "read_timeout": READ_S, "verify": True}
        if self.storage.endpoint is not None:
            remote["endpointurl"] = self.storage.endpoint
        return Repo(str(root), config={"remote": {"shared": remote}})


def _known(root: Path) -> str:
    """The push that this workspace made or pulled last; empty where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return (root / KNOWN).read_text(encoding="utf-8").strip()
    return ""


@contextlib.contextmanager
def _named(storage: Storage) -> Iterator[None]:
    """Errors of the store, and of the libraries that speak to it, as one line."""
    if not storage.shared:
        raise ConfigError("storage.url is local", where="params.yaml", fix="storage.url: s3://BUCKET/FOLDER")
    try:
        yield
    except Exception as error:
        failure = store_failure(error, storage.url)
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
