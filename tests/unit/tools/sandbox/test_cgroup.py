"""Memory limited by the kernel: which group of cgroup v2 is used, what is written there, and none where none can be."""

import asyncio
from pathlib import Path

import pytest

from orchestra.tools.sandbox import cgroup, worker
from orchestra.tools.sandbox.cgroup import HALVES_BYTES, MemoryGroup, group_parent, memory_group
from orchestra.tools.sandbox.command import Limits
from orchestra.tools.sandbox.tool import Sandbox
from tests.support.sandboxes import WORKING


def proc(folder: Path, root: Path, own: str) -> Path:
    """/proc/self of a process in the group `own` below the mounted `root`."""
    made = folder / "proc"
    made.mkdir()
    mounts = f"21 1 0:1 / / rw - ext4 /dev/x rw\n41 31 0:38 / {root} rw,relatime - cgroup2 cgroup2 rw\n"
    (made / "mountinfo").write_text(mounts)
    (made / "cgroup").write_text(f"2:cpu:/\n0::{own}\n")
    return made


def group(folder: Path, controllers: str, below: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"cgroup.controllers": controllers, "cgroup.subtree_control": below, "cgroup.procs": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_the_group_above_serves_a_process_that_is_alone_in_a_leaf(tmp_path: Path) -> None:
    above = group(tmp_path / "fs/app", "cpu memory", "")
    group(above / "main", "", "")
    assert group_parent(proc(tmp_path, tmp_path / "fs", "/app/main")) == above
    assert (above / "cgroup.subtree_control").read_text() == "+memory\n"


def test_a_group_that_already_hands_memory_on_serves_as_it_is(tmp_path: Path) -> None:
    own = group(tmp_path / "fs/app", "cpu memory", "memory")
    assert group_parent(proc(tmp_path, tmp_path / "fs", "/app")) == own
    assert (own / "cgroup.subtree_control").read_text() == "memory"


@pytest.mark.parametrize("controllers", ["", "cpu hugetlb"])
def test_without_the_memory_controller_there_is_no_group(tmp_path: Path, controllers: str) -> None:
    group(tmp_path / "fs", controllers, "")
    group(tmp_path / "fs/app", controllers, "")
    assert group_parent(proc(tmp_path, tmp_path / "fs", "/app")) is None


def test_nothing_above_the_mount_is_touched(tmp_path: Path) -> None:
    group(tmp_path, "memory", "memory")
    group(tmp_path / "fs", "", "")
    assert group_parent(proc(tmp_path, tmp_path / "fs", "/")) is None


def test_without_cgroup_2_there_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("21 1 0:1 / / rw - ext4 /dev/x rw\n")
    (tmp_path / "cgroup").write_text("2:memory:/\n")
    assert group_parent(tmp_path) is None and group_parent(tmp_path / "nowhere") is None


def test_a_group_has_its_limit_and_tells_when_it_was_passed(tmp_path: Path) -> None:
    made = MemoryGroup(tmp_path, 100 << 20)
    folder = Path(made.entry).parent
    assert int((folder / "memory.max").read_text()) == (100 << 20) + HALVES_BYTES
    assert (folder / "memory.oom.group").read_text() == "1\n"
    assert not made.passed
    (folder / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 0\n")
    assert not made.passed
    (folder / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 3\n")
    assert made.passed
    for file in folder.iterdir():  # The kernel's own go with their group.
        file.unlink()
    made.remove()
    made.remove()
    assert not folder.exists()


@pytest.mark.skipif(not WORKING, reason="this machine isolates no program")
def test_a_program_enters_its_group_and_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MemoryGroup] = []

    def open_group(most: int) -> MemoryGroup:
        made.append(MemoryGroup(tmp_path, most))
        Path(made[-1].entry).touch()
        return made[-1]

    monkeypatch.setattr(worker, "memory_group", open_group)
    removed: list[str] = []
    monkeypatch.setattr(
        MemoryGroup, "remove", lambda self: removed.append(Path(self.entry).read_text(encoding="ascii"))
    )

    async def ask() -> str:
        async with asyncio.timeout(60):
            return (await Sandbox(isolation=WORKING[0], warm=0).run("print(6 * 7)")).output

    assert asyncio.run(ask()) == "42\n"
    assert removed == ["0"] and len(made) == 1, "the process writes itself in, before it starts another"


@pytest.mark.skipif(group_parent() is None, reason="this process may make no group of cgroup v2 with a memory limit")
def test_the_kernel_ends_a_program_whose_processes_hold_too_much_together() -> None:
    fork = "import os, time\nfor _ in range(4):\n    if not os.fork():\n        break\n"
    code = fork + "held = b'x' * (60 << 20)\ntime.sleep(9)"

    async def ask() -> str:
        return (await Sandbox(limits=Limits(seconds=20, total_memory_bytes=128 << 20)).run(code)).ended

    assert asyncio.run(ask()) == "more than 128 MiB of memory"
    parent = group_parent()
    assert parent is not None and not list(parent.glob("orchestra-sandbox-*"))


def test_where_no_group_can_be_made_the_watch_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "group_parent", lambda: tmp_path / "nowhere")
    assert memory_group(1) is None
    monkeypatch.setattr(cgroup, "group_parent", lambda: None)
    assert memory_group(1) is None
