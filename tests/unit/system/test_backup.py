"""A backup of real databases, brought back: in place, in another folder, after damage, and cut off at every point."""

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra.errors import DataError, OrchestraError, ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir
from orchestra.serving.releases.control import ENDING, LEAVING
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.keys import OPERATOR_FILE, Keys, operator_key, own_key
from orchestra.serving.wire.errors import ApiError
from orchestra.system import servers
from orchestra.system.backup import adapt_places, backup, restore
from orchestra.system.processes import Service, remember, started_at
from orchestra.system.storage import ARTIFACTS, MLFLOW, PREFECT, RESTORING, check_database
from orchestra.system.workspace import LOCK
from tasks.platform.registry import CHAMPION, Registry
from tasks.platform.tracking import connect, experiment


@pytest.fixture(autouse=True)
def no_other_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow sets the variable in its process: the address of the first database would hold for the next one."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a champion, an artifact, a database of Prefect's name, and records."""
    root = tmp_path_factory.mktemp("made") / "first"
    checkpoint = root / "models/grpo"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(os.urandom(1000))
    registry = Registry(root, "orchestrator")
    run = str(registry.client.create_run(experiment(registry.client, root), run_name="one").info.run_id)
    registry.client.log_text(run, "the decision", "decision.txt")
    registry.point(CHAMPION, registry.add(checkpoint, hash_dir(checkpoint), {}, run))
    (root / PREFECT).parent.mkdir(parents=True)
    with closing(sqlite3.connect(root / PREFECT)) as db, db:
        db.execute("CREATE TABLE flow_run (name TEXT)")
        db.execute("INSERT INTO flow_run VALUES ('calm-cat')")
    atomic.write_text(root / ".state/runs/r1.json", "{}")
    return root


@pytest.fixture
def workspace(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "first"))


def flow_runs(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / PREFECT)) as db:
        return [name for (name,) in db.execute("SELECT name FROM flow_run")]


def test_the_champion_the_artifact_and_the_history_are_back_in_another_folder(made: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "kept.tar", tmp_path / "other"
    file.touch()
    file.chmod(0o644)
    told = backup(made, file)
    assert "1 checkpoints" in told.line and MLFLOW in told.line and PREFECT in told.line
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other.mkdir()
    assert restore(other, file).files == told.files
    registry = Registry(other, "orchestrator")
    champion = registry.at(CHAMPION)
    assert champion is not None and champion.verified().is_relative_to(other)
    (run,) = registry.client.search_runs([experiment(registry.client, other)])
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(other)
    text = registry.client.download_artifacts(run.info.run_id, "decision.txt", str(tmp_path))
    assert Path(text).read_text() == "the decision"
    assert flow_runs(other) == ["calm-cat"] and (other / ".state/runs/r1.json").is_file()


def artifact_place(root: Path) -> str:
    """Where MLflow's database places artifacts."""
    with closing(sqlite3.connect(root / MLFLOW)) as db:
        (found,) = db.execute("SELECT artifact_location FROM experiments WHERE name = 'orchestra'").fetchone()
    return str(found)


def logged(root: Path, name: str) -> Path:
    """The folder of a new run's artifacts, with a file of that name."""
    client = connect(root)
    run = client.create_run(experiment(client, root)).info
    client.log_text(run.run_id, name, name)
    return Path(str(url2pathname(urlsplit(run.artifact_uri).path)))


def test_a_moved_workspace_keeps_its_artifacts_in_its_present_folder(workspace: Path, tmp_path: Path) -> None:
    moved = workspace.rename(tmp_path / "mov ed")
    assert logged(moved, "new.txt").is_relative_to(moved) and not workspace.exists()
    registry = Registry(moved, "orchestrator")
    champion = registry.at(CHAMPION)
    assert champion is not None and champion.verified().is_relative_to(moved)
    (run,) = registry.client.search_runs([experiment(registry.client, moved)], "attributes.run_name = 'one'")
    text = registry.client.download_artifacts(run.info.run_id, "decision.txt", str(tmp_path))
    assert Path(text).read_text() == "the decision"


def test_the_servers_of_a_moved_workspace_start_on_its_present_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = workspace.rename(tmp_path / "moved")
    monkeypatch.setattr(servers, "_commands", lambda *_: {})
    assert list(servers.start(moved)) == [] and artifact_place(moved) == (moved / ARTIFACTS).as_uri()


def test_artifacts_that_went_to_the_old_folder_join_the_others(workspace: Path, tmp_path: Path) -> None:
    late = logged(workspace, "late.txt")
    moved = workspace.rename(tmp_path / "moved")
    (there := moved / late.relative_to(workspace)).parent.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "aside", late.parent)
    adapt_places(moved)
    assert (there / "late.txt").read_text() == "late.txt"


