"""Sessions with real server processes: one each, opened again when lost, ended with us; every failure is typed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestra.errors import CallError, ConfigError, ToolError
from orchestra.system.processes import alive, descendants, free_port
from orchestra.tools.base import ToolContext, ToolResult, spent_until
from orchestra.tools.mcp import session
from orchestra.tools.mcp.session import Changed, Connection
from orchestra.tools.mcp.spec import McpServer, ToolOffer
from orchestra.tools.mcp.tool import MAX_TEXT, ServerTool
from orchestra.types import Charge, Component, Price
from tests.support.mcp_world import fake, frozen, offers, real
from tests.support.waiting import soon
from tests.support.worlds import ROOT

CONTEXT = ToolContext("do it", Price(per_call=Decimal("0.002")), 1.0)


class World:
    """A connection in an event loop that lasts for several tests."""

    def __init__(self, server: McpServer) -> None:
        self.runner, self.connection = asyncio.Runner(), Connection("t", server)
        self.offers: dict[str, ToolOffer] = self.run(self.connection.offers())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def tool(self, name: str, deadline_s: float = 30) -> ServerTool:
        return ServerTool(frozen(self.offers[name]), self.connection, deadline_s)

    def call(self, name: str, deadline_s: float = 30, /, **arguments: Any) -> ToolResult:
        result: ToolResult = self.run(self.tool(name, deadline_s).call(arguments, CONTEXT))
        return result

    def pids(self) -> list[int]:
        """Of the server and of a child of its that left its process group."""
        return [int(pid) for pid in self.call("pids").text.split()]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    os.environ["MCP_TEST_SECRET"], os.environ["MCP_TEST_OTHER"] = "hidden", "not passed on"
    made = World(real(TOKEN="<${MCP_TEST_SECRET}>"))
    yield made
    made.run(made.connection.aclose())
    made.runner.close()


def test_a_result_is_text_with_dollars_and_seconds(world: World) -> None:
    result = world.call("add", a=2, b=3)
    assert (result.text, result.cost_usd) == ("5", Decimal("0.002")) and 0 < result.latency_s < 30
    assert world.call("odd").text == "see\n[image]"


def test_calls_run_side_by_side_over_one_session(world: World) -> None:
    began = time.monotonic()

    async def several() -> list[ToolResult]:
        waits = [world.tool("slow").call({"seconds": 1.0}, CONTEXT) for _ in range(8)]
        return [*await asyncio.gather(*waits), await world.tool("pids").call({}, CONTEXT)]

    texts = [result.text for result in world.run(several())]
    assert texts[:8] == ["slept"] * 8 and time.monotonic() - began < 6
    assert int(texts[8].split()[0]) == world.pids()[0]


def test_only_named_variables_reach_a_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.call("environment", name="TOKEN").text == "<hidden>"
    assert world.call("environment", name="MCP_TEST_OTHER").text == "not set"
    monkeypatch.delenv("MCP_TEST_SECRET")
    with pytest.raises(ConfigError, match="MCP_TEST_SECRET is not set"):
        Connection("t", real(TOKEN="${MCP_TEST_SECRET}"))


def test_what_the_server_refuses_is_for_the_model(world: World) -> None:
    with pytest.raises(CallError, match="not today"):
        world.call("refuse", why="not today")
    with pytest.raises(CallError):
        world.call("add", a="two", b=3)


def test_a_server_cannot_fill_the_context(world: World) -> None:
    text = world.call("much", characters=MAX_TEXT + 500).text
    assert text == "x" * MAX_TEXT + " … (500 more characters)"


def test_a_server_that_died_is_started_again_and_leaves_nothing(world: World) -> None:
    first = world.pids()
    with pytest.raises(ToolError, match=r"MCP server t: .*closed") as caught:
        world.call("die")
    assert caught.value.retryable
    second = world.pids()
    assert first[0] != second[0] and soon(lambda: not any(map(alive, first)))
    os.kill(second[0], signal.SIGKILL)
    assert soon(lambda: not any(map(alive, second)))
    world.run(asyncio.sleep(0.1))
    assert world.call("add", a=1, b=1).text == "2"


def test_deadlines_hold_and_a_server_that_is_stuck_is_replaced(world: World) -> None:
    first = world.pids()[0]
    for _ in range(session.LATE):
        began = time.monotonic()
        with pytest.raises(ToolError, match=r"no answer within 0\.3 s"):
            world.call("slow", 0.3, seconds=60)
        assert time.monotonic() - began < 3
    assert world.pids()[0] != first and soon(lambda: not alive(first))


def test_a_call_that_is_given_up_says_what_it_cost(world: World) -> None:
    async def give_up() -> tuple[Charge, ...]:
        call = asyncio.ensure_future(world.tool("slow").call({"seconds": 60.0}, CONTEXT))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as given_up:
            await call
        return spent_until(given_up.value)

    (charge,) = world.run(give_up())
    assert (charge.component, charge.cost_usd) == (Component.MCP, Decimal("0.002"))


def test_the_process_ends_with_the_event_loop() -> None:
    before = _supervisors()
    closing = World(fake())
    (ours,) = _supervisors() - before
    closing.runner.close()
    assert soon(lambda: not alive(ours))


def test_the_server_ends_when_we_are_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio
from pathlib import Path
from orchestra.tools.mcp.session import Connection
from tests.support.mcp_world import fake, frozen

async def main() -> None:
    connection = Connection("t", fake("family"))
    add = frozen((await connection.offers())["add"])
    result = await connection.call(add, {{"a": 1, "b": 2}}, 30)
    Path({str(tmp_path / "pids")!r}).write_text(result.content[0].text)
    await asyncio.sleep(300)

asyncio.run(main())
"""
    us = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    note = tmp_path / "pids"
    try:
        assert soon(lambda: note.is_file() and len(note.read_text().split()) == 2, 60)
        theirs = [int(pid) for pid in note.read_text().split()]
        assert all(map(alive, theirs))
    finally:
        us.kill()
        us.wait()
    assert soon(lambda: not any(map(alive, theirs)))


