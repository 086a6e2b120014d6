"""The leash: whatever a server started ends with it, and its pipes are its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra.system.processes import alive
from orchestra.tools.mcp import supervisor

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux keeps servers on a leash")
FAMILY = "setsid sleep 300 & echo $!; (sleep 300 & echo $!); "
"""Prints the pids of a child that leaves the process group and of one whose parent ends at once."""


def start(script: str, owner: int | None = None) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-I",
        "-S",
        str(Path(supervisor.__file__)),
        str(owner or os.getpid()),
        "sh",
        "-c",
        script,
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def pids(process: subprocess.Popen[str], count: int = 2) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)]


def test_what_a_server_leaves_behind_ends_with_it() -> None:
    server = start(FAMILY + "exit 7")
    left = pids(server)
    assert server.wait(20) == 7 and not any(map(alive, left))


def test_a_server_that_was_told_to_end_may_do_so_by_itself() -> None:
    server = start("trap 'echo bye; exit 5' TERM; " + FAMILY + "while :; do sleep 0.05; done")
    left = pids(server)
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 5 and not any(map(alive, left))
    assert server.stdout is not None and server.stdout.read() == "bye\n"


def test_one_that_does_not_is_killed() -> None:
    server = start("trap '' TERM; " + FAMILY + "while :; do sleep 0.05; done")
    left, began = pids(server), time.monotonic()
    server.send_signal(signal.SIGTERM)
    server.wait(20)
    assert time.monotonic() - began >= supervisor.GRACE_S and not any(map(alive, left))


def test_an_owner_that_is_gone_already_is_noticed() -> None:
    server = start("sleep 300", owner=os.getppid())
    assert server.wait(20) == 128 + signal.SIGTERM


def test_a_program_that_is_not_there() -> None:
    command = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(os.getpid()), "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")
