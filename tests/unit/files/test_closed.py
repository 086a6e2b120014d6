"""`.state` is closed to other users wherever it is made, and where an older version left it open."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.cli.common import workspace
from orchestra.files import atomic
from orchestra.serving.releases import lock
from orchestra.serving.shared.database import STORE, Database
from orchestra.system.processes import Service, remember
from orchestra.system.storage import check_storage
from orchestra.system.workspace import locked


def locks(root: Path) -> None:
    with locked(root):
        pass


def releases(root: Path) -> None:
    with lock.alone(root):
        pass


WRITERS: dict[str, Callable[[Path], object]] = {
    "a key": lambda root: atomic.private_once(root / ".state/some.key", "secret"),
    "a line": lambda root: atomic.append_text(root / ".state/retraining/x.jsonl", "{}\n"),
    "a whole folder": lambda root: atomic.whole_folder(root / ".state/models/x").__enter__(),
    "the lock of a run": locks,
    "the lock of a release": releases,
    "the gateway's database": lambda root: Database(root / STORE),
    "a server": lambda root: remember(root, Service("x", 1, "", 1, "", "")),
    "the look at the disk": lambda root: check_storage(root, 0),
}


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize("there", [None, 0o755, 0o777])
@pytest.mark.parametrize("writer", WRITERS)
def test_who_makes_it_or_writes_to_it_closes_it(writer: str, there: int | None, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        if there is not None:
            (tmp_path / ".state").mkdir()
            (tmp_path / ".state").chmod(there)
        WRITERS[writer](tmp_path)
    finally:
        os.umask(before)
    assert mode(tmp_path / ".state") == 0o700


def test_every_command_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    workspace()
    assert not (tmp_path / ".state").exists(), "a look makes nothing"
    (tmp_path / ".state").mkdir(mode=0o755)
    workspace()
    assert mode(tmp_path / ".state") == 0o700


def test_a_group_that_shares_it_keeps_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    atomic.make_folder(tmp_path / ".state/logs")
    assert mode(tmp_path / ".state") & 0o007 == 0
    (tmp_path / ".state").chmod(0o2775)
    atomic.make_folder(tmp_path / ".state/logs")
    assert mode(tmp_path / ".state") == 0o2770


def test_of_another_user_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state").chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    atomic.make_folder(tmp_path / ".state/logs")
    assert mode(tmp_path / ".state") == 0o755 and (tmp_path / ".state/logs").is_dir()


def test_other_folders_keep_their_modes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    atomic.write_text(tmp_path / "data/x", "")
    assert mode(tmp_path / "data") == 0o755
