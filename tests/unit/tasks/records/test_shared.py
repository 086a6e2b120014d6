"""A store that two machines share: what one pushes the other pulls and takes back; damage and absence are named."""

import contextlib
import errno
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.fault_store import FaultyStore
from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir, hash_file
from orchestra.serving.shared.database import Database
from orchestra.serving.shared.keys import Keys
from orchestra.system.backup import backup
from orchestra.system.processes import LOCALHOST, free_port
from orchestra.system.storage import ARTIFACTS, GATEWAY, MLFLOW
from tasks.platform.aliases import aliases
from tasks.platform.dvc import LOCK, LOCK_BEFORE, recover, stages
from tasks.platform.registry import CHAMPION, PREVIOUS, STORE, Registry
from tasks.platform.tracking import connect, experiment
from tasks.records.shared import KNOWN, LATEST, WHOLE, Latest, named_errors, pull, push
from tests.support.registries import commit, make_workspace, register, run_stage
from tests.support.stores import BUCKET, KEYS, s3_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with an output of a stage, a champion and the one before it."""
    root = tmp_path_factory.mktemp("made") / "w"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        make_workspace(root)
        commit(root)
        run_stage(root, "first")
        client = connect(root)
        runs = [str(client.create_run(experiment(client, root)).info.run_id) for _ in range(2)]
        client.log_text(runs[1], "promoted", "decision.txt")
        registry = register(root, (1, 2), runs)
        for alias, number in ((PREVIOUS, 1), (CHAMPION, 2)):
            registry.point(alias, next(one for one in registry.versions() if one.number == number))
    return root


@pytest.fixture
def storage(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A folder in the store for this test alone, and the keys."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Storage(url=f"s3://{BUCKET}/{tmp_path.name}", endpoint=endpoint)


@pytest.fixture
def machine(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "one", symlinks=True))


def files(storage: Storage) -> Any:
    from s3fs import S3FileSystem

    return S3FileSystem(endpoint_url=storage.endpoint, skip_instance_cache=True, use_listings_cache=False)


def clone(machine: Path, folder: Path) -> Path:
    """Another machine: what git has, and nothing else."""
    subprocess.run(["git", "clone", "-q", str(machine), str(folder)], check=True, capture_output=True)
    return folder


def registry(root: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Registry(root, "orchestrator")


def test_a_clone_serves_the_same_champion_with_its_history_and_takes_it_back(
    machine: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(machine, storage) == f"1 outputs and 2 checkpoints are in {storage.url}"
    assert push(machine, storage).startswith("0 outputs and 2 checkpoints"), "what is there is not sent again"

    other = clone(machine, tmp_path / "two")
    assert "2 checkpoints" in pull(other, storage)
    assert (other / "out.txt").read_text() == "first"
    there = registry(other, monkeypatch)
    champion, previous = there.at(CHAMPION), there.at(PREVIOUS)
    assert champion is not None and previous is not None and (champion.number, previous.number) == (2, 1)
    assert hash_dir(champion.verified()) == champion.checkpoint_hash and previous.verified().is_relative_to(other)
    assert Path(there.client.download_artifacts(champion.run_id, "decision.txt")).read_text() == "promoted"
    there.point(CHAMPION, previous)

    # The other machine's rollback goes back the same way.
    push(other, storage)
    with pytest.raises(ConfigError, match="another machine pushed on"):
        push(machine, storage)
    with pytest.raises(ConfigError, match="results of its own"):
        pull(machine, storage)
    pull(machine, storage, replace=True)
    back = registry(machine, monkeypatch).at(CHAMPION)
    assert back is not None and back.number == 1 and list((machine / ".state").glob("replaced-*/mlflow.db"))


def rolled_back(machine: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that machine has pushed, and a rollback since."""
    push(machine, storage)
    here = registry(machine, monkeypatch)
    previous = here.at(PREVIOUS)
    assert previous is not None
    here.point(CHAMPION, previous)
    assert named(machine) == 1


