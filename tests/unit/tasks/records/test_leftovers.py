"""What `orchestra gc` shows and deletes: nothing that an alias, a release, a branch or an open run refers to."""

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dvc.repo import Repo

from orchestra.errors import DataError, OrchestraError
from orchestra.files.checkpoint import hash_dir
from orchestra.promotion.approval import request
from orchestra.serving.releases import state
from orchestra.system.runs import RunRecord, save
from orchestra.system.storage import ARTIFACTS, MLFLOW
from tasks.approval import STATE, now, write
from tasks.platform.dvc import LOCK, LOCK_BEFORE
from tasks.platform.evidence import KEPT, PREFIX
from tasks.platform.registry import CHAMPION, PREVIOUS, STORE, Registry
from tasks.platform.tracking import PARENT, connect, experiment
from tasks.records.cached import CACHE
from tasks.records.leftovers import COLLECTED, Leftover, _size, delete, keepers, leftovers, main
from tasks.records.models import MODEL, logged_model
from tests.support.registries import GIT, commit, make_workspace, register, remove_run, run_stage, shell

LONG_AGO = 1_000_000_000.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Five champions, one after another; and outputs that a branch, a version, an open run, nobody, we refer to."""
    root = tmp_path_factory.mktemp("made") / "w"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        make_workspace(root)
        outs = {"branch": run_stage(root, "branch")}
        commit(root)
        outs |= {name: run_stage(root, name) for name in ("version", "open", "nobody", "workspace")}

        client = connect(root)
        where = experiment(client, root)
        client.create_run(where, tags={"out.out.txt": outs["open"]})
        tags: list[dict[str, str]] = [{}, {}, {}, {}, {"out.out.txt": outs["version"]}]
        runs = [str(client.create_run(where, tags=one).info.run_id) for one in tags]
        for run in runs:
            client.set_terminated(run)
        registry = register(root, range(1, 6), runs)
        versions = {one.number: one for one in registry.versions()}
        registry.point(CHAMPION, versions[5])
        registry.point(PREVIOUS, versions[2])
        state.write(root, serving(versions[1].checkpoint_hash))
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return root, outs


def serving(checkpoint_hash: str) -> state.Serving:
    more = {"checkpoint": "x", "engine": "in_process", "params": {}, "fingerprint": "f", "code": "c"}
    return state.Serving(version="1", checkpoint_hash=checkpoint_hash, **more)


@pytest.fixture
def workspace(made: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = Path(shutil.copytree(made[0], tmp_path / "w", symlinks=True))
    monkeypatch.chdir(root)
    return root


def kept_versions(root: Path, registry: Registry) -> list[int]:
    return sorted(one.number for one in registry.versions() if one.folder.is_dir())


def test_it_is_shown_first_and_only_then_deleted(
    workspace: Path, made: tuple[Path, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    outs = made[1]
    registry = Registry(workspace, "orchestrator")
    arguments = ["--champions", "2", "--days", "30"]
    main(arguments)
    shown = capsys.readouterr().out
    assert "stays: version 5: champion" in shown and "stays: version 2: previous" in shown
    assert "stays: version 4: one of the last 2 champions" in shown and "stays: version 1: serves" in shown
    assert "kept checkpoints: 1, " in shown and "of version 3, which nothing refers to" in shown
    assert "outputs of stages: 1, " in shown and shown.endswith("nothing was deleted: orchestra gc --delete\n")
    assert kept_versions(workspace, registry) == [1, 2, 3, 4, 5]

    main([*arguments, "--delete"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("deleted: ")
    assert kept_versions(workspace, registry) == [1, 2, 4, 5]
    there = {name for name, md5 in outs.items() if (workspace / CACHE / md5[:2] / md5[2:]).is_file()}
    assert there == {"branch", "version", "open", "workspace"}
    gone = registry.version(3)
    assert gone is not None and COLLECTED in gone.tags
    with pytest.raises(DataError, match="the kept checkpoint is gone"):
        gone.verified()
    main([*arguments, "--delete"])
    assert capsys.readouterr().out.splitlines()[-1] == "nothing older than 30 days is left over"
    # Everything that stays still works: DVC has every file, and the champion is whole.
    with Repo(str(workspace)) as repo:
        repo.checkout()
    champion = registry.at(CHAMPION)
    assert champion is not None and champion.verified().is_dir()


def test_a_branch_without_dvc_lock_is_no_warning(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    shell(workspace, "git", "rm", "-q", "--cached", LOCK)
    shell(workspace, *GIT, "commit", "-qm", "dvc.lock is not committed")
    main([])
    assert "version info" not in caplog.text


@pytest.fixture
def listing(workspace: Path) -> Path:
    """The listing of a folder that a stage made, as DVC's cache keeps it; a tag and dvc.lock name it."""
    (workspace / "dvc.yaml").write_text("stages:\n  a:\n    cmd: mkdir d && echo 1 > d/f\n    outs: [d]\n")
    shell(workspace, sys.executable, "-m", "dvc", "repro", "-q", "a")
    found = next((workspace / CACHE).rglob("*.dir"))
    shell(workspace, *GIT, "add", "-f", LOCK, "dvc.yaml")
    shell(workspace, *GIT, "commit", "-qm", "a folder")
    shell(workspace, "git", "tag", "old")
    return found


