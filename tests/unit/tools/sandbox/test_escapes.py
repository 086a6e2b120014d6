"""Programs that try to get out, to stay, to look around or to take more than they may; every isolation holds them."""

import asyncio
import gc
import os
import re
import socket
import time
from pathlib import Path

import pytest

from orchestra.tools.sandbox.command import HOST_NAME, Isolation, Limits
from orchestra.tools.sandbox.interpreter import this_interpreter
from orchestra.tools.sandbox.tool import execute, report
from orchestra.tools.sandbox.worker import Run
from tests.support.sandboxes import QUICK, WORKING, pool, runs

pytestmark = pytest.mark.skipif(not WORKING, reason="this machine grants no isolation: nothing is ever run here")
SHORT = 0.6
"""Seconds for what only time ends."""


@pytest.fixture(params=WORKING)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return Isolation(request.param)


def run(isolation: Isolation, code: str) -> Run:
    return asyncio.run(pool(isolation).run(code))


def run_within(isolation: Isolation, code: str, limits: Limits) -> Run:
    return asyncio.run(execute(isolation, code, limits))


FAILS = {
    # files
    "read our sources": f"open({str(Path(__file__).resolve())!r}).read()",
    "read /etc": "open('/etc/passwd').read()",
    "climb up": "open('../../../../../../etc/hostname').read()",
    "climb by descriptor": "import os; os.open('../etc/passwd', os.O_RDONLY, dir_fd=os.open('/', os.O_RDONLY))",
    "symbolic link": "import os; os.symlink('/etc/passwd', 'l'); open('l').read()",
    "hard link": "import os, sys; os.link(sys.executable, '/scratch/python')",
    "packages of this machine": "import sys; sys.path += [p + '/site-packages' for p in sys.path]; import pip",
    "write beside the interpreter": "import sys; open(sys.prefix + '/planted', 'w')",
    "write the standard library": "import os; open(os.__file__, 'a')",
    "write the root": "open('/planted', 'w')",
    "make a folder": "import os; os.mkdir('/tmp')",
    "replace the scratch": "import os; os.rename('/scratch', '/other')",
    "change the interpreter": "import os, sys; os.chmod(sys.executable, 0o777)",
    "give a file away": "import os; open('f', 'w'); os.chown('f', 0, 0)",
    # /proc, /sys and devices
    "read /proc": "open('/proc/self/environ').read()",
    "leave through /proc": "open('/proc/1/root/etc/passwd').read()",
    "write memory through /proc": "open('/proc/self/mem', 'r+b')",
    "read /sys": "import os; os.listdir('/sys/kernel')",
    "the kernel's log": "open('/dev/kmsg').read()",
    "memory as a device": "open('/dev/mem', 'rb').read(1)",
    "terminal": "open('/dev/tty')",
    "make a device": "import os; os.mknod('/scratch/disk', 0o60666, os.makedev(8, 0))",
    # identity
    "chroot": "import os; os.chroot('/scratch')",
    "become root": "import os; os.setuid(0)",
    "become root's group": "import os; os.setgroups([0])",
    "set-uid program": "import os; os.execv('/bin/su', ['su'])",
    "a shell": "import subprocess; subprocess.run('id', shell=True, check=True)",
    "more than its turn": "import os; os.nice(-5)",
    "real time": "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    # other processes
    "kill process 1": "import os; os.kill(1, 9); os.kill(-1, 9); raise OSError",
    "interrupt process 1": "import os; [os.kill(1, s) for s in (2, 15, 19)]; raise OSError",
    "kill the parent": "import os; os.kill(os.getppid(), 9); raise OSError",
    "kill a process outside": f"import os; os.kill({os.getpid()}, 0)",
    "limit process 1": "import resource as r; r.prlimit(1, r.RLIMIT_NPROC, (999, 999))",
    # network
    "network on this host": "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
    "a server": "import socket; socket.create_server(('127.0.0.1', 0))",
    "datagrams": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "network 6": "import socket; socket.create_connection(('::1', PORT), 1)",
    "raw packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "local socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/x')",
    "a socket by another name": "import socket; socket.socketpair(socket.AF_INET)",
    "http": "import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=1)",
    "names": "import socket; socket.getaddrinfo('example.org', 80)",
    # more than is granted
    "memory": "x = b'a' * (1 << 30)",
    "memory by mapping": "import mmap; mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    "memory shared by mapping": "import mmap; mmap.mmap(-1, 4096)",
    "locked memory": "import ctypes as c; m = c.CDLL(None).mlockall(3); raise MemoryError if m else SystemExit",
    "a big file": "open('big', 'wb').write(b'a' * (9 << 20))",
    "a file with a hole": "open('big', 'wb').truncate(1 << 40)",
    "many big files": "[open(f'f{i}', 'wb').write(b'a' * (4 << 20)) for i in range(9)]",
    "many files": "[open(f'f{i}', 'w') and None for i in range(999)]",
    "many folders": "import os; [(os.mkdir('d'), os.chdir('d')) for i in range(999)]",
    "many descriptors": "keep = [open('/dev/null') for _ in range(99)]",
    "fork bomb": "import os, sys\nos.fork() == 0 and sys.exit()\nwhile True: os.fork()",
    "thread bomb": "import threading as t, time\nwhile 1: t.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "process bomb": "import subprocess as s, sys\nwhile 1: s.Popen([sys.executable, '-Sc', 'while 1: 0'])",
    "raise a limit": "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))",
    "processor time in one call": "10 ** 10 ** 9",
    "recursion": "import sys; sys.setrecursionlimit(10**9); f = lambda: f(); f()",
    "a source that is hard to read": "(" * 20_000,
    "an endless alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3); import time; time.sleep(9)",
    # what waits for a program, and what listens
    "say that it is ready": "import os; os.write(3, b'first 1\\nready\\n')",
    "ask for another program": "input()",
    "a second program behind a zero": "print(1)\0print(2)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "close everything": "import os; os.closerange(0, 999); raise OSError",
}