def named(root: Path) -> int:
    """The champion; read from the file, since MLflow's client goes on with the one that a pull moved away."""
    return aliases(root, "orchestrator")[CHAMPION]


def test_a_pull_keeps_what_was_not_pushed_since(
    machine: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_back(machine, storage, monkeypatch)
    shutil.rmtree(machine / STORE)
    (machine / "out.txt").unlink()
    pull(machine, storage)
    assert named(machine) == 1 and len(list((machine / STORE).iterdir())) == 2
    assert (machine / "out.txt").read_text() == "first", "what is missing comes back"

    run_stage(machine, "second")
    with pytest.raises(ConfigError, match=r"results of its own — orchestra push, or"):
        pull(machine, storage)
    assert named(machine) == 1 and (machine / "out.txt").read_text() == "second"
    pull(machine, storage, replace=True)
    assert named(machine) == 2 and (machine / "out.txt").read_text() == "first"


def test_a_pull_of_nothing_newer_keeps_the_database_also_after_it_was_cut_off(
    machine: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.records.shared import _SharedFolder

    rolled_back(machine, storage, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(_SharedFolder, "pull_outputs", lambda *_: (_ for _ in ()).throw(ConnectionResetError("cut")))
        with pytest.raises(ServiceError, match="cut"):
            pull(machine, storage)
    pull(machine, storage)
    assert named(machine) == 1


def test_an_upload_that_was_cut_off_is_never_seen(
    machine: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.records.shared import _SharedFolder

    for step in ("push_outputs", "push_checkpoint", "push_state", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(_SharedFolder, step, lambda *_: (_ for _ in ()).throw(ConnectionResetError("cut")))
            with pytest.raises(ServiceError, match="cut — see storage in params"):
                push(machine, storage)
        with pytest.raises(DataError, match="the store is empty"):
            pull(clone(machine, tmp_path / step), storage)
    push(machine, storage)
    pull(clone(machine, tmp_path / "whole"), storage)


def test_a_pull_that_was_cut_off_goes_on_and_pushes_nothing_meanwhile(
    machine: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.records.shared import _SharedFolder

    push(machine, storage)
    other = clone(machine, tmp_path / "two")
    with monkeypatch.context() as patch:
        patch.setattr(_SharedFolder, "pull_outputs", lambda *_: (_ for _ in ()).throw(ConnectionResetError("cut")))
        with pytest.raises(ServiceError, match="cut"):
            pull(other, storage)
    with pytest.raises(ConfigError, match="another machine pushed on"):
        push(other, storage)
    pull(other, storage)
    assert (other / "out.txt").read_text() == "first" and "pulling" not in (other / KNOWN).read_text()


def killed(root: Path) -> None:
    """A stage was killed while DVC wrote its lock file, which it empties first."""
    shutil.copy(root / LOCK, root / LOCK_BEFORE)
    (root / LOCK).write_text("")


def test_what_a_killed_stage_left_is_neither_pushed_nor_put_over_what_is_pulled(
    machine: Path, storage: Storage, tmp_path: Path
) -> None:
    killed(machine)
    push(machine, storage)
    other = clone(machine, tmp_path / "two")
    pull(other, storage)
    assert (other / "out.txt").read_text() == "first"

    run_stage(machine, "second")
    push(machine, storage)
    killed(other)
    pull(other, storage, replace=True)
    (other / "source").write_text("second")
    recover(other)
    assert stages(other) == {"copy": []}, "the next run finds every stage current"


@pytest.mark.parametrize("pushed", ["before", "never"])
def test_a_push_during_which_another_machine_pushed_is_refused(
    machine: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pushed: str
) -> None:
    from tasks.records.shared import _SharedFolder

    other = Path(shutil.copytree(machine, tmp_path / "two", symlinks=True))
    if pushed == "before":
        push(other, storage)
        shutil.copy(other / KNOWN, machine / KNOWN)
    upload = _SharedFolder.push_state

    def slow(store: _SharedFolder, root: Path) -> str:
        monkeypatch.setattr(_SharedFolder, "push_state", upload)
        push(other, storage)
        return upload(store, root)

    monkeypatch.setattr(_SharedFolder, "push_state", slow)
    with pytest.raises(ConfigError, match="another machine pushed on"):
        push(machine, storage)
    latest = Latest.model_validate_json(files(storage).cat_file(f"{storage.url}/{LATEST}"))
    assert latest.id == (other / KNOWN).read_text().strip()
    push(machine, storage, replace=True)


def test_a_list_that_is_damaged_is_replaced_on_request(machine: Path, storage: Storage) -> None:
    files(storage).pipe_file(f"{storage.url}/{LATEST}", b"{")
    with pytest.raises(DataError, match="orchestra push --replace"):
        push(machine, storage)
    push(machine, storage, replace=True)
    push(machine, storage)


def test_a_damaged_checkpoint_in_the_store_is_not_kept(machine: Path, storage: Storage, tmp_path: Path) -> None:
    push(machine, storage)
    (place, *_) = [one for one in files(storage).find(f"{storage.url}/models") if one.endswith("/weights")]
    files(storage).pipe_file(place, b"changed")
    other = clone(machine, tmp_path / "two")
    with pytest.raises(DataError, match=f"damaged in the store — delete .*{WHOLE}; then orchestra push"):
        pull(other, storage)
    assert not (other / ".state/mlflow.db").exists()


def test_a_checkpoint_that_is_damaged_here_is_not_pushed(machine: Path, storage: Storage, tmp_path: Path) -> None:
    (weights, *_) = sorted((machine / STORE).rglob("weights"))
    weights.write_bytes(b"cut")
    assert push(machine, storage).endswith("; 1 damaged checkpoints of .state/models are not")
    digest = weights.parent.name
    assert digest not in " ".join(files(storage).find(storage.url))
    assert "checkpoints" in pull(clone(machine, tmp_path / "two"), storage)


def test_artifacts_from_before_the_store_are_sent_each_time_and_a_push_says_so(
    machine: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "warning" not in push(machine, storage)
    monkeypatch.setattr("tasks.records.shared.LARGE_MB", 0)
    assert push(machine, storage).endswith(f"all 0 MB of {ARTIFACTS}: orchestra gc --runs-older-than 90 --delete")
    client = connect(machine)
    before = experiment(client, machine)
    monkeypatch.setattr("tasks.platform.tracking.storage_of", lambda _root: storage)
    assert experiment(client, machine) == before, "its place stays"
    client.rename_experiment(before, "orchestra-before")
    begun = client.get_experiment(experiment(client, machine))
    assert begun.experiment_id != before and begun.artifact_location == storage.artifacts


def test_what_fails_on_the_own_disk_is_not_said_of_the_store(storage: Storage) -> None:
    with pytest.raises(ServiceError, match="the disk is full") as full, named_errors(storage):
        raise OSError(errno.ENOSPC, "No space left on device", "/w/.state/.pull-x/state.tar")
    assert full.value.where == "/w/.state/.pull-x/state.tar"
    with pytest.raises(ServiceError, match="see storage in params"), named_errors(storage):
        raise OSError(errno.EACCES, "Access Denied")


def test_old_databases_leave_the_store(machine: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.records.shared.STATES", 2)
    for _ in range(4):
        push(machine, storage)
    assert len(files(storage).ls(f"{storage.url}/state")) == 2


def test_a_store_that_does_not_answer_is_one_line_within_seconds(machine: Path, storage: Storage) -> None:
    began = time.monotonic()
    gone = storage.model_copy(update={"endpoint": f"http://{LOCALHOST}:{free_port()}"})
    with pytest.raises(ServiceError, match="see storage in params"):
        push(machine, gone)
    with pytest.raises(ServiceError, match="see storage in params"):
        push(machine, storage.model_copy(update={"url": "s3://no-such-bucket/x"}))
    with pytest.raises(ConfigError, match="is local — storage"):
        push(machine, Storage())
    assert time.monotonic() - began < 120


def test_a_file_of_two_folders_whose_upload_failed_is_sent_again(
    machine: Path, storage: Storage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from dvc.repo import Repo

    for folder in ("one-model", "two-model"):
        (machine / folder).mkdir()
        (machine / folder / "tokenizer").write_bytes(b"1" * 100_000)
        (machine / folder / "weights").write_text(folder)
    with contextlib.chdir(machine), Repo() as repo:
        repo.add(["one-model", "two-model"])
    commit(machine)
    store = FaultyStore(storage.endpoint or "")
    try:
        faulty = storage.model_copy(update={"endpoint": store.url})
        store.strike("cut")
        capfd.readouterr()
        with pytest.raises(ServiceError, match=r"\d files failed to upload: Connection was closed") as caught:
            push(machine, faulty)
        said = capfd.readouterr()
        assert len(str(caught.value).splitlines()) == 1 and "ERROR" not in said.out + said.err
        store.heal()
        push(machine, faulty)
    finally:
        store.close()
    other = clone(machine, tmp_path / "two")
    pull(other, storage)
    assert (
        (other / "one-model/tokenizer").read_bytes() == (other / "two-model/tokenizer").read_bytes() == b"1" * 100_000
    )


def test_a_file_that_is_nowhere_is_not_promised(machine: Path, storage: Storage, tmp_path: Path) -> None:
    shutil.rmtree(machine / ".dvc/cache/files")
    with pytest.raises(DataError, match=r"1 files of outputs are neither here nor in the store .*orchestra run"):
        push(machine, storage)
    with pytest.raises(DataError, match="the store is empty"):
        pull(clone(machine, tmp_path / "two"), storage)


def test_a_file_that_the_store_lost_is_named_in_one_line(
    machine: Path, storage: Storage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    push(machine, storage)
    files(storage).rm(f"{storage.url}/dvc", recursive=True)
    capfd.readouterr()
    with pytest.raises(DataError, match="not in the store — orchestra push"):
        pull(clone(machine, tmp_path / "two"), storage)
    said = capfd.readouterr()
    assert "ERROR" not in said.out + said.err


def put(storage: Storage, content: bytes, suffix: str = "") -> str:
    """Put a file into the store as DVC names it; its hash."""
    digest = hashlib.md5(content).hexdigest()
    files(storage).pipe_file(f"{storage.url}/dvc/files/md5/{digest[:2]}/{digest[2:]}{suffix}", content)
    return digest + suffix


def listed(storage: Storage, **entry: str) -> str:
    """The hash of a listing with a right file and that one."""
    right = {"md5": put(storage, b"right"), "relpath": "a"}
    return put(storage, json.dumps([right, {"md5": put(storage, b"wrong"), **entry}]).encode(), ".dir")


def name_output(storage: Storage, digest: str) -> None:
    """Let the store name that hash for the output of the stage."""
    latest = Latest.model_validate_json(files(storage).cat_file(f"{storage.url}/{LATEST}"))
    lock = yaml.safe_load(latest.lock)
    lock["stages"]["copy"]["outs"][0]["md5"] = digest
    changed = latest.model_copy(update={"lock": yaml.safe_dump(lock), "id": "0" * 16})
    files(storage).pipe_file(f"{storage.url}/{LATEST}", changed.model_dump_json().encode())


def everything(folder: Path) -> set[str]:
    inside = (one.relative_to(folder).as_posix() for one in folder.rglob("*") if not one.is_dir())
    return {one for one in inside if not one.startswith(("one/", "two/.git/", "two/.state/"))}


@pytest.mark.parametrize("name", ["../../owned", "/owned", "b/.."])
def test_a_listing_writes_no_file_outside_its_output(
    name: str, machine: Path, storage: Storage, tmp_path: Path
) -> None:
    push(machine, storage)
    digest = listed(storage, relpath=str(tmp_path / "owned") if name == "/owned" else name)
    name_output(storage, digest)
    other = clone(machine, tmp_path / "two")
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"leaves its folder — orchestra push, on a machine that you trust"):
        pull(other, storage)
    assert {one for one in everything(tmp_path) - before if not one.startswith("two/.dvc/")} == set()


@pytest.mark.parametrize(
    ("of", "digest"),
    [
        ("an output", "../../../../../owned.dir"),
        ("an output", "A" * 32),
        ("a file of a folder", "../../../../../owned"),
        ("a file of a folder", "a" * 32 + ".dir"),
    ],
)
def test_no_path_is_made_of_what_is_no_hash(
    of: str, digest: str, machine: Path, storage: Storage, tmp_path: Path
) -> None:
    push(machine, storage)
    if of != "an output":
        digest = listed(storage, relpath="b", md5=digest)
    name_output(storage, digest)
    with pytest.raises(DataError, match=r"is no hash|has no hash"):
        pull(clone(machine, tmp_path / "two"), storage)


def test_a_folder_that_is_an_output_comes_back_whole(machine: Path, storage: Storage, tmp_path: Path) -> None:
    push(machine, storage)
    digest = listed(storage, relpath="b/..c/.d")
    name_output(storage, digest)
    other = clone(machine, tmp_path / "two")
    pull(other, storage)
    assert (other / "out.txt/a").read_text() == "right" and (other / "out.txt/b/..c/.d").read_text() == "wrong"


def test_a_checkpoint_writes_no_file_outside_its_folder(machine: Path, storage: Storage, tmp_path: Path) -> None:
    push(machine, storage)
    (place, *_) = [one for one in files(storage).find(f"{storage.url}/models") if one.endswith("/weights")]
    files(storage).pipe_file(f"{place.removesuffix('weights')}../../../../../owned", b"wrong")
    with pytest.raises(DataError, match="leaves its folder"):
        pull(clone(machine, tmp_path / "two"), storage)
    assert not list(tmp_path.rglob("owned"))


def test_a_pull_takes_no_keys_and_no_schedules_from_the_store(machine: Path, storage: Storage, tmp_path: Path) -> None:
    push(machine, storage)
    theirs = Keys(Database(machine / GATEWAY))
    theirs.create("theirs")
    for more, named in (((GATEWAY,), GATEWAY), ((), ".state/runs/r.json")):
        atomic.write_text(machine / ".state/runs/r.json", "{}")
        backup(machine, tmp_path / "state.tar", (MLFLOW, *more), (ARTIFACTS, ".state/runs"), ())
        digest = hash_file(tmp_path / "state.tar")
        files(storage).put_file(str(tmp_path / "state.tar"), f"{storage.url}/state/{digest}")
        latest = Latest.model_validate_json(files(storage).cat_file(f"{storage.url}/{LATEST}"))
        changed = latest.model_copy(update={"state": digest, "id": digest[:16]})
        files(storage).pipe_file(f"{storage.url}/{LATEST}", changed.model_dump_json().encode())
        other = clone(machine, tmp_path / named.replace("/", "-"))
        Keys(Database(other / GATEWAY)).create("ours")
        with pytest.raises(DataError, match=f"it holds {named}, which no push sends — orchestra push, on") as refused:
            pull(other, storage)
        assert refused.value.where.startswith(f"{storage.url}/state/")
        assert [one.name for one in Keys(Database(other / GATEWAY)).list()] == ["ours"]
        assert not (other / MLFLOW).exists() and not (other / ".state/runs").exists()
