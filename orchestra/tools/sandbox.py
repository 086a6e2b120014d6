"""Runs Python that nobody trusts: no network, nothing but an interpreter to read, a scratch that is gone afterwards.

Bubblewrap isolates where it is installed and works; otherwise the kernel's namespaces are entered directly (`jail.py`).
With neither, nothing is run. Inside, limits bound processor time, memory, processes, files and output, and system calls
that reach further are filtered. The program and all that it started are killed when it ends or its time is over.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

from pydantic import JsonValue

from orchestra.errors import CallError, ToolError
from orchestra.ledger import cost_of
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.jail import NOBODY, PROGRAM_ID
from orchestra.types import Component, Usage

MAX_CODE = 20_000
FIX = "install bubblewrap (apt-get install bubblewrap) or allow user namespaces (sysctl user.max_user_namespaces)"


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
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 8 << 20
    scratch_bytes: int = 16 << 20
    scratch_files: int = 256
    output_bytes: int = 4_000


@dataclass(frozen=True)
class Run:
    """What became of a program."""

    output: str
    errors: str
    status: int
    """Exit status; 128 + n when signal n ended it."""
    seconds: float
    ended: str = ""
    """Why it was ended early; empty when it was not."""
    filtered: bool = False
    """Whether system calls were filtered too."""


_found: dict[Limits, Isolation] = {}


class Sandbox:
    """The tool `python({"code": "print(6 * 7)"})`, which gives `42`."""

    component = Component.SANDBOX

    def __init__(self, limits: Limits | None = None, isolation: Isolation | None = None) -> None:
        """`isolation`: None finds the strongest that works here, once a process."""
        self.limits = limits or Limits()
        self._isolation = isolation

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """What the program printed; a program that fails gives `error: …` besides, which is no failure of the tool.

        Raises `CallError` without usable code, `ToolError` when no isolation works here.
        """
        run = await self.run(code_of(arguments))
        cost = cost_of(context.price, Usage(), seconds=run.seconds)
        return ToolResult(text=report(run), cost_usd=cost, latency_s=run.seconds)

    async def run(self, code: str) -> Run:
        """Run a program in a fresh sandbox; raises `ToolError`."""
        return await execute(await self.isolation(), code, self.limits)

    async def isolation(self) -> Isolation:
        """The isolation in use; raises `ToolError` where there is none."""
        if self._isolation is None:
            self._isolation = _found.get(self.limits) or await find_isolation(self.limits)
            _found[self.limits] = self._isolation
        return self._isolation

    async def ready(self) -> str:
        """What isolates programs here; raises `ToolError` where nothing does."""
        return (await self.isolation()).value


def code_of(arguments: dict[str, JsonValue]) -> str:
    code = arguments.get("code")
    if not isinstance(code, str) or not code.strip() or "\0" in code:
        raise CallError('python needs {"code": "…"} with a program')
    if len(code) > MAX_CODE:
        raise CallError(f"the program has more than {MAX_CODE} characters")
    try:
        code.encode()
    except UnicodeEncodeError:
        raise CallError("the program is not valid Unicode text") from None
    return code


def report(run: Run) -> str:
    """The observation: output, then why it failed."""
    lines = [run.output.strip()] if run.output.strip() else []
    if run.ended:
        lines.append(f"error: {run.ended}")
    elif run.status:
        last = run.errors.strip().splitlines()[-1:] or [f"exit status {run.status}"]
        lines.append(f"error: {last[0][:300]}")
    return "\n".join(lines) or "nothing was printed"


async def find_isolation(limits: Limits) -> Isolation:
    """The first that runs a trial program; raises `ToolError` with each one's reason when none does."""
    reasons = []
    for isolation in Isolation:
        try:
            run = await execute(isolation, "print(6 * 7)", limits)
        except ToolError as error:
            reasons.append(f"{isolation}: {error.what}")
            continue
        if run.status == 0 and run.output.strip() == "42":
            return isolation
        reasons.append(f"{isolation}: the trial program gave {report(run)}")
    raise ToolError("no isolation works here: " + "; ".join(reasons), where="sandbox", fix=FIX)