def test_a_copy_and_its_original_each_have_their_own_artifacts(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(workspace, tmp_path / "other"))
    before = sorted(workspace.rglob("*"))
    assert logged(other, "copy.txt").is_relative_to(other)
    assert sorted(workspace.rglob("*")) == before
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert logged(workspace, "original.txt").is_relative_to(workspace)
    names = {root: sorted(file.name for file in (root / ARTIFACTS).rglob("*.txt")) for root in (workspace, other)}
    assert names == {workspace: ["decision.txt", "original.txt"], other: ["copy.txt", "decision.txt"]}


def test_a_workspace_with_two_names_and_one_where_a_run_works_stay_as_they_are(workspace: Path, tmp_path: Path) -> None:
    def place(root: Path) -> str:
        adapt_places(root)
        return artifact_place(root)

    before = place(workspace)
    moved = workspace.rename(tmp_path / "moved")
    workspace.symlink_to(moved)
    assert place(moved) == before
    workspace.unlink()
    (moved / LOCK).touch()
    lock = "import fcntl, sys; fcntl.flock(held := open(sys.argv[1]), fcntl.LOCK_EX); print(1, flush=True); input()"
    held = [sys.executable, "-c", lock, str(moved / LOCK)]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert place(moved) == before
        other.communicate(b"\n")
    assert place(moved) == (moved / ARTIFACTS).as_uri()


def test_keys_verdicts_pages_and_evidence_are_back_and_private(workspace: Path, tmp_path: Path) -> None:
    """What was paid for, what a promotion rests on, and who may ask: a workspace cannot make them again."""
    keys = Keys(Database(workspace / STORE))
    key, secret = keys.create("friend", budget_usd=Decimal(5))
    operator_key(workspace, keys)
    ours = own_key(workspace)
    kept = {
        ".state/judged/release.jsonl": '{"id": "t1"}',
        ".state/judged/ledger-2026-01-01.jsonl": '{"usd": "0.1"}',
        ".state/evidence/a-b.json": "{}",
        ".state/decisions/1.html": "<html>",
        ".state/last_run.json": "{}",
    }
    for name, text in kept.items():
        atomic.write_private(workspace / name, text)
    atomic.write_text(workspace / ".state/traces/2026-01-01.jsonl", "a user's words")
    told, other = backup(workspace, tmp_path / "kept.tar"), tmp_path / "other"
    keys.create("later")
    assert not [name for name in told.files if "traces" in name]
    for place in (workspace, other):
        place.mkdir(exist_ok=True)
        shutil.rmtree(place / ".state/judged", ignore_errors=True)
        restore(place, tmp_path / "kept.tar")
        back = Keys(Database(place / STORE))
        assert [one.name for one in back.list()] == ["friend", "operator"] and own_key(place) == ours
        assert back.admit(f"Bearer {secret}") == key.id
        assert {name: (place / name).read_text() for name in kept} == kept
        for name in (*kept, OPERATOR_FILE, STORE):
            assert stat.S_IMODE((place / name).stat().st_mode) == 0o600, name


def test_a_key_that_was_revoked_since_the_backup_stays_revoked(workspace: Path, tmp_path: Path) -> None:
    keys = Keys(Database(workspace / STORE))
    (leaves, secret), (stays, _) = keys.create("leaves"), keys.create("stays")
    backup(workspace, tmp_path / "kept.tar")
    keys.revoke(leaves.id)
    restore(workspace, tmp_path / "kept.tar")
    back = Keys(Database(workspace / STORE))
    assert {one.id: one.revoked is not None for one in back.list()} == {leaves.id: True, stays.id: False}
    with pytest.raises(ApiError):
        back.admit(f"Bearer {secret}")
    (workspace / STORE).write_bytes(b"damaged")
    restore(workspace, tmp_path / "kept.tar")
    assert len(Keys(Database(workspace / STORE)).list()) == 2