def damage(listing: Path) -> None:
    listing.chmod(0o644)
    listing.write_text("[]")


@pytest.mark.parametrize("damaged", [False, True])
def test_an_old_version_whose_listing_is_lost_does_not_end_it(
    damaged: bool, workspace: Path, listing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "dvc.yaml").write_text("stages: {}\n")
    (workspace / LOCK).unlink()
    if damaged:
        damage(listing)
        with pytest.raises(DataError, match=r"is corrupted, so DVC deleted it — the same command again"):
            main([])
    listing.unlink(missing_ok=True)
    main([])
    assert "nothing was deleted: orchestra gc --delete" in capsys.readouterr().out


@pytest.mark.parametrize("lose", [damage, Path.unlink])
def test_files_of_the_present_version_stay_though_their_listing_is_lost(
    lose: Callable[[Path], None], workspace: Path, listing: Path
) -> None:
    lose(listing)
    with pytest.raises(DataError, match=r"d: DVC's listing of these files is lost.*dvc commit --force a"):
        main(["--days", "0", "--delete"])
    assert len(list((workspace / CACHE).rglob("*"))) > 1
    shell(workspace, sys.executable, "-m", "dvc", "commit", "--force", "-q", "a")
    main(["--days", "0", "--delete"])
    assert listing.is_file() and (workspace / "d/f").read_text() == "1\n"


