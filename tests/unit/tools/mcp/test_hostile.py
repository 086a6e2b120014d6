"""A server that is hostile or broken while a tool is called: the call ends in time, and others are as they were."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal

import pytest

from orchestra.errors import CallError, ToolError
from orchestra.system.processes import descendants
from orchestra.tools.base import ToolContext
from orchestra.tools.mcp import session
from orchestra.tools.mcp.session import Changed, Connection
from orchestra.tools.mcp.spec import McpServer
from orchestra.tools.mcp.tool import MAX_TEXT, ServerTool
from orchestra.types import Price
from tests.support.mcp_hostile import TOLD
from tests.support.mcp_world import fake, frozen
from tests.support.waiting import soon
from tests.support.worlds import ROOT

CONTEXT = ToolContext("do it", Price(per_call=Decimal("0.002")), 1.0)
DEADLINE_S = 4.0
LATE = "no answer within"
BROKEN = "a reply that is none"
PARTS = "[image]\n[audio]\n[resource]\nin a file\n[click: javascript:alert(1)]"
MB = 1 << 20


@contextmanager
def hostile(kind: str, way: str) -> Iterator[McpServer]:
    """Such a server, of which no process may be left."""
    children = set(descendants(os.getpid()))
    with _hostile(kind, way) as server:
        yield server
    assert soon(lambda: not set(descendants(os.getpid())) - children)


@contextmanager
def _hostile(kind: str, way: str) -> Iterator[McpServer]:
    command = (sys.executable, "-S", str(ROOT / "tests/support/mcp_hostile.py"), kind)
    if way == "stdio":
        yield McpServer(command=command)
        return
    with subprocess.Popen([*command, "http"], stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield McpServer(url=f"http://127.0.0.1:{int(served.stdout.readline())}/mcp")
        finally:
            served.kill()


async def called(connection: Connection, deadline_s: float = DEADLINE_S, argument: str = "1") -> str:
    """What the policy is told, or the error and its class."""
    tool = ServerTool(frozen((await connection.offers())["add"]), connection, deadline_s)
    began = time.monotonic()
    try:
        said = (await tool.call({"a": argument}, CONTEXT)).text
    except (CallError, ToolError) as error:
        said = f"{type(error).__name__}: {error}"
    assert time.monotonic() - began < deadline_s + 1
    assert len(said) < MAX_TEXT + 100
    return said


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@asynccontextmanager
async def connected(server: McpServer) -> AsyncIterator[Connection]:
    """A connection, of which no task may be left a moment after it was closed."""
    before, connection = asyncio.all_tasks(), Connection("t", server)
    yield connection
    await connection.aclose()
    await asyncio.sleep(0.2)
    assert not asyncio.all_tasks() - before


@pytest.mark.parametrize(
    ("way", "kind", "told"),
    [
        ("stdio", "text", "Unanswered: MCP server t: a reply of more than 4 MB"),
        ("stdio", "last", "Unanswered: MCP server t: a reply of more than 4 MB"),
        ("stdio", "gigantic", "Unanswered: MCP server t: it sent more than 32 MB"),
        ("stdio", "endless", "Unanswered: MCP server t: it sent more than 32 MB"),
        ("stdio", "stderr", "Unanswered: MCP server t: it sent more than 32 MB"),
        ("stdio", "blocks", "x\nx\nx"),
        ("stdio", "wrong blocks", BROKEN),
        ("stdio", "wrong values", "a reply of more than 20,000 values"),
        ("stdio", "parts", PARTS),
        ("stdio", "structured", '{"rows": [7, 7, 7'),
        ("stdio", "brackets", "a reply of more than 100,000 brackets"),
        ("stdio", "nested", "a reply of more than 100,000 brackets"),
        ("stdio", "refusal", "CallError: no no no"),
        ("stdio", "error", "Unanswered: MCP server t: no no no"),
        ("stdio", "control", TOLD),
        ("stdio", "half a pair", BROKEN),
        ("stdio", "bytes", BROKEN),
        ("stdio", "half", LATE),
        ("stdio", "batch", "5"),
        ("stdio", "junk", "5"),
        ("stdio", "other ids", "5"),
        ("stdio", "repeated", "5"),
        ("stdio", "asks", "5"),
        ("stdio", "kill", "Unanswered: MCP server t: Connection closed"),
        ("stdio", "logs", "it sent more than 5,000 messages"),
        ("stdio", "requests", "it sent more than 5,000 messages"),
        ("stdio", "forged", "it sent more than 5,000 messages"),
        ("http", "text", "a reply of more than 4 MB"),
        ("http", "wrong blocks", BROKEN),
        ("http", "zipped", "Unanswered: MCP server t: Failed to parse"),
        ("http", "500", "Unanswered: MCP server t: Server returned an error response"),
        ("http", "404", "ToolError: MCP server t: Session terminated"),
        ("http", "redirect", "169.254.169.254/latest not followed"),
        ("http", "header", "Unanswered: MCP server t: Connection closed"),
        ("http", "short", "Failed to parse JSON response: peer closed connection"),
        ("http", "sse text", "exceeded the 4194304 byte limit"),
        ("http", "sse brackets", "SSE stream ended"),
        ("http", "sse requests", "it sent more than 5,000 messages"),
        ("http", "sse comments", "it sent more than 32 MB"),
    ],
)
def test_a_call_ends_in_time_with_a_typed_error_or_a_short_text(way: str, kind: str, told: str) -> None:
    deadline_s = 1.0 if told == LATE else DEADLINE_S

    async def call() -> None:
        peak = peak_mb()
        async with connected(server) as connection:
            said = await called(connection, deadline_s)
        assert said == told if told in ("5", TOLD, PARTS) else told in said
        assert peak_mb() - peak < 150

    with hostile(kind, way) as server:
        asyncio.run(call())


@pytest.mark.parametrize(("way", "kind"), [("stdio", "wrong blocks"), ("stdio", "requests")])
def test_calls_of_another_server_are_as_quick_as_ever(way: str, kind: str) -> None:
    async def both() -> None:
        honest, foe = Connection("honest", fake()), Connection("t", server)
        add = ServerTool(frozen((await honest.offers())["add"]), honest, DEADLINE_S)
        await foe.offers()
        attack = asyncio.create_task(called(foe))
        slowest = 0.0
        while not attack.done():
            began = time.monotonic()
            assert (await add.call({"a": 2, "b": 3}, CONTEXT)).text == "5"
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.0 and "Unanswered" in attack.result()
        await asyncio.gather(honest.aclose(), foe.aclose())

    with hostile(kind, way) as server:
        asyncio.run(both())


def test_a_long_reply_ends_its_own_call_alone() -> None:
    """The session goes on, and with it the calls that others wait for."""

    async def twice() -> None:
        async with connected(server) as connection:
            ours = await connection._session()
            assert all("more than 4 MB" in said for said in [await called(connection), await called(connection)])
            assert await connection._session() is ours

    with hostile("text", "stdio") as server:
        asyncio.run(twice())


def test_a_server_that_reads_nothing_holds_no_call_beyond_its_deadline() -> None:
    async def twice() -> None:
        async with connected(server) as connection:
            assert await called(connection) == "5"
            assert LATE in await called(connection, 0.5, "x" * MB)

    with hostile("deaf", "stdio") as server:
        asyncio.run(twice())


@pytest.mark.parametrize(("kind", "told"), [("after", ("5",)), ("stuck", (LATE, LATE))])
def test_no_process_stays_behind(kind: str, told: tuple[str, ...]) -> None:
    """Of a server that dies between two calls, or that is deaf to signals."""

    async def twice() -> None:
        async with connected(server) as connection:
            for one in told:
                assert one in await called(connection, 0.5)

    with hostile(kind, "stdio") as server:
        asyncio.run(twice())


def test_a_server_that_dies_first_cannot_be_opened() -> None:
    with hostile("dies first", "stdio") as server, pytest.raises(ToolError, match="cannot be opened"):
        asyncio.run(called(Connection("t", server)))


def test_a_session_ends_without_a_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSE_S", 0.5)

    async def call() -> None:
        async with asyncio.timeout(20), connected(server) as connection:
            assert await called(connection) == "5"
            began = time.monotonic()
        assert time.monotonic() - began < 5

    with hostile("no goodbye", "http") as server:
        asyncio.run(call())


def test_a_list_of_tools_that_changes_is_read_again() -> None:
    async def calls() -> None:
        async with connected(server) as connection:
            add = ServerTool(frozen((await connection.offers())["add"]), connection, DEADLINE_S)
            assert (await add.call({}, CONTEXT)).text == "5"
            with pytest.raises(Changed, match="the schema of add has changed"):
                await add.call({}, CONTEXT)

    with hostile("changes", "stdio") as server:
        asyncio.run(calls())
