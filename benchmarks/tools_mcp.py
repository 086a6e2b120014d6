"""MCP: what a call costs in time, over stdio and streamable HTTP, and how long a server that died is missed.

python -m benchmarks.tools_mcp
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from functools import partial

from benchmarks.command import Row, run_benchmark, show
from orchestra.system.processes import free_port
from orchestra.tools.mcp.session import Connection
from orchestra.tools.mcp.spec import McpServer, McpTool

CALLS = 200
SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench", log_level="CRITICAL")
@server.tool()
def pid() -> str:
    return str(os.getpid())
server.run("streamable-http", port=int(sys.argv[1])) if len(sys.argv) > 1 else server.run()
"""
COMMAND = (sys.executable, "-c", SERVER)


async def _measure(server: McpServer, *, kill: bool) -> tuple[float, float, float]:
    """Seconds to open, median milliseconds a call, and seconds of the first call after the server was killed."""
    connection, began = Connection("bench", server), time.perf_counter()
    offer = (await connection.offers())["pid"]
    opened = time.perf_counter() - began
    hashes = {"schema_hash": offer.schema_hash, "description_hash": offer.description_hash}
    tool, took, pid = McpTool(server="bench", tool="pid", **hashes), [], 0
    for _ in range(CALLS):
        began = time.perf_counter()
        pid = int((await connection.call(tool, {}, 60)).content[0].text)  # type: ignore[union-attr]
        took.append(1000 * (time.perf_counter() - began))
    again = 0.0
    if kill:
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        await connection.call(tool, {}, 60)
        again = time.perf_counter() - began
    await connection.aclose()
    return opened, statistics.median(took), again


def rows() -> list[Row]:
    """Without bars."""
    opened, call_ms, again = asyncio.run(_measure(McpServer(command=COMMAND), kill=True))
    port = free_port()
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        url = McpServer(url=f"http://127.0.0.1:{port}/mcp")
        http_opened, http_ms, _ = asyncio.run(_measure(url, kill=False))
    finally:
        process.kill()
        process.wait()
    return [
        Row("MCP over stdio: a call, median", f"{call_ms:.1f} ms"),
        Row("MCP over stdio: start a server of the SDK and list its tools", f"{opened:.1f} s"),
        Row("MCP over stdio: first call after the server was killed", f"{again:.1f} s"),
        Row("MCP over streamable HTTP: a call, median", f"{http_ms:.1f} ms"),
        Row("MCP over streamable HTTP: open a session and list", f"{http_opened:.2f} s"),
    ]


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