def test_a_cache_that_a_link_leads_to_is_not_touched(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared, own = tmp_path / "shared", workspace / ".dvc/cache"
    own.rename(shared)
    own.symlink_to(shared)
    before = sorted(shared.rglob("*"))
    main(["--delete"])
    assert sorted(shared.rglob("*")) == before
    assert "outputs of stages" not in capsys.readouterr().out


def test_evidence_goes_with_its_checkpoint(workspace: Path) -> None:
    registry = Registry(workspace, "orchestrator")
    two, three = registry.version(2), registry.version(3)
    assert two is not None and three is not None
    folder = workspace / KEPT
    folder.mkdir(parents=True)
    stays = [folder / f"{two.checkpoint_hash[:PREFIX]}{end}" for end in ("-0123456789abcdef.json", ".episodes.jsonl")]
    goes = [folder / f"{three.checkpoint_hash[:PREFIX]}{end}" for end in ("-0123456789abcdef.json", ".episodes.jsonl")]
    for file in [*stays, *goes]:
        file.write_text("{}\n", encoding="utf-8")
    main(["--champions", "2", "--days", "0", "--delete"])
    assert sorted(folder.iterdir()) == sorted(stays)


def test_errors_that_prefect_stored_go_when_they_are_old(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = workspace / ".state/prefect/storage"
    storage.mkdir(parents=True)
    for name in ("old", "new"):
        (storage / name).write_text("{}")
    os.utime(storage / "old", (0, 0))
    main(["--days", "30", "--delete"])
    assert "errors that Prefect stored: 1, " in capsys.readouterr().out
    assert [file.name for file in storage.iterdir()] == ["new"]


def test_outputs_stay_though_a_stage_was_killed(workspace: Path, made: tuple[Path, dict[str, str]]) -> None:
    md5 = made[1]["workspace"]
    shutil.copy(workspace / LOCK, workspace / LOCK_BEFORE)
    (workspace / LOCK).write_text("")  # DVC empties it before it writes it.
    main(["--delete"])
    assert (workspace / CACHE / md5[:2] / md5[2:]).is_file()


def test_what_is_young_stays(workspace: Path) -> None:
    registry = Registry(workspace, "orchestrator")
    kept = keepers(workspace, registry, 1)
    folder = next(one.folder for one in registry.versions() if one.number == 3)
    assert folder in {one.path for one in leftovers(workspace, registry, kept, 30)}
    os.utime(folder)
    assert folder not in {one.path for one in leftovers(workspace, registry, kept, 30)}
    assert folder.parent == workspace / STORE


def test_a_version_that_waits_for_a_person_stays(workspace: Path) -> None:
    registry = Registry(workspace, "orchestrator")
    version = registry.version(3)
    assert version is not None and version.checkpoint_hash not in keepers(workspace, registry, 1).checkpoints
    registry.tag(version, {STATE: "waiting"})
    assert keepers(workspace, registry, 1).checkpoints[version.checkpoint_hash] == "version 3: waits for approval"
    write(registry, version, request(3, 5, "d", now() - timedelta(hours=5), 5))
    assert version.checkpoint_hash not in keepers(workspace, registry, 1).checkpoints, "nobody can answer any more"
    write(registry, version, request(3, 5, "d", now() - timedelta(hours=4), 5))
    assert version.checkpoint_hash in keepers(workspace, registry, 1).checkpoints


@pytest.mark.parametrize(
    ("ended", "goes"), [("Completed", True), ("Failed", False), ("Capped", False), ("Partial", False)]
)
def test_training_state_stays_while_a_run_can_go_on_from_it(workspace: Path, ended: str, goes: bool) -> None:
    left = workspace / "work/copy/0123"
    left.mkdir(parents=True)
    (left / "state.pt").write_text("1")
    os.utime(left, (LONG_AGO, LONG_AGO))
    now = datetime.now(UTC)
    save(workspace, RunRecord(id="r", name="r", flow="retrain", began=now, ended=now, state=ended))
    registry = Registry(workspace, "orchestrator")
    found = leftovers(workspace, registry, keepers(workspace, registry, 1), 30)
    assert (left in {one.path for one in found}) is goes


def test_a_run_that_mlflow_lost_ends_nothing(workspace: Path, made: tuple[Path, dict[str, str]]) -> None:
    with closing(sqlite3.connect(workspace / MLFLOW)) as db, db:
        (run_id,) = db.execute("SELECT run_id FROM model_versions WHERE version = 5").fetchone()
    remove_run(workspace, run_id)
    registry = Registry(workspace, "orchestrator")
    found = leftovers(workspace, registry, keepers(workspace, registry, 2), 30)
    # What that run made is known to nobody any more.
    lost = {made[1]["nobody"], made[1]["version"]}
    assert {one.path.parent.name + one.path.name for one in found if one.kind == "outputs of stages"} == lost


def test_a_lock_file_with_marks_of_a_merge_is_one_line(workspace: Path) -> None:
    (workspace / LOCK).write_text("<<<<<<< ours\na: 1\n=======\na: 2\n>>>>>>> theirs\n")
    with pytest.raises(OrchestraError, match=r"git checkout dvc\.lock"):
        main([])


def test_every_deleted_run_is_seen_and_what_was_put_aside(workspace: Path) -> None:
    registry, count = Registry(workspace, "orchestrator"), 1_003
    run = registry.client.create_run(experiment(registry.client, workspace)).info.run_id
    with closing(sqlite3.connect(workspace / MLFLOW)) as db, db:
        known = [name for (_, name, *_) in db.execute("PRAGMA table_info(runs)")]
        values = {"run_uuid": "?", "lifecycle_stage": "'deleted'"}
        copy = f"INSERT INTO runs SELECT {', '.join(values.get(name, name) for name in known)} FROM runs"
        for number in range(count):
            db.execute(f"{copy} WHERE run_uuid = ?", (f"gone{number}", run))
            (workspace / ARTIFACTS / f"gone{number}").mkdir(parents=True)
    aside = workspace / ".state/replaced-20200101T000000"
    aside.mkdir()
    (aside / "mlflow.db").write_text("x")
    for path in (aside, *(workspace / ARTIFACTS).iterdir()):
        os.utime(path, (LONG_AGO, LONG_AGO))
    found = leftovers(workspace, registry, keepers(workspace, registry, 1), 30)
    assert sum(one.kind == "artifacts of deleted runs" for one in found) == count
    assert [one.path for one in found if one.kind == "replaced databases"] == [aside]
    delete(registry, [one for one in found if one.kind == "replaced databases"])
    assert not aside.exists()


def test_old_runs_go_only_on_request_and_only_those_that_no_version_needs(workspace: Path) -> None:
    registry = Registry(workspace, "orchestrator")
    client, where = registry.client, experiment(registry.client, workspace)

    def with_artifacts(run_id: str) -> str:
        folder = workspace / ARTIFACTS / run_id
        folder.mkdir(parents=True)
        (folder / "report.html").write_text("x")
        os.utime(folder, (LONG_AGO, LONG_AGO))
        return run_id

    def run(parent: str = "", ended: float = LONG_AGO) -> str:
        found = str(client.create_run(where, tags={PARENT: parent} if parent else {}).info.run_id)
        client.set_terminated(found, end_time=int(ended * 1000))
        return with_artifacts(found)

    versions = {one.number: one for one in registry.versions()}
    promoted, trained, monitored = with_artifacts(versions[3].run_id), run(), run()
    evaluated, below, young = run(promoted), run(monitored), run(ended=time.time())
    sibling = run(trained)
    model = client.create_logged_model(where, "m", sibling).model_id
    judged = run()
    registry.tag(versions[3], {MODEL: model, "judged_in": judged})
    made = run()  # Its checkpoint is the workspace's, and no version yet.
    (workspace / "models/grpo/weights").write_text("x")
    logged_model(client, where, "grpo", hash_dir(workspace / "models/grpo"), run(made))
    logged_model(client, where, "grpo", "of before", below)
    kept = keepers(workspace, registry, 1)

    def old(days: float | None) -> dict[str, Leftover]:
        return {one.run: one for one in leftovers(workspace, registry, kept, 30, days) if one.kind == "old runs"}

    assert old(None) == {} and old(float("inf")) == {}
    found = old(90)
    assert set(found) == {monitored, below}
    delete(registry, list(found.values()))
    assert client.get_run(below).info.lifecycle_stage == "deleted" and not found[below].path.exists()
    for stays in (promoted, trained, evaluated, young, sibling, judged, made):
        assert client.get_run(stays).info.lifecycle_stage == "active" and (workspace / ARTIFACTS / stays).is_dir()
    assert old(90) == {}


def test_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead to another user's file, whose look-up fails."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"four")
    look = Path.stat

    def denied(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.name == "link" and follow_symlinks:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denied)
    assert _size(tmp_path) == 4
