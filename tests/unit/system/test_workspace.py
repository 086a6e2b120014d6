"""What a workspace is called among others."""

import shutil
import socket
from pathlib import Path

import pytest

from orchestra.system.workspace import ID, workspace_id


def test_a_container_with_another_host_name_is_the_same_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = workspace_id(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert workspace_id(tmp_path) == found and (tmp_path / ID).stat().st_mode & 0o777 == 0o600


def test_a_copy_has_an_id_of_its_own_also_at_the_same_path_of_another_machine(tmp_path: Path) -> None:
    place, copy, moved = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    found = workspace_id(place)
    shutil.copytree(place, copy)
    place.rename(moved)
    others = {workspace_id(copy), workspace_id(moved), workspace_id(place)}  # The last is another machine's own.
    shutil.rmtree(place)
    shutil.copytree(moved, place)
    assert len({found, *others, workspace_id(place)}) == 5
    shutil.rmtree(place)
    moved.rename(place)
    assert workspace_id(place) == found
