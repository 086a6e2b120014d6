"""Writes that are whole: what reaches the disk in which order, and what a kill between two steps leaves."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestra.files import atomic

KILLED_AT_A_STEP = """
import os, signal, sys
from pathlib import Path
from orchestra.files import atomic

kind, place, last, exchange = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "exchange"
steps = 0

def step(real):
    def counted(*arguments, **named):
        global steps
        steps += 1
        if steps > last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return counted

for name in ("fsync", "replace", "rename", "unlink", "mkdir", "close"):
    setattr(os, name, step(getattr(os, name)))
atomic._exchange = step(atomic._exchange) if exchange else lambda one, other: False
if kind == "file":
    atomic.write_text(place, "new" * 1000)
else:
    with atomic.whole_folder(place) as folder:
        for name in ("a", "b"):
            (folder / name).write_text("new" * 1000)
"""


def killed(kind: str, place: Path, last: int, exchange: str = "exchange") -> bool:
    """Write to `place` in a process that is killed after that many steps; False where it ends before."""
    arguments = [kind, str(place), str(last), exchange]
    done = subprocess.run([sys.executable, "-c", KILLED_AT_A_STEP, *arguments], check=False, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def held(place: Path) -> dict[str, str]:
    """The texts of a file or of a folder's files, by name."""
    files = [place] if place.is_file() else sorted(place.iterdir())
    return {file.name: file.read_text() for file in files}


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    place, seen, last = tmp_path / "x.json", set[str](), 0
    place.write_text("old")
    while killed("file", place, last):
        text = held(place)["x.json"]
        assert text in ("old", "new" * 1000)
        seen.add(text)
        last += 1
    assert len(seen) == 2 and last > 4
    assert list(tmp_path.iterdir()) == [place]


def test_a_killed_writer_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    place, seen, last = tmp_path / "set", set[int](), 0
    place.mkdir()
    (place / "old").write_text("old")
    if not can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange two names")
    old, new = {"old": "old"}, {"a": "new" * 1000, "b": "new" * 1000}
    while killed("folder", place, last):
        found = held(place)
        assert found in (old, new)
        seen.add(len(found))
        last += 1
    assert seen == {1, 2} and last > 6
    assert list(tmp_path.iterdir()) == [place]


def test_without_an_exchange_the_next_writer_finds_the_old_folder_again(tmp_path: Path) -> None:
    place, gone, last = tmp_path / "set", 0, 0
    while True:
        if not place.is_dir():
            place.mkdir()
            (place / "old").write_text("old")
        if not killed("folder", place, last, "none"):
            break
        if not place.is_dir():
            gone += 1
            with pytest.raises(ZeroDivisionError), atomic.whole_folder(place):
                assert held(place) == {"old": "old"}
                raise ZeroDivisionError
        assert held(place) in ({"old": "old"}, {"a": "new" * 1000, "b": "new" * 1000})
        last += 1
    assert gone >= 1 and list(tmp_path.iterdir()) == [place]


def can_exchange(folder: Path) -> bool:
    one, other = folder / "one", folder / "other"
    for made in (one, other):
        made.mkdir()
    try:
        return atomic._exchange(one, other)
    finally:
        for made in (one, other):
            made.rmdir()


def recorded(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> list[str]:
    """What `write` asks of the system, in order: names of what is flushed, and the renames."""
    calls: list[str] = []

    def fsync(handle: int, real: Callable[[int], None] = os.fsync) -> None:
        calls.append("flush " + Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    def replace(source: Path, target: Path, real: Callable[[Path, Path], None] = os.replace) -> None:
        calls.append(f"rename to {target.name}")
        real(source, target)

    def exchange(one: Path, other: Path, real: Callable[[Path, Path], bool] = atomic._exchange) -> bool:
        calls.append(f"exchange with {other.name}")
        return real(one, other)

    def rmtree(folder: Path, real: Callable[..., None] = shutil.rmtree, **options: Any) -> None:
        calls.append("remove")
        real(folder, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr(atomic, "_exchange", exchange)
    write()
    # A partial name is random.
    return [".partial" if call.endswith(".partial") else call for call in calls]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, lambda: atomic.write_text(tmp_path / "x.json", "1"))
    assert calls == [".partial", "rename to x.json", f"flush {tmp_path.name}"]


def test_a_file_that_may_be_lost_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        with atomic.whole_file(tmp_path / "x", durable=False) as file:
            file.write_text("1")

    assert recorded(monkeypatch, write) == ["rename to x"]
    assert held(tmp_path / "x") == {"x": "1"}


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        with atomic.whole_folder(tmp_path / "set") as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / "a").write_text("1")
            (folder / "b").symlink_to("nowhere")

    inside = ["flush a", "flush inner", ".partial"]
    assert recorded(monkeypatch, write) == [*inside, "rename to set", f"flush {tmp_path.name}"]
    again = recorded(monkeypatch, write)
    assert [call for call in again if call.startswith("exchange")] == ["exchange with set"]
    if can_exchange(tmp_path):  # The old one stays until the disk knows the new one by its name.
        assert again[len(inside) :] == [
            "exchange with set",
            f"flush {tmp_path.name}",
            "remove",
            f"flush {tmp_path.name}",
        ]


def test_a_secret_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, lambda: atomic.private_once(tmp_path / "key", "s"))
    assert calls == [".partial", f"flush {tmp_path.name}"]