async def execute(isolation: Isolation, code: str, limits: Limits) -> Run:
    """Run a program under one isolation; raises `ToolError` when it could not be set up (the program did not run)."""
    if not sys.platform.startswith("linux"):
        raise ToolError(f"no isolation on {sys.platform}", where="sandbox", fix="run on Linux")
    # The kernel does not limit the processes of root, so that bubblewrap is not run as root.
    user = NOBODY if isolation is Isolation.BUBBLEWRAP and os.geteuid() == 0 else None
    status_read, status_write = os.pipe()
    try:
        start = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(isolation, code, limits, status_write),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(status_write,),
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except OSError as error:
            raise ToolError(f"cannot start: {error}", where=f"sandbox ({isolation})", fix=FIX) from None
        finally:
            os.close(status_write)
        output, errors, ended = await _watch(process, limits)
        seconds = time.monotonic() - start
        os.set_blocking(status_read, False)
        ready = _read_status(status_read)
    finally:
        os.close(status_read)
    if not ready.startswith("ready"):
        reason = ended or " ".join(errors.split())[-300:] or f"exit status {process.returncode}"
        raise ToolError(f"isolation failed: {reason}", where=f"sandbox ({isolation})", fix=FIX)
    return Run(output, errors, process.returncode or 0, seconds, ended, "filtered" in ready)


def command(isolation: Isolation, code: str, limits: Limits, status: int) -> list[str]:
    """The command line; `status` is the descriptor on which the jail says that it is ready. Raises `ToolError`."""
    python = os.path.realpath(sys.executable)
    readable = list(dict.fromkeys(p for p in ("/usr", "/lib", "/lib64", sys.base_prefix) if os.path.exists(p)))
    readable = [p for p in readable if not any(p != other and p.startswith(other + "/") for other in readable)]
    spec = {
        "status": status,
        "namespaces": isolation is Isolation.NAMESPACES,
        "mount_point": "/mnt" if any(path.startswith("/tmp") for path in readable) else "/tmp",
        "readable": readable,
        "scratch_bytes": limits.scratch_bytes,
        "scratch_files": limits.scratch_files,
        "limits": {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 0,
        },
        "program": [python, "-I", "-S", "-B", "-c", code],
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/scratch", "TMPDIR": "/scratch", "LANG": "C.UTF-8"},
    }
    source = files("orchestra.tools").joinpath("jail.py").read_text(encoding="utf-8")
    jail = [python, "-I", "-S", "-B", "-c", source]
    if isolation is Isolation.NAMESPACES:
        return [*jail, "enter", json.dumps(spec)]
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise ToolError("bubblewrap is not installed", where="sandbox (bubblewrap)", fix=FIX)
    options = [
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--uid",
        str(PROGRAM_ID),
        "--gid",
        str(PROGRAM_ID),
        "--clearenv",
    ]
    for path in readable:
        options += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    options += ["--dev", "/dev", "--size", str(limits.scratch_bytes), "--tmpfs", "/scratch", "--chdir", "/scratch"]
    options += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [bubblewrap, *options, "--", *jail, "confine", json.dumps(spec)]


async def _watch(process: asyncio.subprocess.Process, limits: Limits) -> tuple[str, str, str]:
    """Output, errors, and why the program was ended; on return nothing of it is left, also when cancelled."""
    assert process.stdout is not None and process.stderr is not None
    over = asyncio.Event()
    readers = [
        asyncio.ensure_future(_collect(stream, limits.output_bytes, over))
        for stream in (process.stdout, process.stderr)
    ]
    finished: asyncio.Future[list[str]] = asyncio.ensure_future(asyncio.gather(*readers))
    overflow = asyncio.ensure_future(over.wait())
    either: set[asyncio.Future[Any]] = {finished, overflow}
    try:
        await asyncio.wait(either, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        ended = ""
        if over.is_set():
            ended = f"more than {limits.output_bytes} bytes of output"
        elif not finished.done():
            ended = f"stopped after {limits.seconds:g} s"
    finally:
        overflow.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    output, errors = await finished
    return output, errors, ended


async def _collect(stream: asyncio.StreamReader, limit: int, over: asyncio.Event) -> str:
    """The first `limit` bytes as text; the rest is read and forgotten, so that the writer never blocks."""
    kept = b""
    while chunk := await stream.read(65_536):
        if len(kept) + len(chunk) > limit:
            over.set()
        kept = (kept + chunk)[:limit]
    return kept.decode(errors="replace")


def _read_status(descriptor: int) -> str:
    try:
        return os.read(descriptor, 100).decode()
    except BlockingIOError:
        return ""
