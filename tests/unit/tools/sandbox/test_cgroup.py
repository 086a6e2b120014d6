"""Memory limited by the kernel: which group is used, of cgroup v2 or v1, and what is written there."""

import asyncio
import secrets
from pathlib import Path

import pytest

from orchestra.system.environment import memory_left, memory_limit
from orchestra.tools.sandbox import cgroup, worker
from orchestra.tools.sandbox.cgroup import HALVES_BYTES, MemoryGroup, group_parent, memory_group, old_group_parent
from orchestra.tools.sandbox.command import Limits
from orchestra.tools.sandbox.tool import Sandbox
from orchestra.tools.sandbox.worker import Run
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


OLD = ("memory.limit_in_bytes", "memory.oom_control", "cgroup.procs")
MOUNTED = "38 27 0:33 {root} {at} rw,relatime - cgroup cgroup rw,{controllers}\n"


def old_group(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in OLD:
        (folder / name).write_text("")
    return folder


def old_proc(folder: Path, own: str, *mounts: str) -> Path:
    """/proc/self of a process in the group `own` of cgroup v1; cgroup v2 is there too, without the controller."""
    made = folder / "proc"
    made.mkdir()
    (made / "mountinfo").write_text("".join(("41 31 0:38 / /unified rw - cgroup2 cgroup2 rw\n", *mounts)))
    (made / "cgroup").write_text(own)
    return made


@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,hugetlb"])
def test_with_cgroup_1_the_process_s_own_group_serves(tmp_path: Path, controllers: str) -> None:
    own = old_group(tmp_path / "fs/app/main")
    other = MOUNTED.format(root="/", at="/other", controllers="cpuset")
    mounted = MOUNTED.format(root="/", at=tmp_path / "fs", controllers=controllers)
    found = old_proc(tmp_path, f"5:cpuset:/x\n4:{controllers}:/app/main\n0::/\n", other, mounted)
    assert old_group_parent(found) == own


def test_a_container_sees_its_part_of_the_tree_as_the_whole(tmp_path: Path) -> None:
    own = old_group(tmp_path / "fs")
    mounted = MOUNTED.format(root="/docker/abc", at=own, controllers="memory")
    assert old_group_parent(old_proc(tmp_path, "4:memory:/docker/abc\n", mounted)) == own


@pytest.mark.parametrize("own", ["0::/\n", "4:cpu:/x\n", "4:name=memory:/x\n", "4:memory:/gone\n"])
def test_no_group_where_memory_is_not_limited_by_cgroup_1(tmp_path: Path, own: str) -> None:
    old_group(tmp_path / "fs/x")
    mounted = MOUNTED.format(root="/", at=tmp_path / "fs", controllers="memory")
    assert old_group_parent(old_proc(tmp_path, own, mounted)) is None
    assert old_group_parent(tmp_path / "nowhere") is None


def test_what_the_groups_leave_of_the_memory(tmp_path: Path) -> None:
    own = old_group(tmp_path / "fs/app")
    here = old_proc(tmp_path, "4:memory:/app\n", MOUNTED.format(root="/", at=tmp_path / "fs", controllers="memory"))
    (own / "memory.stat").write_text("cache 1\nhierarchical_memory_limit 9223372036854771712\n")
    assert memory_limit(here) is None
    (own / "memory.stat").write_text("cache 1\nhierarchical_memory_limit 4096\nhierarchical_memsw_limit 9\n")
    assert memory_limit(here) == 4096
    assert memory_limit(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("limits", "wanted"), [(("max", "max"), None), (("max", "7"), 7), (("5", "7"), 5)])
def test_the_lowest_limit_of_the_groups_above_holds(
    tmp_path: Path, limits: tuple[str, str], wanted: int | None
) -> None:
    own = group(tmp_path / "fs/app/main", "memory", "")
    for folder, limit in zip((own, own.parent), limits, strict=True):
        (folder / "memory.max").write_text(limit + "\n")
    assert memory_limit(proc(tmp_path, tmp_path / "fs", "/app/main")) == wanted


def test_a_group_of_cgroup_1_has_its_limits(tmp_path: Path) -> None:
    made = MemoryGroup(tmp_path, 100 << 20, 1)
    folder = Path(made.entry).parent
    assert int((folder / "memory.limit_in_bytes").read_text()) == (100 << 20) + HALVES_BYTES
    assert (folder / "memory.swappiness").read_text() == "0\n"
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 0\n")
    assert not made.passed
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert made.passed


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


GROUPS = pytest.mark.skipif(
    (group_parent() or old_group_parent()) is None, reason="this process may make no group with a memory limit"
)


@GROUPS
def test_the_kernel_s_own_limit_of_a_group_is_what_was_asked_for() -> None:
    made = memory_group(64 << 20)
    assert made is not None
    name = "memory.max" if made.version == 2 else "memory.limit_in_bytes"
    try:
        assert int(Path(made.entry).with_name(name).read_text()) == (64 << 20) + HALVES_BYTES
        assert not made.passed
    finally:
        made.remove()
    assert not Path(made.entry).parent.exists()


HOLD = "held = b'x' * (60 << 20)\ntime.sleep(9)"
FORKS = f"import os, time\nfor _ in range(4):\n    if not os.fork():\n        break\n{HOLD}"
PATIENT = (
    f"import os, time\nfor _ in range(4):\n    if not os.fork():\n        {HOLD.replace(chr(10), '; ')}\ntime.sleep(9)"
)


@GROUPS
@pytest.mark.skipif(not WORKING, reason="this machine isolates no program")
@pytest.mark.parametrize("code", [FORKS, PATIENT], ids=["all hold it", "the children hold it"])
def test_the_kernel_ends_a_program_whose_processes_hold_too_much_together(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "held_more", lambda *_: False)
    named, draw = list[str](), secrets.token_hex

    def token_hex(length: int) -> str:
        named.append(draw(length))
        return named[-1]

    monkeypatch.setattr("orchestra.tools.sandbox.cgroup.secrets.token_hex", token_hex)

    async def ask() -> Run:
        return await Sandbox(limits=Limits(seconds=60, total_memory_bytes=128 << 20)).run(code)

    found = asyncio.run(ask())
    assert found.ended == "more than 128 MiB of memory" and found.seconds < 50
    parent = group_parent() or old_group_parent()
    # Programs of other processes may have groups there.
    left = [] if parent is None else [name for name in named if list(parent.glob(f"orchestra-sandbox-*{name}*"))]
    assert parent is not None and named and not left


@GROUPS
@pytest.mark.skipif(not WORKING, reason="this machine isolates no program")
def test_a_program_within_its_memory_ends_well() -> None:
    async def ask() -> str:
        return (await Sandbox(limits=Limits(total_memory_bytes=128 << 20)).run("print(len(b'x' * (60 << 20)))")).output

    assert asyncio.run(ask()) == f"{60 << 20}\n"


def test_where_no_group_can_be_made_the_watch_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for new, old in ((tmp_path / "nowhere", None), (None, tmp_path / "nowhere"), (None, None)):
        monkeypatch.setattr(cgroup, "group_parent", lambda found=new: found)
        monkeypatch.setattr(cgroup, "old_group_parent", lambda found=old: found)
        assert memory_group(1) is None


def test_files_that_nobody_reads_leave_the_groups_first(tmp_path: Path) -> None:
    own = group(tmp_path / "fs/app/main", "memory", "")
    for folder, limit, used, file in ((own, "max", 10, 0), (own.parent, "100", 80, 30)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {file}\n")
    here = proc(tmp_path, tmp_path / "fs", "/app/main")
    assert memory_left(here) == 50
    (own.parent / "memory.current").write_text("200\n")
    assert memory_left(here) == 0
    (own.parent / "memory.max").write_text("max\n")
    assert memory_left(here) is None


def test_what_the_groups_of_cgroup_1_would_still_give(tmp_path: Path) -> None:
    own = old_group(tmp_path / "fs/app")
    here = old_proc(tmp_path, "4:memory:/app\n", MOUNTED.format(root="/", at=tmp_path / "fs", controllers="memory"))
    (own / "memory.usage_in_bytes").write_text("4000\n")
    (own / "memory.stat").write_text("hierarchical_memory_limit 4096\ntotal_inactive_file 1000\n")
    assert memory_left(here) == 1096
    (own / "memory.stat").write_text("hierarchical_memory_limit 9223372036854771712\n")
    assert memory_left(here) is None and memory_left(tmp_path / "nowhere") is None
