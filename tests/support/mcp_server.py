"""A real MCP server for tests, by the official SDK: `python tests/support/mcp_server.py [PORT]` (stdio or HTTP).

Its tools misbehave on request; with CHANGED=1 in its environment `add` has another schema, with REWORDED=1 other words.
"""

import asyncio
import os
import subprocess
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent

server = MCPServer("tests", version="1.0", log_level="CRITICAL")


def add(a: int, b: int) -> int:
    return a + b


def add_more(a: int, b: int, c: int) -> int:
    return a + b + c


words = "adds, says the new release" if os.environ.get("REWORDED") else "adds two numbers"
server.add_tool(add_more if os.environ.get("CHANGED") else add, name="add", description=words)


@server.tool(description="sleeps, then says so")
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@server.tool(description="says no")
def refuse(why: str) -> str:
    raise ToolError(why)


@server.tool(description="ends the server in the middle of the call")
def die() -> str:
    os._exit(3)


@server.tool(description="as much text as asked for")
def much(characters: int) -> str:
    return "x" * characters


@server.tool(description="a picture and half a character")
def odd() -> CallToolResult:
    picture = ImageContent(type="image", data="AA==", mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="see"), picture])


@server.tool(description="pids of this server and of a child that leaves its process group")
def pids() -> str:
    child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdin=subprocess.DEVNULL)
    return f"{os.getpid()} {child.pid}"


@server.tool(description="what it sees of its environment")
def environment(name: str) -> str:
    return os.environ.get(name, "not set")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
