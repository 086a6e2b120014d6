"""The sandbox runs real programs that try to get out, to stay, or to use more than they may."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.errors import CallError, ToolError
from orchestra.tools import sandbox
from orchestra.tools.base import Tool, ToolContext
from orchestra.tools.sandbox import Isolation, Limits, Run, Sandbox, execute, report
from orchestra.types import Price

CONTEXT = ToolContext("run it", Price(per_second=Decimal("0.0000083")), 1.0)
QUICK = Limits(seconds=15, cpu_seconds=1)


def working() -> list[Isolation]:
    found = []
    for isolation in Isolation:
        try:
            asyncio.run(execute(isolation, "print(1)", QUICK))
        except ToolError:
            continue
        found.append(isolation)
    return found


WORKING = working()
pytestmark = pytest.mark.skipif(not WORKING, reason="this machine grants no isolation: nothing is ever run here")


@pytest.fixture(params=WORKING)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return Isolation(request.param)


def run(isolation: Isolation, code: str, limits: Limits = QUICK) -> Run:
    return asyncio.run(execute(isolation, code, limits))


def test_a_program_prints_and_is_charged_by_the_second() -> None:
    tool = Sandbox(QUICK)
    assert isinstance(tool, Tool)
    result = asyncio.run(tool.call({"code": "print(sum(range(10)))"}, CONTEXT))
    assert result.text == "45"
    assert result.cost_usd == CONTEXT.price.per_second * Decimal(str(round(result.latency_s, 6)))
    assert 0 < result.latency_s < 15


def test_a_program_that_fails_says_why() -> None:
    result = asyncio.run(Sandbox(QUICK).call({"code": "print('half')\n1/0"}, CONTEXT))
    assert result.text == "half\nerror: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("arguments", [{}, {"code": 1}, {"code": " "}, {"code": "a\0"}, {"code": "\ud800"}])
def test_unusable_code_is_the_models_fault(arguments: dict[str, str]) -> None:
    with pytest.raises(CallError):
        asyncio.run(Sandbox(QUICK).call(dict(arguments), CONTEXT))


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(f"open({str(Path(__file__).resolve())!r}).read()", id="read our sources"),
        pytest.param("open('/etc/passwd').read()", id="read /etc"),
        pytest.param("open('/proc/self/environ').read()", id="read /proc"),
        pytest.param("open('/proc/1/root/etc/passwd').read()", id="leave through /proc"),
        pytest.param("open('../../../../../../etc/hostname').read()", id="climb up"),
        pytest.param("import os; os.symlink('/etc/passwd', 'l'); open('l').read()", id="symbolic link"),
        pytest.param("import os; os.link('/usr/bin/env', '/scratch/env')", id="hard link"),
        pytest.param("open('/usr/lib/planted', 'w')", id="write /usr"),
        pytest.param("open('/planted', 'w')", id="write the root"),
        pytest.param("import os; os.mkdir('/tmp/x')", id="make a folder"),
        pytest.param("import os, sys; os.chmod(sys.executable, 0o777)", id="change the interpreter"),
        pytest.param("import os; os.mknod('/scratch/disk', 0o60666, os.makedev(8, 0))", id="make a device"),
        pytest.param("import os; os.chroot('/scratch')", id="chroot"),
        pytest.param("import os; os.setuid(0)", id="become root"),
        pytest.param("import os; os.kill(1, 9); os.kill(-1, 9); raise OSError", id="kill process 1"),
        pytest.param("import socket; socket.create_connection(('127.0.0.1', PORT), 1)", id="network on this host"),
        pytest.param("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", id="datagrams"),
        pytest.param("import socket; socket.socket(socket.AF_UNIX).connect('/run/x')", id="local socket"),
        pytest.param("import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=1)", id="http"),
        pytest.param("x = b'a' * (1 << 30)", id="memory"),
        pytest.param("open('big', 'wb').write(b'a' * (9 << 20))", id="a big file"),
        pytest.param("[open(f'f{i}', 'wb').write(b'a' * (4 << 20)) for i in range(9)]", id="many big files"),
        pytest.param("[open(f'f{i}', 'w') and None for i in range(999)]", id="many files"),
        pytest.param("keep = [open('/dev/null') for _ in range(99)]", id="many descriptors"),
        pytest.param("import os, sys\nos.fork() == 0 and sys.exit()\nwhile True: os.fork()", id="fork bomb"),
        pytest.param("import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))", id="raise a limit"),
        pytest.param("import os; os.execv('/bin/su', ['su'])", id="set-uid program"),
        pytest.param("import ctypes; ctypes.string_at(0)", id="crash"),
        pytest.param("import sys; sys.setrecursionlimit(10**9); f = lambda: f(); f()", id="recursion"),
    ],
)
def test_an_attempt_ends_in_an_error(isolation: Isolation, attempt: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = run(isolation, attempt.replace("PORT", str(server.getsockname()[1])))
    assert result.status != 0, result


C_CALL = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print({}, ctypes.get_errno())"


@pytest.mark.parametrize(
    "call",
    [
        "c.unshare(0x10000000)",
        "c.mount(b'none', b'/scratch', b'tmpfs', 0, None)",
        "c.umount2(b'/', 2)",
        "c.ptrace(16, 1, None, None)",
        "c.memfd_create(b'x', 0)",
        "c.shmget(0, 1 << 30, 0o1600)",
        "c.syscall(250, 0, 0)",
        "c.reboot(0xfee1dead)",
        "c.setns(0, 0)",
    ],
)
def test_a_call_into_the_kernel_is_refused(isolation: Isolation, call: str) -> None:
    result = run(isolation, C_CALL.format(call))
    assert result.output.startswith("-1 "), result


def test_no_time_is_taken_beyond_the_limit(isolation: Isolation) -> None:
    start = time.monotonic()
    result = run(isolation, "print('on', flush=True)\nwhile True: pass", Limits(seconds=1.5))
    assert time.monotonic() - start < 8
    assert result.ended == "stopped after 1.5 s" and "on" in report(result)


def test_processor_time_is_limited_by_the_kernel_too(isolation: Isolation) -> None:
    result = run(isolation, "while True: pass", Limits(seconds=30, cpu_seconds=1))
    assert result.status != 0 and not result.ended


def test_output_is_cut_and_the_writer_killed(isolation: Isolation) -> None:
    result = run(isolation, "while True: print('x' * 10_000)", Limits(seconds=15, output_bytes=500))
    assert len(result.output) <= 500 and result.ended == "more than 500 bytes of output"


def processes() -> set[str]:
    return set(
        subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    )


def test_nothing_stays_behind(isolation: Isolation) -> None:
    mark = f"stay_{os.getpid()}_{time.monotonic_ns()}"
    code = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)  # {mark}\nprint('parent gone')"
    assert run(isolation, code).output == "parent gone\n"
    assert not [line for line in processes() if mark in line]


def test_a_cancelled_call_leaves_nothing(isolation: Isolation) -> None:
    mark = f"stay_{os.getpid()}_{time.monotonic_ns()}"

    async def cancelled() -> None:
        async with asyncio.timeout(0.5):
            await execute(isolation, f"import time; time.sleep(60)  # {mark}", Limits(seconds=30))

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert not [line for line in processes() if mark in line]


def test_calls_share_nothing(isolation: Isolation) -> None:
    assert run(isolation, "open('note', 'w').write('secret')").status == 0
    assert run(isolation, "import os; print(os.listdir('.'))").output == "[]\n"


def test_the_environment_is_not_handed_over(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret")
    assert "very-secret" not in run(isolation, "import os; print(os.environ)").output


def test_threads_and_scratch_files_work(isolation: Isolation) -> None:
    code = "import threading\nt = threading.Thread(target=lambda: open('a', 'w').write('hi'))\nt.start(); t.join()\n"
    assert run(isolation, code + "print(open('a').read())").output == "hi\n"


@pytest.fixture
def nothing_works(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sandbox, "_found", {})
    monkeypatch.setattr("os.path.realpath", lambda path: "/nonexistent/python")
    yield


@pytest.mark.usefixtures("nothing_works")
def test_without_isolation_nothing_runs_and_the_fix_is_named() -> None:
    with pytest.raises(ToolError, match=r"no isolation works here.*bubblewrap"):
        asyncio.run(Sandbox(QUICK).call({"code": "print(1)"}, CONTEXT))


def test_the_active_isolation_is_told() -> None:
    assert asyncio.run(Sandbox(QUICK).isolation()) is WORKING[0]
