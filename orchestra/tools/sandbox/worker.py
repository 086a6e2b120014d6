"""One isolated interpreter that waits for one program: started, used once, and gone with all that it started."""

import asyncio
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from orchestra.errors import ToolError
from orchestra.tools.sandbox.interpreter import this_interpreter
from orchestra.tools.sandbox.jail import PROGRAM_ID, WAIT

FIX = (
    "allow user namespaces, which bubblewrap needs too: "
    "sudo sysctl -w user.max_user_namespaces=65536, on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0"
)
HOST_NAME = "sandbox"
DEVICES = ["/dev/null", "/dev/urandom"]
START_S = 60.0
"""The longest an interpreter may take to be ready: a busy machine, not a program."""
MEMORY_EVERY_S = 0.2
MOST_ERRORS = 1 << 20
"""Bytes: of these the end is kept. A message about a program can be longer than the program."""


class Isolation(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    """The kernel's own, without bubblewrap: user, mount, process, network, IPC, host name and cgroup namespaces."""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 5.0
    """Wall time."""
    cpu_seconds: int = 4
    memory_bytes: int = 256 << 20
    """Address space of each process."""
    total_memory_bytes: int = 512 << 20
    """What all its processes hold together; looked at every `MEMORY_EVERY_S`."""
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 8 << 20
    scratch_bytes: int = 16 << 20
    scratch_files: int = 256
    output_bytes: int = 4_000
    """Kept of what it prints; one that prints more is ended."""


@dataclass(frozen=True)
class Run:
    """What became of a program."""

    output: str
    errors: str
    status: int
    """Exit status; 128 + n when signal n ended it."""
    seconds: float
    """Wall time of the program; the start of the interpreter is not in it."""
    ended: str = ""
    """Why it was ended early; empty when it was not."""
    filtered: bool = False
    """Whether system calls were filtered too."""


class Cell:
    """An interpreter in a sandbox of its own. The maker of one calls `kill` at the end."""

    def __init__(self, isolation: Isolation, limits: Limits) -> None:
        """Start it and return at once. It dies with the thread that calls. Raises `ToolError`."""
        self.limits, self._where = limits, f"sandbox ({isolation})"
        if not sys.platform.startswith("linux"):
            raise ToolError(f"no isolation on {sys.platform}", where="sandbox", fix="run on Linux")
        self._said = ""
        self._pid = 0
        """The first process inside: its end is the end of all that was started there."""
        self._first: int | None = None
        """The same as a descriptor, which never means another process."""
        self._dead = False
        self._status, write = os.pipe()
        os.set_blocking(self._status, False)
        try:
            self.process = subprocess.Popen(
                command(isolation, limits, write),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(write,),
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
            )
        except (OSError, ToolError) as error:
            os.close(self._status)
            what = error.what if isinstance(error, ToolError) else f"cannot start: {error}"
            raise ToolError(what, where=self._where, fix=FIX) from None
        finally:
            os.close(write)
        self._pipes = [pipe for pipe in (self.process.stdin, self.process.stdout, self.process.stderr) if pipe]

    @property
    def alive(self) -> bool:
        return not self._dead and self.process.poll() is None

    async def ready(self) -> None:
        """Wait until the interpreter waits, isolated. Raises `ToolError` when it could not be set up."""
        try:
            async with asyncio.timeout(START_S):
                while not self._is_ready():
                    await _readable(self._status)
        except TimeoutError:
            raise ToolError(f"not ready after {START_S:g} s", where=self._where) from None

    async def run(self, code: str) -> Run:
        """Run its one program: once, after `ready`. On return nothing of it is left, also when cancelled."""
        start = time.monotonic()
        (stdin, stdout, stderr), self._pipes = self._pipes, []
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        program = asyncio.ensure_future(_converse(stdin, stdout, stderr, code, self.limits.output_bytes, ended))
        memory = asyncio.ensure_future(_watch_memory(self._pid, self.limits.total_memory_bytes, ended))
        either: set[asyncio.Future[Any]] = {program, ended}
        try:
            await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            why = "" if program.done() else f"stopped after {self.limits.seconds:g} s"
            self._kill_first()
            output, errors = await program
        finally:
            self.kill()
            program.cancel()
            memory.cancel()
        if ended.done():
            why = ended.result()
        status = self.process.returncode
        seconds = time.monotonic() - start
        return Run(output, errors, status if status >= 0 else 128 - status, seconds, why, "filtered" in self._said)

    def kill(self) -> None:
        """End it; on return nothing of it is left. Doing so twice does no harm."""
        if self._dead:
            return
        self._dead = True
        with contextlib.suppress(ToolError):
            self._listen()
        if self._first is not None:
            self._kill_first()
            gone = select.poll()
            gone.register(self._first, select.POLLIN)
            gone.poll(10_000)
            os.close(self._first)
        self._end()
        os.close(self._status)
        for pipe in self._pipes:
            pipe.close()

    def _end(self) -> None:
        if self.process.poll() is None:  # afterwards its number may be another's
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _kill_first(self) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _is_ready(self) -> bool:
        """Raises `ToolError` when it has ended instead."""
        over = self._listen()
        if self._first is not None and "ready" in self._said:
            return True
        if over:
            self._end()
            stderr = self._pipes[2].fileno()
            os.set_blocking(stderr, False)
            errors = ""
            with contextlib.suppress(BlockingIOError):
                errors = os.read(stderr, 10_000).decode(errors="replace")
            reason = " ".join(errors.split())[-300:] or f"exit status {self.process.returncode}"
            raise ToolError(f"isolation failed: {reason}", where=self._where, fix=FIX)
        return False

    def _listen(self) -> bool:
        """Take in what was said on the descriptor `status`; True when nothing more can be said there."""
        try:
            while part := os.read(self._status, 4096):
                self._said += part.decode()
            return True
        except BlockingIOError:
            return False
        finally:
            told = re.search(r"first (\d+)\n", self._said)
            if told is not None and self._first is None:
                self._pid = int(told[1])
                with contextlib.suppress(ProcessLookupError):
                    self._first = os.pidfd_open(self._pid)


def command(isolation: Isolation, limits: Limits, status: int) -> list[str]:
    """The command line; `status` is the descriptor on which the jail says how far it is. Raises `ToolError`."""
    interpreter = this_interpreter()
    spec = {
        "status": status,
        "bubblewrap": [],
        "host_name": HOST_NAME,
        "mount_point": "/mnt" if any(path.startswith("/tmp") for path in interpreter.readable) else "/tmp",
        "readable": interpreter.readable,
        "hidden": interpreter.hidden,
        "devices": DEVICES,
        "scratch_bytes": limits.scratch_bytes,
        "scratch_files": limits.scratch_files,
        "limits": {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_CORE": 1,  # 0 would still hand a core to a program that the machine may have for them
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_RTPRIO": 0,
            "RLIMIT_SIGPENDING": 256,
        },
        "program": [interpreter.binary, "-I", "-S", "-B", "-X", "utf8", "-c", WAIT],
        "environment": {
            "PATH": os.path.dirname(interpreter.binary),
            "HOME": "/scratch",
            "TMPDIR": "/scratch",
            "LANG": "C.UTF-8",
            **interpreter.environment,
        },
    }
    if isolation is Isolation.BUBBLEWRAP:
        spec["bubblewrap"] = [*_bubblewrap(), "--", *_jail("confine", spec)]
    return _jail("enter", spec)


def _jail(step: str, spec: dict[str, Any]) -> list[str]:
    return [this_interpreter().binary, "-I", "-S", "-B", "-c", f"{_source()}\n\nguarded(lambda: {step}({spec!r}))\n"]


@cache
def _source() -> str:
    return files("orchestra.tools.sandbox").joinpath("jail.py").read_text(encoding="utf-8")


def _bubblewrap() -> list[str]:
    """Bubblewrap and its options. It runs as root of the user namespace that the jail made, or makes another."""
    binary = shutil.which("bwrap")
    if binary is None:
        raise ToolError("bubblewrap is not installed")
    interpreter = this_interpreter()
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        options += ["--unshare-user", "--uid", str(PROGRAM_ID), "--gid", str(PROGRAM_ID), "--cap-add", "CAP_SYS_ADMIN"]
    options += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", HOST_NAME]
    for name, value in interpreter.environment.items():
        options += ["--setenv", name, value]
    # Folders that it makes unasked, only root may enter.
    for folder in sorted(
        {str(parent) for path in (*interpreter.readable, *DEVICES) for parent in Path(path).parents[:-1]}
    ):
        options += ["--dir", folder]
    for path in interpreter.readable:
        options += ["--ro-bind", path, path]
    for path in interpreter.hidden:
        options += ["--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        options += ["--dev-bind", path, path]
    return [binary, *options, "--dir", "/scratch", "--remount-ro", "/", "--chdir", "/"]


async def _until(add: Callable[[int, Callable[[], None]], object], remove: Callable[[int], object], fd: int) -> None:
    event = asyncio.Event()
    add(fd, event.set)
    try:
        await event.wait()
    finally:
        remove(fd)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    await _until(loop.add_reader, loop.remove_reader, fd)


async def _converse(
    stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], code: str, most: int, ended: asyncio.Future[str]
) -> tuple[str, str]:
    """Hand over the program and take in what it writes, until no process can write any more."""
    output, errors, _ = await asyncio.gather(
        _collect(stdout, most, slice(most), ended),
        _collect(stderr, max(most, MOST_ERRORS), slice(-most, None), ended),  # its last line says what it was
        _send(stdin, code),
    )
    return output, errors


async def _collect(pipe: IO[bytes], most: int, part: slice, ended: asyncio.Future[str]) -> str:
    """A part of what is written, as text; the rest is read and forgotten, so that the writer never blocks."""
    kept, size = b"", 0
    with pipe:
        while True:
            await _readable(pipe.fileno())
            chunk = os.read(pipe.fileno(), 65_536)
            if not chunk:
                return kept.decode(errors="replace")
            size += len(chunk)
            if size > most and not ended.done():
                ended.set_result(f"more than {most} bytes of output")
            kept = (kept + chunk)[part]


async def _send(pipe: IO[bytes], code: str) -> None:
    """Hand over a program, closed by a zero byte; one that the reader does not wait for is not the sender's fault."""
    loop = asyncio.get_running_loop()
    rest = code.encode() + b"\0"
    with pipe, contextlib.suppress(BrokenPipeError):
        os.set_blocking(pipe.fileno(), False)
        while rest:
            await _until(loop.add_writer, loop.remove_writer, pipe.fileno())
            rest = rest[os.write(pipe.fileno(), rest) :]


async def _watch_memory(pid: int, most: int, ended: asyncio.Future[str]) -> None:
    """The kernel limits each process; what all of them hold is looked at from outside."""
    while not ended.done():
        await asyncio.sleep(MEMORY_EVERY_S)
        if sum(_memory(member) for member in _tree(pid)) > most and not ended.done():
            ended.set_result(f"more than {most >> 20} MiB of memory")


def _tree(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text(encoding="ascii").split():
                yield from _tree(int(child))


def _memory(pid: int) -> int:
    """Bytes that a process holds; of those it shares, its part."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"), re.M)
        return int(found[1]) << 10 if found is not None else 0
    return 0