@pytest.mark.parametrize("revoked", ["REAL CHECK (revoked IS NULL)", "AS (NULL)"])
def test_a_table_that_takes_no_revocation_is_refused(workspace: Path, tmp_path: Path, revoked: str) -> None:
    keys = Keys(Database(workspace / STORE))
    leaves, secret = keys.create("leaves")
    with closing(sqlite3.connect(tmp_path / "made.db")) as db, db:
        db.execute(f"CREATE TABLE keys (id, revoked {revoked})")
        db.execute("INSERT INTO keys (id) VALUES (?)", (leaves.id,))
    made_up(tmp_path / "kept.tar", (tarfile.TarInfo(STORE), (tmp_path / "made.db").read_bytes()))
    keys.revoke(leaves.id)
    with pytest.raises(DataError, match="takes no revocation"):
        restore(workspace, tmp_path / "kept.tar")
    with pytest.raises(ApiError):
        Keys(Database(workspace / STORE)).admit(f"Bearer {secret}")


@pytest.mark.parametrize("name", [LEAVING, ENDING])
def test_a_gateway_that_still_answers_has_its_database_open(workspace: Path, tmp_path: Path, name: str) -> None:
    Database(workspace / STORE).close()
    backup(workspace, tmp_path / "kept.tar")
    remember(workspace, Service(name, os.getpid(), started_at(os.getpid()) or "", 0, "", "log"))
    with pytest.raises(ServiceError, match=f"{name} runs — orchestra stop {name}"):
        restore(workspace, tmp_path / "kept.tar")