@pytest.mark.parametrize(("fault", "said"), [("changed", "the schema of add"), ("reworded", "the description of add")])
def test_a_tool_that_changed_since_its_import_is_refused_in_one_line(fault: str, said: str) -> None:
    before, now = offers(fake())["add"], Connection("t", fake(fault))
    tool = ServerTool(frozen(before), now, 10)
    for ask in (lambda: tool.call({"a": 1, "b": 2}, CONTEXT), tool.ready):
        with pytest.raises(Changed) as caught:
            asyncio.run(ask())
        assert f"{said} has changed since it was imported — orchestra tools import-mcp t" in str(caught.value)
        assert "\n" not in str(caught.value) and not caught.value.retryable


def test_pages_are_read_to_the_end_and_titles_stand_for_words() -> None:
    found = offers(fake("paged"))
    assert list(found) == ["add", "files/search"] and found["files/search"].description == "looks for files"


@pytest.mark.parametrize(
    ("fault", "said"), [("exit", "closed"), ("garbage", "a reply that is none"), ("silent", "within")]
)
def test_whatever_a_server_does_to_a_call_is_a_typed_error(fault: str, said: str) -> None:
    made = World(fake(fault))
    with made.runner, pytest.raises(ToolError, match=said) as failed:
        made.call("add", 2.0, a=1, b=2)
    # It was sent, so it may be billed.
    assert [(charge.component, charge.cost_usd) for charge in failed.value.charges] == [
        (Component.MCP, Decimal("0.002"))
    ]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (fake("dead"), "no licence for this server"),
        (McpServer(command=("no-such-program", "x")), "no-such-program: No such file or directory"),
        (McpServer(url=f"http://127.0.0.1:{free_port()}/mcp"), "cannot be opened"),
    ],
)
def test_a_server_that_cannot_be_opened_says_why_and_is_left_alone_for_a_while(
    server: McpServer, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(wraps=session._Session)
    monkeypatch.setattr(session, "_Session", opened)
    monkeypatch.setattr(session, "PAUSE_S", 600.0)
    connection = Connection("t", server)

    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(ToolError, match=said):
                await connection.offers()

    asyncio.run(twice())
    assert opened.call_count == 1


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "OPEN_S", 0.5)
    with pytest.raises(ToolError, match=r"does not answer within 0\.5 s"):
        asyncio.run(Connection("t", fake("hang")).offers())


def test_streamable_http_survives_a_restart_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PAUSE_S", 0.0)
    port = free_port()
    server = McpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"x-token": "${PATH}"})
    process = _serve(port)
    try:
        made = World(server)
        assert made.call("add", a=2, b=3).text == "5"
        with pytest.raises(CallError, match="no"):
            made.call("refuse", why="no")
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ToolError, match="MCP server t"):
        made.call("add", a=2, b=3)
    process = _serve(port)
    try:
        assert made.call("add", a=2, b=4).text == "6"
        made.run(made.connection.aclose())
    finally:
        made.runner.close()
        process.kill()
        process.wait()


def _serve(port: int) -> subprocess.Popen[bytes]:
    import socket

    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/support/mcp_server.py"), str(port)], stderr=subprocess.DEVNULL
    )

    def up() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    assert soon(up, 60)
    return process


def _supervisors() -> set[int]:
    """Our children that supervise a server."""
    found = descendants(os.getpid())
    return {pid for pid in found if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()}
