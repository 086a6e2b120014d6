"""A server that is a program: its process, and messages as lines of its stdin and stdout, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.tools.http_body import MAX_BRACKETS, MAX_BYTES, TOO_DEEP, TOO_LONG, brackets
from orchestra.tools.mcp import supervisor
from orchestra.tools.mcp.bounds import Quota, refusal

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

CHUNK = 1 << 16
END = 1_000
"""Characters that are kept of either end of a line that is too long: a request's number stands there."""
MAX_ERRORS = 2_000
"""Bytes of its stderr that are kept, the last ones."""
GRACE_S = 2.0
"""For the process to end when its stdin is closed, and again when it is told to."""
FIRST = re.compile(rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,')
LAST = re.compile(rb'"id"\s*:\s*(\d{1,9})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')


class Program:
    """Runs a command as a server that ends with this process, and keeps the end of what it says on stderr."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], quota: Quota) -> None:
        """`env` joins the few variables that the SDK lets a server have."""
        self._command, self._env, self._quota = command, env, quota
        self.errors = b""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Any, Any]]:
        """Its process as the two streams of messages that the SDK reads and writes."""
        import anyio
        from mcp.client.stdio import get_default_environment

        pipe, command = asyncio.subprocess.PIPE, [*_supervised(), *self._command]
        env = {**get_default_environment(), **self._env}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True, limit=CHUNK
        )
        incoming, read = anyio.create_memory_object_stream[Any](0)
        write, outgoing = anyio.create_memory_object_stream[Any](0)
        work = (self._read(process, incoming), self._write(process, outgoing, incoming), self._keep(process))
        tasks = [asyncio.create_task(one) for one in work]
        try:
            yield read, write
        finally:
            read.close()
            write.close()
            try:
                await _end(process, patient=self._quota.excess is None)
                # What it said last is read to the end, which a child of its may hold open.
                await asyncio.wait(tasks[2:], timeout=GRACE_S / 2)
            finally:
                for task in tasks:
                    task.cancel()
                process._transport.close()  # type: ignore[attr-defined]
                incoming.close()
                outgoing.close()

    async def _read(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        import anyio

        assert process.stdout is not None
        with incoming, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for line, whole in _lines(process.stdout, self._quota):
                message = _message(line) if whole else _refused(line, TOO_LONG)
                if message is not None:
                    await incoming.send(message)
                elif not self._quota.takes(0, 1):
                    return

    async def _write(self, process: asyncio.subprocess.Process, outgoing: Any, incoming: Any) -> None:
        assert process.stdin is not None
        try:
            with outgoing:
                async for message in outgoing:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(line.encode() + b"\n")
                    await process.stdin.drain()
        except OSError:
            # It reads no more: whoever waits for an answer is told.
            incoming.close()

    async def _keep(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while (said := await process.stderr.read(CHUNK)) and self._quota.takes(len(said)):
            self.errors = (self.errors + said)[-MAX_ERRORS:]


def _supervised() -> list[str]:
    """What a server's command is put behind, so that it ends with this process; nothing where there is no Linux."""
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(os.getpid())]


async def _lines(pipe: asyncio.StreamReader, quota: Quota) -> AsyncIterator[tuple[bytes, bool]]:
    """Each line, and whether it is whole: of one that is too long, both ends."""
    line, whole = bytearray(), True
    while (chunk := await pipe.read(CHUNK)) and quota.takes(len(chunk)):
        for number, piece in enumerate(chunk.split(b"\n")):
            if number:
                yield bytes(line), whole
                line, whole = bytearray(), True
            line += piece
            if not whole or len(line) > MAX_BYTES:
                line, whole = line[:END] + line[END:][-END:], False


def _message(line: bytes) -> SessionMessage | None:
    """A line as a message; None for one that is none, such as a log that was printed to stdout."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if brackets(line) > MAX_BRACKETS:
        return _refused(line, TOO_DEEP)
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return _refused(line, f"a reply that is none: {error}")


def _refused(line: bytes, why: str) -> SessionMessage | None:
    """An error for the request that a broken reply belongs to, where the line says it at an end."""
    found = FIRST.search(line[:END]) or LAST.search(line[-END:])
    return None if found is None or b'"method"' in line[:END] else refusal(int(found[1]), why)


async def _end(process: asyncio.subprocess.Process, *, patient: bool) -> None:
    """Close its stdin, tell it to end, kill it: each when the one before was not enough."""
    assert process.stdin is not None
    process.stdin.close()
    for told in (signal.SIGTERM, signal.SIGKILL):
        if (patient or told is signal.SIGKILL) and await _ended(process):
            return
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.terminate()
            else:
                os.killpg(process.pid, told)
    await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> bool:
    """Whether it ends in time. Not by waiting for it: that waits for its pipes too, which a child may hold open."""
    for _ in range(int(GRACE_S / 0.01)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(0.01)
    return process.returncode is not None
