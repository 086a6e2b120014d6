"""A disk that fails, and databases that are damaged: one line that names them, whatever the program was doing."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestra.cli import doctor
from orchestra.errors import DataError, OrchestraError, ServiceError
from orchestra.files import atomic
from orchestra.system import backup, servers, storage
from orchestra.system.storage import (
    COPY_S,
    DATABASES,
    MLFLOW,
    REASONS,
    blame_storage,
    check_database,
    check_storage,
    check_used_database,
    storage_failure,
    storage_named,
)
from tasks.platform.registry import Registry
from tasks.platform.tracking import connect

ROOT = Path(__file__).parents[3]
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]


def can_mount() -> bool:
    try:
        done = subprocess.run([*OWN_MOUNTS, "mount -t tmpfs none /mnt"], capture_output=True, timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="this user may mount nothing, not even for itself")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error, of which there is one line; before it a flow says at most that it starts."""
    said = (done.stdout + done.stderr).strip()
    lines = [line for line in said.splitlines() if not line.endswith(": starting")]
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), said
    return lines[0]


def flow(folder: Path, before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A flow with mounts and limits of its own, which `before` changes."""
    command = f'{before} && cd "$1" && shift && exec "$@"'
    words = [*OWN_MOUNTS, command, "-", str(folder), sys.executable, "-m", "flows", *arguments]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@needs_mounts
@pytest.mark.parametrize("name", ["retrain", "release", "monitor"])
def test_a_read_only_workspace_is_one_line(workspace: Path, name: str) -> None:
    before = f"mount --bind {workspace} {workspace} && mount -o remount,bind,ro {workspace}"
    assert "the disk is read-only" in one_line(flow(workspace, before, name))


@needs_mounts
def test_a_full_disk_is_blamed_before_the_run(workspace: Path) -> None:
    small = f"mount -t tmpfs -o size=2m none {workspace} && cp {ROOT}/params.yaml {ROOT}/dvc.yaml {workspace}"
    said = one_line(flow(workspace, small, "retrain"))
    assert "2 MB are free; a run needs 268 MB" in said and "df -h" in said


@pytest.mark.parametrize("name", ["retrain", "benchmark"])
def test_a_limit_on_the_size_of_files_is_blamed(workspace: Path, name: str) -> None:
    more = ["--benchmark", "own", "--model", "golden"] if name == "benchmark" else []
    words = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "-", sys.executable, "-m", "flows", name, *more]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(workspace)}
    done = subprocess.run(words, cwd=workspace, env=env, capture_output=True, text=True, timeout=120, check=False)
    said = one_line(done)
    assert "files may not be larger than 1.0 MB" in said and "ulimit -f unlimited" in said


def test_a_workspace_that_takes_files_is_left_as_it_was(tmp_path: Path) -> None:
    check_storage(tmp_path)
    assert [file.name for file in tmp_path.rglob("*")] == [".state"]


def test_several_may_look_at_the_same_workspace_at_once(tmp_path: Path) -> None:
    """A monitor and a retraining whose schedules meet at a full hour do."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check_storage, [tmp_path] * 200))


@pytest.mark.parametrize("code", REASONS)
def test_each_failure_of_the_disk_is_one_line(code: int, tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as caught, storage_named(tmp_path):
        try:
            raise OSError(code, "as the system says", str(tmp_path / "x"))
        except OSError as error:
            raise RuntimeError("what a library makes of it") from error
    line = str(caught.value)
    assert REASONS[code][0] in line and "x" in line and len(line.splitlines()) == 1


def test_a_folder_where_a_file_is_needed_is_named_and_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ServiceError, match=r"folder: it is a folder, and a file is needed") as caught, storage_named():
        atomic.write_text(tmp_path / "folder", "text")
    assert "partial" not in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(ServiceError, match="a part of the path is a file"), storage_named():
        (tmp_path / "file/below").read_text(encoding="utf-8")


def test_what_the_disk_did_not_begin_stays_as_it_is() -> None:
    for error in (ValueError("x"), OSError(errno.EACCES, "a port"), ConnectionError(), sqlite3.OperationalError("no")):
        assert storage_failure(error) is None
        with pytest.raises(type(error)), storage_named():
            raise error


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert storage_failure(one) is None


def test_a_database_that_cannot_grow_blames_the_room(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as db, pytest.raises(OrchestraError, match="full"):
        db.execute("CREATE TABLE t (x)")
        db.execute("PRAGMA max_page_count = 2")
        with storage_named(tmp_path):
            db.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 100)


@pytest.mark.parametrize(
    "said", ["OSError: [Errno 28] No space left on device", "sqlite3.OperationalError: database or disk is full"]
)
def test_a_log_that_speaks_of_the_disk_is_believed(tmp_path: Path, said: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"starting\n{said}\nstopping\n")
    with pytest.raises(ServiceError, match="the disk failed"):
        blame_storage(tmp_path, log)
    log.write_text("starting\nstopping\n")
    blame_storage(tmp_path, log)
    blame_storage(tmp_path, tmp_path / "none.log")


def test_an_answer_that_is_a_failure_is_looked_up_in_the_server_s_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("sqlite3.OperationalError: disk I/O error\n")
    with pytest.raises(ServiceError, match="the disk failed: disk I/O error"), storage_named(tmp_path, log):
        raise RuntimeError("500 Internal Server Error")
    log.write_text("an ordinary bug\n")
    with pytest.raises(RuntimeError), storage_named(tmp_path, log):
        raise RuntimeError("500 Internal Server Error")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """MLflow's own, with one run."""
    root = tmp_path_factory.mktemp("whole")
    client = connect(root)
    client.create_run(client.create_experiment("x", artifact_location=root.as_uri()))
    return (root / MLFLOW).read_bytes()


def workspace_with(folder: Path, content: bytes) -> Path:
    file = folder / MLFLOW
    file.parent.mkdir(exist_ok=True)
    for left in file.parent.glob("*"):
        left.unlink()
    file.write_bytes(content)
    return folder


def test_a_whole_database_is_whole(database: bytes, tmp_path: Path) -> None:
    for name in DATABASES:
        check_database(tmp_path, name)
    check_database(workspace_with(tmp_path, database), MLFLOW)
    assert (tmp_path / MLFLOW).read_bytes() == database


DAMAGES = {
    "cut by 100 bytes": lambda whole: whole[:-100],
    "cut by a page": lambda whole: whole[:-4096],
    "half": lambda whole: whole[: len(whole) // 2],
    "its first bytes": lambda whole: b"x" * 16 + whole[16:],
    "a page of zeros": lambda whole: whole[: 4096 * 20] + bytes(4096) + whole[4096 * 21 :],
    "something else": lambda whole: b"hello\n" * 1000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_one_line_with_the_fix(damage, database: bytes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    workspace_with(tmp_path, damage(database))
    for use in (connect, lambda root: Registry(root, "orchestrator")):
        with pytest.raises(DataError) as caught:
            use(tmp_path)
        line = str(caught.value)
        assert line.startswith(f"{MLFLOW}: the database is damaged: ") and len(line.splitlines()) == 1
        assert "mv .state/mlflow.db* .state/damaged/" in line and "SELECT" not in line
    fix = line.split(" — ")[1].split(";")[0]
    subprocess.run(["bash", "-c", fix], cwd=tmp_path, check=True)
    check_database(tmp_path, MLFLOW)
    assert not (tmp_path / MLFLOW).exists() and (tmp_path / ".state/damaged/mlflow.db").exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_large_database_s_pages_are_not_read_beside_work(  # type: ignore[no-untyped-def]
    damage, database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BESIDE", 0)
    root = workspace_with(tmp_path, damage(database))
    if damage is not DAMAGES["a page of zeros"]:
        with pytest.raises(DataError, match="the database is damaged"):
            check_database(root, MLFLOW, beside=True)
        return
    assert not check_database(root, MLFLOW, beside=True)
    connect(root)
    with pytest.raises(DataError, match="the database is damaged"):
        check_database(root, MLFLOW)
    # Its copy is checked, which nobody waits for.
    with pytest.raises(DataError, match="the database is damaged"):
        backup.backup(root, tmp_path / "kept.tar")


def test_damage_that_only_mlflow_meets_is_one_line_too(
    database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(storage, "BESIDE", 0)
    root = workspace_with(tmp_path, database)
    with closing(sqlite3.connect(root / MLFLOW)) as db:
        pages = db.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'registered_models'").fetchall()
    with (root / MLFLOW).open("r+b") as file:
        for (page,) in pages:
            file.seek(4096 * (page - 1))
            file.write(bytes(4096))
    with pytest.raises(DataError, match=r"it is damaged: .*orchestra doctor says which one") as caught:
        Registry(root, "orchestrator").at("champion")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("beside", [0, 2**30])
def test_the_pages_of_a_database_in_use_are_read_in_a_copy(
    beside: int, database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BESIDE", beside)
    root, read = workspace_with(tmp_path, database), list[Path]()
    (tmp_path / "other").mkdir()
    zeroed = workspace_with(tmp_path / "other", DAMAGES["a page of zeros"](database))  # type: ignore[no-untyped-call]

    def check(folder: Path, name: str, *, beside: bool = False) -> bool:
        if not beside:
            with closing(sqlite3.connect(root / MLFLOW, timeout=0, isolation_level=None)) as db:
                db.execute("CREATE TABLE written_meanwhile (x)")
            read.append(folder)
        return check_database(folder, name, beside=beside)

    monkeypatch.setattr(storage, "check_database", check)
    assert check_used_database(root, MLFLOW) and read != [root]
    assert [one.name for one in (root / ".state").iterdir()] == ["mlflow.db"]
    monkeypatch.setattr(storage, "check_database", check_database)
    for name, age in ((".check-killed", 2 * COPY_S), (".check-at-work", 0.0)):
        (root / ".state" / name).mkdir()
        os.utime(root / ".state" / name, (time.time() - age,) * 2)
    assert check_used_database(root, MLFLOW)
    assert not (root / ".state/.check-killed").exists() and (root / ".state/.check-at-work").exists()
    with pytest.raises(DataError, match=r"^\.state/mlflow\.db: the database is damaged"):
        check_used_database(zeroed, MLFLOW)
    monkeypatch.setattr(storage, "ROOM", 2**60)
    assert not check_used_database(root, MLFLOW), "a copy has no room"


def test_a_disk_that_takes_no_copy_says_nothing_of_a_database_in_use(
    database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = workspace_with(tmp_path, database)

    def read_only(*_: object, **__: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", read_only)
    monkeypatch.setattr(doctor, "services", lambda _root: ["prefect"])
    assert {one.level for one in doctor._databases(root)} == {"ok"}


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("serves", [True, False])
def test_doctor_and_up_read_every_page_only_where_nobody_writes(
    works: bool, serves: bool, database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked = workspace_with(tmp_path, database), []

    def check(_root: Path, name: str, *, beside: bool = False) -> bool:
        asked.append(beside)
        return not beside

    for module in (doctor, servers):
        monkeypatch.setattr(module, "locked_elsewhere", lambda _root: works)
        monkeypatch.setattr(module, "check_database", check)
    monkeypatch.setattr(doctor, "check_used_database", lambda root, name: check(root, name, beside=True))
    with monkeypatch.context() as server:
        server.setattr(doctor, "services", lambda _root: ["prefect"] if serves else [])
        said = {one.what: one.found for one in doctor._databases(root)}
    used = works or serves
    assert ("no room for a copy" in said[MLFLOW]) is used and (said[MLFLOW] == "whole") is not used
    assert asked == [used] * len(DATABASES)
    monkeypatch.setattr(servers, "_commands", lambda *_: {name: ([], 0, {}) for name in ("mlflow", "prefect")})
    monkeypatch.setattr(servers, "start_service", lambda *_, **__: None)
    list(servers.start(root))
    assert asked[len(DATABASES) :] == [works] * 2


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.binary(min_size=1, max_size=5000))
@example(100, 0, b"x")
def test_any_damage_is_found_or_harmless(
    database: bytes, tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, junk: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    place %= len(database)
    for content in (database[: -(cut % len(database))], database[:place] + junk + database[place + len(junk) :]):
        workspace_with(folder, content)
        try:
            check_database(folder, MLFLOW)
        except DataError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert len(content) % 4096 == 0, "a cut within a page is always found"
