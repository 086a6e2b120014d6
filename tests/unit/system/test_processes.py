"""Children die with their parent, trees die whole, and servers are found again by pid."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.system import processes
from orchestra.system.processes import (
    Service,
    alive,
    descendants,
    free_port,
    kill_tree,
    port_busy,
    remember,
    run_child,
    services,
    spawn,
    start_service,
    started_at,
    stop_services,
    url_host,
    wait_until,
)
from tests.support.waiting import soon

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]  # fmt: skip
FAMILY = [
    sys.executable, "-c",
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
]  # fmt: skip


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys; from pathlib import Path; from orchestra.system.processes import spawn\n"
            f"child = spawn({SLEEP!r}); Path({str(note)!r}).write_text(str(child.pid)); child.wait()",
        ]
    )  # fmt: skip
    assert soon(lambda: note.is_file() and bool(note.read_text()))
    child = int(note.read_text())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert soon(lambda: not alive(child))


def test_a_spawned_child_has_its_own_group_and_joins_stderr_to_stdout() -> None:
    code = "import os, sys; print(os.getpgid(0) == os.getpid()); print('oops', file=sys.stderr)"
    child = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    out, _ = child.communicate(timeout=20)
    assert out.split() == ["True", "oops"]


def test_a_child_is_read_to_its_end(tmp_path: Path) -> None:
    told: list[str] = []
    code = run_child(
        [sys.executable, "-c", "import os; print(os.getcwd()); print('end', end=''); exit(3)"],
        cwd=tmp_path, env=dict(os.environ), on_line=told.append,
    )  # fmt: skip
    assert code == 3 and told == [f"{tmp_path}\n", "end"]


def test_a_child_that_is_left_early_is_ended_with_all_below_it(tmp_path: Path) -> None:
    pids: list[int] = []

    def leave(line: str) -> None:
        pids.extend(map(int, line.split()))
        raise TimeoutError

    below = "import os, subprocess, time; p = subprocess.Popen(['sleep', '60'])\nprint(os.getpid(), p.pid, flush=True)"
    with pytest.raises(TimeoutError):
        run_child([sys.executable, "-c", f"{below}\ntime.sleep(60)"], cwd=tmp_path, env=dict(os.environ), on_line=leave)
    assert len(pids) == 2 and not any(map(alive, pids))


def test_a_tree_is_killed_whole() -> None:
    parent = spawn(FAMILY)
    assert soon(lambda: len(descendants(parent.pid)) == 1)
    family = [parent.pid, *descendants(parent.pid)]
    kill_tree(parent.pid)
    assert not any(alive(pid) for pid in family)


def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    child = spawn(STUBBORN, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    began = time.monotonic()
    kill_tree(child.pid, grace_s=0.3)
    assert not alive(child.pid) and time.monotonic() - began >= 0.3
    child.stdout.close()


def test_killing_what_is_gone_is_no_error() -> None:
    child = spawn([sys.executable, "-c", ""])
    child.wait()
    kill_tree(child.pid)
    assert not alive(child.pid) and started_at(child.pid) is None


def test_a_child_whose_flow_was_killed_before_it_could_ask_ends_itself() -> None:
    gone = subprocess.Popen(SLEEP)
    gone.kill()
    gone.wait()
    code = "from orchestra.system.processes import die_with_parent; die_with_parent({}); print('lives')"
    for ancestor, lives in ((gone.pid, False), (os.getpid(), True)):
        child = subprocess.run([sys.executable, "-c", code.format(ancestor)], capture_output=True, text=True)
        assert (child.stdout == "lives\n") is lives and (child.returncode == 0) is lives


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert soon(lambda: not alive(child.pid))
    child.wait()


def test_ports() -> None:
    port = free_port()
    assert not port_busy(port)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        sock.listen()
        assert port_busy(port)
    assert not port_busy(port, "192.0.2.1"), "no address of this machine"


def test_what_is_waited_for_comes_is_gone_or_takes_too_long() -> None:
    looks = iter([False, False, True])
    assert wait_until(lambda: next(looks), 10)
    gone = iter([False, True])
    assert not wait_until(lambda: False, 10, gone=lambda: next(gone))
    assert not wait_until(lambda: True, 10, gone=lambda: True), "another program may answer in its place"
    assert not wait_until(lambda: False, 0)


def test_hosts_in_addresses() -> None:
    hosts = {"2001:DB8:0::1": "[2001:db8::1]", "[::1]": "[::1]", "127.0.0.1": "127.0.0.1", "A.example": "a.example"}
    assert [url_host(host) for host in hosts] == list(hosts.values())


def test_a_service_is_found_again_and_ended_with_its_children(tmp_path: Path) -> None:
    made = start_service(tmp_path, "demo", FAMILY, port=1, url="http://127.0.0.1:1")
    assert services(tmp_path) == [made] and made.log == ".state/logs/demo.log"
    assert soon(lambda: len(descendants(made.pid)) == 1)
    child = descendants(made.pid)[0]
    assert stop_services(tmp_path, "other") == []
    assert stop_services(tmp_path) == [made]
    assert services(tmp_path) == [] and not alive(made.pid) and not alive(child)
    assert stop_services(tmp_path) == []


def test_a_long_log_is_put_aside_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 8)
    folder = tmp_path / ".state/logs"
    for word, logs in (("short", ["short\n"]), ("again", ["short\nagain\n"]), ("new", ["new\n", "short\nagain\n"])):
        started = start_service(tmp_path, "demo", ["echo", word], port=1, url="http://127.0.0.1:1")
        assert soon(lambda pid=started.pid: not alive(pid))  # type: ignore[misc]
        assert [file.read_text() for file in sorted(folder.iterdir())] == logs


def test_a_recycled_pid_is_another_process(tmp_path: Path) -> None:
    remember(tmp_path, Service("old", os.getpid(), "1", 1, "http://127.0.0.1:1", "x"))
    assert services(tmp_path) == [] and stop_services(tmp_path) == []
    assert not (tmp_path / ".state" / "old.pid.json").exists() and alive(os.getpid())


def test_whoever_asks_while_servers_come_and_go_sees_those_that_stay(tmp_path: Path) -> None:
    mine = started_at(os.getpid()) or ""
    stays = Service("gateway", os.getpid(), mine, 1, "http://127.0.0.1:1", "x")
    remember(tmp_path, stays)
    done = threading.Event()

    def release() -> None:
        while not done.is_set():
            remember(tmp_path, Service("away", os.getpid(), "1", 2, "http://127.0.0.1:2", "x"))
            remember(tmp_path, stays)
            stop_services(tmp_path, "away")

    thread = threading.Thread(target=release)
    thread.start()
    try:
        assert all(services(tmp_path) == [stays] for _ in range(1000))
    finally:
        done.set()
        thread.join()


def test_servers_of_another_user_are_not_called_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert services(tmp_path) == [], "no folder yet"
    child = spawn(SLEEP)

    def closed(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), ".state")

    try:
        remember(tmp_path, Service("demo", child.pid, started_at(child.pid) or "", 1, "http://127.0.0.1:1", "x"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda pid, sig: closed() if sig else None)
            told = f"process {child.pid} belongs to another user — sudo kill {child.pid}"
            with pytest.raises(ServiceError, match=told):
                stop_services(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", closed)
            with pytest.raises(PermissionError):
                stop_services(tmp_path)
        assert len(stop_services(tmp_path)) == 1
    finally:
        kill_tree(child.pid)


def test_a_damaged_pid_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "bad.pid.json").write_text("{", encoding="utf-8")
    with pytest.raises(ServiceError, match="not a pid file"):
        services(tmp_path)
