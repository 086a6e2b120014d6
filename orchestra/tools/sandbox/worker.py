"""One isolated interpreter that waits for one program: started, used once, and gone with all that it started."""

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestra.errors import ToolError
from orchestra.tools.sandbox.cgroup import memory_group
from orchestra.tools.sandbox.command import Isolation, Limits, command
from orchestra.tools.sandbox.memory import MemoryWatch, held_more
from orchestra.tools.sandbox.pipes import converse, readable

FIX = (
    "allow user namespaces, which bubblewrap needs too: "
    "sudo sysctl -w user.max_user_namespaces=65536, on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0"
)
START_S = 60.0
"""The longest an interpreter may take to be ready: a busy machine, not a program."""
END_S = 10.0
"""The longest a killed program may take to be gone."""


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
        self._memory: MemoryWatch | None = None
        self._group = memory_group(limits.total_memory_bytes)
        self._too_large = False
        """Whether it was ended for the memory of all its processes."""
        self._dead = False
        self._status, write = os.pipe()
        os.set_blocking(self._status, False)
        try:
            self.process = subprocess.Popen(
                command(isolation, limits, write, self._group.entry if self._group is not None else ""),
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
            self._leave_group()
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
                    await readable(self._status)
        except TimeoutError:
            raise ToolError(f"not ready after {START_S:g} s", where=self._where) from None

    async def run(self, code: str) -> Run:
        """Run its one program: once, after `ready`. On return nothing of it is left, also when cancelled.

        Its time ends it, whatever becomes of its pipes. Raises `ToolError` when killing does not.
        """
        start = time.monotonic()
        (stdin, stdout, stderr), self._pipes = self._pipes, []
        assert self._first is not None
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        talk = converse(stdin, stdout, stderr, code, self.limits.output_bytes, ended)
        program = asyncio.gather(talk, readable(self._first))
        self._watch()
        either: set[asyncio.Future[Any]] = {program, ended}
        try:
            await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            why = "" if program.done() else f"stopped after {self.limits.seconds:g} s"
            self._kill_first()
            await asyncio.wait({program}, timeout=END_S)
            if not program.done():
                raise ToolError(f"the program is not gone {END_S:g} s after its end", where=self._where)
            output, errors = program.result()[0]
        finally:
            program.cancel()
            await asyncio.gather(program, return_exceptions=True)  # Else asyncio complains of its end.
            await self.aclose()
        if self._too_large:
            why = f"more than {self.limits.total_memory_bytes >> 20} MiB of memory"
        elif ended.done():
            why = ended.result()
        status = self.process.returncode
        status = -signal.SIGKILL if status is None else status
        seconds = time.monotonic() - start
        return Run(output, errors, status if status >= 0 else 128 - status, seconds, why, "filtered" in self._said)

    def _watch(self) -> None:
        """Have the program ended when its processes hold too much, unless the kernel ends all of them itself."""
        if self._group is None:
            over = partial(held_more, self._pid, self.limits.total_memory_bytes)
            self._memory = MemoryWatch(over, self._kill_first)
        elif self._group.version == 1:
            group = self._group
            self._memory = MemoryWatch(lambda: group.passed, self._kill_first)

    async def aclose(self) -> None:
        """`kill`, while the event loop goes on: what a program held, the kernel may take long to give back."""
        if not self._dead:
            await _aside(self.kill)

    def kill(self) -> None:
        """End it; on return nothing of it is left. Doing so twice does no harm."""
        if self._dead:
            return
        self._dead = True
        with contextlib.suppress(ToolError):
            self._listen()
        if self._first is None:
            self._kill_outside()
        else:
            self._kill_first()
            gone = select.poll()
            gone.register(self._first, select.POLLIN)
            gone.poll(END_S * 1000)
            if self._memory is not None:
                self._memory.join()
                self._too_large = self._memory.passed
            os.close(self._first)
        self._end()
        self._leave_group()
        os.close(self._status)
        for pipe in self._pipes:
            pipe.close()

    def _end(self) -> None:
        """Wait for the half outside, which ends when the program does; kill it where it does not."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._kill_outside()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)

    def _leave_group(self) -> None:
        """Remember what the group has seen, and take it away; nothing is in it any more."""
        if self._group is not None:
            self._too_large = self._too_large or self._group.passed
            self._group.remove()

    def _kill_outside(self) -> None:
        if self.process.poll() is None:  # afterwards its number may be another's
            os.killpg(self.process.pid, signal.SIGKILL)

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


async def _aside(step: Callable[[], None]) -> None:
    """Run a step in a thread of its own and wait for it: the executor's threads may all be busy."""
    done: Future[None] = Future()

    def work() -> None:
        try:
            step()
        finally:
            done.set_result(None)

    threading.Thread(target=work, name="sandbox end", daemon=True).start()
    await asyncio.wrap_future(done)