def test_a_restore_takes_the_place_of_what_came_later_and_keeps_it(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    backup(workspace, file)
    with closing(sqlite3.connect(workspace / PREFECT)) as db, db:
        db.execute("INSERT INTO flow_run VALUES ('later-owl')")
    (workspace / f"{PREFECT}-wal").write_bytes(b"left by a killed writer")
    (workspace / MLFLOW).write_bytes(b"damaged")
    restore(workspace, file)
    assert flow_runs(workspace) == ["calm-cat"] and not (workspace / f"{PREFECT}-wal").exists()
    assert connect(workspace).get_experiment_by_name("orchestra") is not None
    (aside,) = (workspace / ".state").glob("replaced-*")
    assert sorted(one.name for one in aside.iterdir()) == ["mlflow.db", "prefect.db", "prefect.db-wal"]


def test_a_backup_beside_a_writer_is_of_one_moment(workspace: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(workspace / PREFECT)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        with writer:
            writer.execute("INSERT INTO flow_run VALUES ('second')")
        writer.execute("INSERT INTO flow_run VALUES ('not yet')")
        backup(workspace, tmp_path / "kept.tar")
    restore(workspace, tmp_path / "kept.tar")
    assert flow_runs(workspace) == ["calm-cat", "second"]


def test_what_a_killed_backup_left_goes_with_the_next_one_and_what_another_is_at_stays(
    workspace: Path, tmp_path: Path
) -> None:
    left, other = (tmp_path / "kept" / f".monday.tar.{mark * 10}.partial" for mark in "ab")
    for folder in (left, other):
        (folder / ".state").mkdir(parents=True)
        (folder / MLFLOW).write_bytes(b"half a copy")
    handle = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        modes: list[int] = []

        def look(_line: str) -> None:
            folders = [one for one in (tmp_path / "kept").iterdir() if one.is_dir() and one not in (left, other)]
            modes.extend(stat.S_IMODE(one.stat().st_mode) for one in folders)

        backup(workspace, tmp_path / "kept/monday.tar", say=look)
        assert set(modes) == {0o700}
        assert sorted(one.name for one in (tmp_path / "kept").iterdir()) == [other.name, "monday.tar"]
    finally:
        os.close(handle)


def test_a_damaged_or_cut_file_changes_nothing(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    backup(workspace, file)
    whole = file.read_bytes()
    with tarfile.open(file) as archive:
        inside = archive.getmember(MLFLOW).offset_data + 5000
    bad = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:inside] + bytes([whole[inside] ^ 1]) + whole[inside + 1 :],
    }
    before = {path: path.read_bytes() for path in sorted((workspace / ".state").rglob("*")) if path.is_file()}
    for name, content in {**bad, "text": b"hello", "empty": b""}.items():
        file.write_bytes(content)
        with pytest.raises(DataError):
            restore(workspace, file)
        after = {path: path.read_bytes() for path in sorted((workspace / ".state").rglob("*")) if path.is_file()}
        assert after == before, name
    with pytest.raises(DataError, match="no such file — name a file that orchestra backup wrote"):
        restore(workspace, tmp_path / "none.tar")


def test_a_path_that_no_backup_has_is_refused(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    (workspace / "params.yaml").write_text("mine")
    for wrong in ("params.yaml", ".state/models/../../params.yaml"):
        with tarfile.open(file, "w") as archive:
            (tmp_path / "contents").write_text(
                f'{{"made": "2026-01-01T00:00:00Z", "version": "1", "root": "/x", "files": {{"{wrong}": "0"}}}}'
            )
            archive.add(tmp_path / "contents", "contents.json")
        with pytest.raises(DataError, match="which no backup does"):
            restore(workspace, file)


def test_an_archive_with_a_link_or_a_foreign_path_is_refused_before_it_is_unpacked(
    workspace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "kept.tar"
    link, outside = tarfile.TarInfo(".state/models/link"), tarfile.TarInfo(".state/models/../../../outside")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for entry, said in ((link, "which is no file"), (outside, "which no backup does")):
        with tarfile.open(file, "w") as archive:
            archive.addfile(entry)
        with pytest.raises(DataError, match=said):
            restore(workspace, file)
    assert not list(tmp_path.rglob("outside"))


def test_a_folder_is_no_backup(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is a folder and no backup"):
        restore(workspace, tmp_path)


def test_a_server_that_has_a_database_open_is_named(workspace: Path, tmp_path: Path) -> None:
    backup(workspace, tmp_path / "kept.tar")
    remember(workspace, Service("mlflow", os.getpid(), started_at(os.getpid()) or "", 0, "", "log"))
    with pytest.raises(ServiceError, match="mlflow runs — orchestra stop mlflow"):
        restore(workspace, tmp_path / "kept.tar")
    with pytest.raises(DataError, match="neither MLflow, Prefect nor"):
        backup(tmp_path / "nothing", tmp_path / "none.tar")


class KilledError(BaseException):
    pass


@contextmanager
def killed_at(rename: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process ends at its n-th change of a name."""
    real, count = atomic.replace, 0

    def counted(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count == rename:
            raise KilledError
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace", counted)
        yield


def test_a_restore_that_is_ended_anywhere_is_named_and_completed_by_the_same_command(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.tar"
    backup(workspace, file)
    named = 0
    for point in range(1, 50):
        root = Path(shutil.copytree(workspace, tmp_path / f"w{point}"))
        with closing(sqlite3.connect(root / PREFECT)) as db, db:
            db.execute("INSERT INTO flow_run VALUES ('later-owl')")
        (root / ".state/runs/r1.json").write_text("later")
        try:
            with killed_at(point, monkeypatch):
                restore(root, file)
            break
        except KilledError:
            pass
        try:
            check_database(root, MLFLOW)
            assert flow_runs(root) == ["calm-cat", "later-owl"]
            assert (root / ".state/runs/r1.json").read_text() == "later"
        except OrchestraError as error:
            assert "orchestra restore FILE again" in str(error)
            named += 1
        restore(root, file)
        assert flow_runs(root) == ["calm-cat"] and not (root / RESTORING).exists()
        assert (root / ".state/runs/r1.json").read_text() == (workspace / ".state/runs/r1.json").read_text()
        check_database(root, MLFLOW)
        shutil.rmtree(root)
    assert point > 6 and named >= 3


def test_a_restore_reaches_folders_on_other_disks(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = tmp_path / "kept.tar", os.replace
    told = backup(workspace, file)
    (workspace / ".state/runs/r1.json").write_text("later")
    with closing(sqlite3.connect(workspace / PREFECT)) as db, db:
        db.execute("INSERT INTO flow_run VALUES ('later-owl')")

    def within_a_folder(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", within_a_folder)
        restore(workspace, file)
    assert not (workspace / RESTORING).exists() and flow_runs(workspace) == ["calm-cat"]
    files = [workspace / name for name in told.files]
    assert all(one.is_file() for one in files) and (workspace / ".state/runs/r1.json").read_text() == "{}"
    (aside,) = (workspace / ".state").glob("replaced-*")
    assert sorted(one.name for one in aside.iterdir()) == ["mlflow.db", "prefect.db"]
    assert {stat.S_IMODE((workspace / name).stat().st_mode) for name in (MLFLOW, PREFECT)} == {0o600}


def test_checkpoints_that_find_no_room_do_not_close_the_workspace(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(workspace, tmp_path / "kept.tar")

    def full(_source: Path, target: Path) -> None:
        if target.name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "move", full)
        with pytest.raises(OSError, match="No space left"):
            restore(workspace, tmp_path / "kept.tar")
    check_database(workspace, MLFLOW)


def made_up(file: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> None:
    """An archive with a right list of contents, whatever else is odd."""
    listed = {entry.name: hashlib.sha256(content).hexdigest() for entry, content in entries}
    text = json.dumps({"made": "2026-01-01T00:00:00Z", "version": "1", "root": "/x", "files": listed}).encode()
    last = tarfile.TarInfo("contents.json")
    last.size = len(text)
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for entry, content in (*entries, (last, text)):
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


ODD_NAMES = st.lists(
    st.sampled_from([".", "..", "a", "a" * 256, "\n", "\x1b[2J", "\u202e", "/", "//", "é" * 130, "b/c"]),
    min_size=1, max_size=5,
).map("".join)  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(names=st.lists(ODD_NAMES, min_size=1, max_size=3), mtime=st.sampled_from(["1", "nan", "inf", "1e30", "-1e30"]))
def test_any_names_and_times_in_an_archive_are_restored_inside_or_refused_in_one_line(
    names: list[str], mtime: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    root, file = folder / "root", folder / "kept.tar"
    root.mkdir()
    made_up(file, *((tarfile.TarInfo(f".state/models/{name}"), b"x") for name in names))
    for _ in range(2):
        try:
            restore(root, file)
        except DataError as error:
            assert len(str(error).splitlines()) == 1
        entry = tarfile.TarInfo(".state/models/z")
        entry.pax_headers = {"mtime": mtime}
        made_up(file, (entry, b"x"))
    assert not (root / ".state/models").is_file()
    assert sorted(one.name for one in folder.iterdir()) == ["kept.tar", "root"]


def test_a_sparse_file_in_an_archive_is_refused_before_it_is_unpacked(workspace: Path, tmp_path: Path) -> None:
    entry = tarfile.TarInfo(".state/models/a")
    entry.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40)}
    entry.pax_headers |= {"GNU.sparse.numblocks": "1", "GNU.sparse.map": f"{(1 << 40) - 1},1"}
    made_up(tmp_path / "kept.tar", (entry, b"x"))
    with pytest.raises(DataError, match="which is no file"):
        restore(workspace, tmp_path / "kept.tar")


def test_a_key_is_private_whatever_mode_the_archive_gives_it(workspace: Path, tmp_path: Path) -> None:
    entries = [tarfile.TarInfo(name) for name in (OPERATOR_FILE, ".state/webhooks/key")]
    for entry in entries:
        entry.mode = 0o777
    made_up(tmp_path / "kept.tar", *((entry, b"x") for entry in entries))
    restore(workspace, tmp_path / "kept.tar")
    assert {stat.S_IMODE((workspace / entry.name).stat().st_mode) for entry in entries} == {0o600}


@pytest.mark.parametrize("of", [STORE, MLFLOW])
@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE keys (id, revoked); CREATE TRIGGER t BEFORE UPDATE ON keys BEGIN SELECT raise(ignore); END",
        "CREATE TABLE keys (id, revoked); CREATE TRIGGER t BEFORE UPDATE ON KEYS BEGIN SELECT raise(ignore); END",
        "CREATE TABLE holds (id); CREATE TRIGGER t AFTER INSERT ON holds BEGIN UPDATE keys SET revoked = NULL; END",
        "CREATE VIEW experiments AS SELECT 1 AS artifact_location",
    ],
)
def test_a_database_that_runs_something_at_a_change_is_refused(
    of: str, sql: str, workspace: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "made.db")) as db:
        db.executescript(sql)
    made_up(tmp_path / "kept.tar", (tarfile.TarInfo(of), (tmp_path / "made.db").read_bytes()))
    with pytest.raises(DataError, match="a database in it has the"):
        restore(workspace, tmp_path / "kept.tar")