@pytest.mark.parametrize("attempt", FAILS.values(), ids=FAILS.keys())
def test_an_attempt_ends_in_an_error(isolation: Isolation, attempt: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = run(isolation, attempt.replace("PORT", str(server.getsockname()[1])))
    assert result.status != 0 and result.filtered, result
    assert not result.ended, "it was left to the clock"


KERNEL = {
    "user namespace": "c.unshare(0x10000000)",
    "namespaces by clone": "c.syscall(CLONE, 0x10000000 | 0x20000 | 17, 0, 0, 0, 0)",
    "namespaces by clone3": "c.syscall(435, c_args([0x10000000, 0, 0, 0, 17, 0, 0, 0]), 64)",
    "another's namespace": "c.setns(0, 0)",
    "mount": "c.mount(b'none', b'/scratch', b'tmpfs', 0, None)",
    "mount what is there elsewhere": "c.mount(b'/', b'/scratch', None, 4096, None)",
    "make writable": "c.mount(b'none', b'/', None, 32 | 4096, None)",
    "unmount": "c.umount2(b'/', 2)",
    "mounts as files": "c.syscall(430, b'tmpfs', 0)",
    "a tree of mounts": "c.syscall(428, -100, b'/', 1)",
    "pivot": "c.syscall(PIVOT, b'/', b'/scratch')",
    "trace": "c.ptrace(16, 1, None, None)",
    "another's memory": "c.process_vm_readv(1, None, 0, None, 0, 0)",
    "another's descriptor": "c.syscall(438, 0, 0, 0)",
    "a file by handle": "c.open_by_handle_at(-100, c_args([8, 1]), 0)",
    "memory as a file": "c.memfd_create(b'x', 0)",
    "memory shared by number": "c.shmget(0, 1 << 30, 0o1600)",
    "messages by number": "c.msgget(7, 0o1600)",
    "keys": "c.syscall(KEYCTL, 0, 0)",
    "programs in the kernel": "c.syscall(BPF, 0, 0, 0)",
    "queues into the kernel": "c.syscall(425, 1, c_args([0] * 15))",
    "counters": "c.syscall(PERF, c_args([0] * 15), 0, -1, -1, 0)",
    "page faults": "c.syscall(FAULTS, 0)",
    "clock": "c.settimeofday(c_args([0, 0]), None)",
    "host name": "c.sethostname(b'x', 1)",
    "swap": "c.swapon(b'/scratch/x', 0)",
    "module": "c.syscall(MODULE, b'x', 1, b'')",
    "restart": "c.reboot(0xfee1dead)",
    "other numbers": "c.syscall(0x40000000 | 41, 2, 1, 0)",
}
C_CALL = """
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
c_args = lambda numbers: (ctypes.c_uint64 * len(numbers))(*numbers)
numbers = {"x86_64": (56, 155, 250, 321, 298, 323, 175), "aarch64": (220, 41, 219, 280, 241, 282, 105)}
CLONE, PIVOT, KEYCTL, BPF, PERF, FAULTS, MODULE = numbers[os.uname().machine]
print(%s, ctypes.get_errno())
"""


@pytest.mark.parametrize("call", KERNEL.values(), ids=KERNEL.keys())
def test_a_call_into_the_kernel_is_refused(isolation: Isolation, call: str) -> None:
    result = run(isolation, C_CALL % call)
    assert result.output in {"-1 1\n", "-1 38\n"}, result  # EPERM, or ENOSYS: never the arguments' fault


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the older system calls are this machine's")
def test_machine_code_with_the_older_calls_is_killed(isolation: Isolation) -> None:
    code = "b8 14 00 00 00 cd 80 c3"  # getpid of 32-bit programs
    program = f"import ctypes, mmap; m = mmap.mmap(-1, 4096, flags=0x22, prot=7); m.write(bytes.fromhex('{code}'))\n"
    program += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    assert run(isolation, program).status > 128


LOOKS = {
    "own user and host": ("import os; print(os.getuid(), os.getgid(), os.getgroups(), os.uname().nodename)",
                          f"1000 1000 [] {HOST_NAME}"),
    "nothing above the root": ("import os; print(os.path.samefile('/..', '/'), os.listdir('/scratch'))", "True []"),
    "who else runs": ("import os; print(os.getpid() < 9, os.getppid() <= 1)", "True True"),
    "descriptors": ("import os\ndef there(n):\n    try: return os.fstat(n) and True\n    except OSError: return False\n"
                    "print([n for n in range(4096) if there(n)])", "[0, 1, 2]"),
    "interfaces": ("import socket; print([name for _, name in socket.if_nameindex()])", None),
    "set-uid file of its own": ("import os, shutil, subprocess, sys; shutil.copy(sys.executable, 'p'); "
                                "os.chmod('p', 0o6755); os.environ['PYTHONHOME'] = sys.prefix; "
                                "subprocess.run(['./p', '-Sc', 'import os; print(os.geteuid())'])", "1000"),
    "core of a crash": ("import os\nif os.fork() == 0: os.abort()\n"
                        "print(os.WCOREDUMP(os.wait()[1]), os.listdir('.'))", "False []"),
    "what waited for it": ("print([name for name in globals() if not name.startswith('__')])", "[]"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "seen"), LOOKS.values(), ids=LOOKS.keys())
def test_a_look_around_shows_nothing_of_this_machine(isolation: Isolation, code: str, seen: str | None) -> None:
    result = run(isolation, code)
    assert result.status != 0 if seen is None else result.output.strip() == seen, result


def test_no_file_is_there_but_what_python_needs(isolation: Isolation) -> None:
    """Every file that can be found, from the root down."""
    walk = "import os\nfor folder, _, names in os.walk('/'):\n    for name in names: print(os.path.join(folder, name))"
    result = run_within(isolation, walk, Limits(seconds=30, output_bytes=1 << 20))
    found = result.output.splitlines()
    interpreter = this_interpreter()
    needed = {interpreter.binary, *interpreter.libraries, "/dev/null", "/dev/urandom"}
    folders = tuple(f"{folder}/" for folder in interpreter.folders)
    assert interpreter.binary in found and not result.ended
    assert [path for path in found if path not in needed and not path.startswith(folders)] == []
    assert [path for path in found if path.startswith(tuple(f"{folder}/" for folder in interpreter.hidden))] == []


def test_every_module_of_the_standard_library_that_works_here_works_there(isolation: Isolation) -> None:
    names = "ssl, sqlite3, ctypes, decimal, zoneinfo, lzma, bz2, hashlib, asyncio, multiprocessing, json, random"
    code = f"import {names}\nprint(zoneinfo.ZoneInfo('UTC'), asyncio.run(asyncio.sleep(0, 7)), hashlib.md5().name)"
    assert run_within(isolation, code, Limits(seconds=30)).output == "UTC 7 md5\n"


def test_secrets_of_the_caller_are_not_handed_over(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither what stands in the environment nor an open file."""
    monkeypatch.setenv("SOME_API_KEY", "very-secret")
    file = tmp_path / "secret"
    file.write_text("very-secret", encoding="utf-8")
    look = "import os, sys; print(os.environ, sys.argv, sys.orig_argv)\nfor n in range(3, 999):\n"
    look += "    try: print(os.pread(n, 99, 0))\n    except OSError: pass"
    with file.open("rb") as opened:
        os.set_inheritable(opened.fileno(), True)
        result = run_within(isolation, look, QUICK)
    assert "PATH" in result.output and "very-secret" not in result.output


def test_calls_share_nothing(isolation: Isolation) -> None:
    """Two programs in a row, in interpreters that were started before either."""
    leave = (
        "import builtins, os, sys; open('note', 'w').write('secret'); builtins.note = os.environ['NOTE'] = 'secret'\n"
    )
    leave += "sys.modules['json'] = None; os.umask(0); os.chdir('/')"
    assert run(isolation, leave).status == 0
    look = (
        "import builtins as b, json, os; print(os.listdir('.'), hasattr(b, 'note'), 'NOTE' in os.environ, os.umask(0))"
    )
    assert run(isolation, look).output == "[] False False 63\n"


ENDLESS = {
    "a loop": "while True: pass",
    "deaf to signals": "import signal as s\nfor n in {*range(1, 32)} - {9, 19}: s.signal(n, s.SIG_IGN)\nwhile 1: 0",
    "stopped by itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "output closed": "import os, time; os.close(1); os.close(2); time.sleep(60)",
    "a pipe that nobody writes": "import os; os.mkfifo('p'); open('p')",
    "at the end": "import atexit, time; atexit.register(time.sleep, 60)",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "another session": "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)",
}


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS.keys())
def test_no_time_is_taken_beyond_the_limit(isolation: Isolation, code: str) -> None:
    start = time.monotonic()
    result = run_within(isolation, f"print('on', flush=True)\n{code}", Limits(seconds=SHORT, cpu_seconds=60))
    assert time.monotonic() - start < 30
    assert result.ended == f"stopped after {SHORT:g} s" and "on" in report(result)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while True: print('x' * 10_000)", id="many lines"),
        pytest.param("print('x' * (64 << 20))", id="one line"),
        pytest.param("import sys\nwhile True: sys.stderr.write('x' * 10_000)", id="errors"),
        pytest.param("import os\nos.fork(), os.fork()\nwhile True: os.write(1, b'\\xff\\0' * 4096)", id="four at once"),
    ],
)
def test_output_is_cut_and_the_writer_killed(isolation: Isolation, code: str) -> None:
    result = run_within(isolation, code, Limits(seconds=60, output_bytes=500))
    assert len(result.output) <= 500 and len(result.errors) <= 500
    assert re.fullmatch(r"more than \d+ bytes of output", result.ended)


def test_processes_together_hold_no_more_than_all_may(isolation: Isolation) -> None:
    code = "import os, time\nos.fork(); os.fork()\nx = b'a' * (24 << 20)\ntime.sleep(60)"
    result = run_within(isolation, code, Limits(seconds=60, total_memory_bytes=64 << 20))
    assert result.ended == "more than 64 MiB of memory"


# A child in a session of its own, with nothing open, under a name that can be found on the machine.
STAY = """
import subprocess, sys, time
null = subprocess.DEVNULL
child = [sys.executable, "-ISc", "import time; time.sleep(60)", "MARK"]
subprocess.Popen(child, stdin=null, stdout=null, stderr=null, start_new_session=True)
time.sleep(SECONDS)
"""


def test_what_a_program_started_ends_with_it(isolation: Isolation) -> None:
    mark = f"stay_{os.getpid()}_{time.monotonic_ns()}"
    result = run(isolation, STAY.replace("MARK", mark).replace("SECONDS", "0"))
    assert result.status == 0 and not runs(mark)


def test_what_a_program_started_ends_with_its_time(isolation: Isolation) -> None:
    mark = f"stay_{os.getpid()}_{time.monotonic_ns()}"
    code = STAY.replace("MARK", mark).replace("SECONDS", "60")

    async def watched(seconds: float) -> bool:
        """Whether the child was there before the end."""
        running = asyncio.ensure_future(execute(isolation, code, Limits(seconds=seconds)))
        seen = False
        while not running.done():
            seen = seen or runs(mark)
            await asyncio.sleep(0.05)
        assert running.result().ended
        return seen

    # A busy machine may need longer to start it.
    assert any(asyncio.run(watched(seconds)) for seconds in (SHORT, 5, 30))
    assert not runs(mark)


def test_a_cancelled_call_leaves_nothing(isolation: Isolation, caplog: pytest.LogCaptureFixture) -> None:
    mark = f"stay_{os.getpid()}_{time.monotonic_ns()}"

    async def cancelled() -> None:
        code = STAY.replace("MARK", mark).replace("SECONDS", "60")
        running = asyncio.ensure_future(execute(isolation, code, Limits(seconds=60)))
        while not await asyncio.to_thread(runs, mark):
            assert not running.done()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    gc.collect()
    assert not runs(mark) and caplog.messages == []