def test_a_private_file_takes_no_mode_of_the_one_before(tmp_path: Path) -> None:
    place = tmp_path / "key"
    place.touch()
    place.chmod(0o644)
    with atomic.whole_file(place, private=True) as partial:
        assert partial.stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o600
    place.chmod(0o666)
    atomic.write_private(place, "new")
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "x"
    place.write_text("old")
    place.chmod(0o600)
    atomic.write_text(place, "new")
    assert place.read_text() == "new" and place.stat().st_mode & 0o777 == 0o600


def test_of_many_who_make_a_secret_one_wins_and_all_read_his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys" / "x"
    with ThreadPoolExecutor(8) as pool:
        read = set(pool.map(lambda number: atomic.private_once(file, f"secret {number}"), range(8)))
    assert read == {file.read_text()} and file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["x"]
    monkeypatch.setattr("os.link", lambda *_: os.open("/proc/nowhere", os.O_RDONLY))
    assert atomic.private_once(tmp_path / "y", "no links here") == "no links here"
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o600


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("old")
    (tmp_path / "cache").chmod(0o444)
    (tmp_path / "x").symlink_to("cache")
    atomic.write_text(tmp_path / "x", "new")
    assert (tmp_path / "cache").read_text() == "old" and not (tmp_path / "x").is_symlink()
    assert (tmp_path / "x").stat().st_mode & 0o200


def test_a_link_to_what_is_another_user_s_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/<pid>/fd/<n> of a process that ended, once another user's has its number."""
    link, look = tmp_path / "a", Path.stat
    link.symlink_to(tmp_path / "b")

    def denied(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == link and follow_symlinks:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denied)
    with atomic.whole_file(link) as file:
        file.write_text("new")
    assert not link.is_symlink() and link.read_text() == "new"


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "x", "old")
    with pytest.raises(ZeroDivisionError), atomic.open_text(tmp_path / "x") as file:
        file.write("new")
        raise ZeroDivisionError
    assert held(tmp_path) == {"x": "old"}


def test_two_writers_of_one_place_leave_each_other_alone(tmp_path: Path) -> None:
    with atomic.whole_folder(tmp_path / "set") as one, atomic.whole_folder(tmp_path / "set") as other:
        (one / "one").touch()
        (other / "other").touch()
        assert (one / "one").exists()
    assert [file.name for file in (tmp_path / "set").iterdir()] == ["one"]
    assert [file.name for file in tmp_path.iterdir()] == ["set"]


def test_a_file_is_written_inside_a_folder_in_the_making(tmp_path: Path) -> None:
    with atomic.whole_folder(tmp_path / "set") as folder:
        atomic.write_text(folder / "x", "1")
    assert held(tmp_path / "set") == {"x": "1"}


def test_names_that_only_look_alike_are_left(tmp_path: Path) -> None:
    # The second is what `orchestra measure` goes on with.
    others = {
        ".x.partial",
        ".x.12345678.partial",
        ".x.1234567890.partial.txt",
        ".xy.1234567890.partial",
        ".x.123456789g.partial",
    }
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".x.1234567890.partial").touch()
    atomic.write_text(tmp_path / "x", "1")
    assert {file.name for file in tmp_path.iterdir()} == {"x", *others}


def test_an_added_line_is_on_the_disk_and_so_is_the_name_of_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines.jsonl"
    assert recorded(monkeypatch, lambda: atomic.append_text(file, "1\n")) == [
        "flush lines.jsonl",
        f"flush {tmp_path.name}",
    ]
    monkeypatch.undo()
    assert recorded(monkeypatch, lambda: atomic.append_text(file, "2\n")) == ["flush lines.jsonl"]
    assert file.read_text() == "1\n2\n"
