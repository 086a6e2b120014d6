"""A tool of an MCP server as one of ours: its result becomes text with dollars and seconds."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pydantic import JsonValue

from orchestra.accounting.ledger import cost_of
from orchestra.errors import CallError
from orchestra.text import as_text
from orchestra.tools.base import ToolContext, ToolResult, note_spent
from orchestra.tools.mcp.session import Changed, Connection, Unanswered
from orchestra.tools.mcp.spec import McpTool, changed
from orchestra.types import Charge, Component, Usage

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_TEXT = 4_000
"""Characters of a result that the policy is shown: a server must not be able to fill its context."""


class ServerTool:
    """Calls one tool of one server."""

    component = Component.MCP
    keeps_deadline = True

    def __init__(self, tool: McpTool, connection: Connection, deadline_s: float) -> None:
        self._tool, self._connection, self._deadline_s = tool, connection, deadline_s

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """What the server says. Raises `CallError` when it refuses the call, `ToolError` when it fails: with the charge
        where it may be billed (`Unanswered`)."""
        began = time.monotonic()

        def charge() -> Charge:
            seconds = round(min(time.monotonic() - began, self._deadline_s), 3)
            cost_usd, name = cost_of(context.price, Usage(), seconds=seconds), context.name or self._tool.tool
            return Charge(component=self.component, name=name, cost_usd=cost_usd, latency_s=seconds)

        try:
            result = await self._connection.call(self._tool, arguments, self._deadline_s)
        except Unanswered as error:
            error.charges = (charge(),)
            raise
        except asyncio.CancelledError as given_up:
            note_spent(given_up, (charge(),))
            raise
        seconds = round(time.monotonic() - began, 3)
        text = text_of(result)
        if result.is_error:
            raise CallError(text)
        return ToolResult(text=text, cost_usd=cost_of(context.price, Usage(), seconds=seconds), latency_s=seconds)

    async def ready(self) -> str:
        """How the server is reached; raises `ToolError` when it does not answer or has changed."""
        why = changed(self._tool, await self._connection.offers())
        if why is not None:
            raise Changed(why, where=self._connection.where, fix=f"orchestra tools import-mcp {self._connection.name}")
        return "streamable HTTP" if self._connection.server.url else "stdio"

    async def aclose(self) -> None:
        """End the session with the server; other tools of the same server open it again."""
        await self._connection.aclose()


def text_of(result: CallToolResult) -> str:
    """The text of a result: its text parts, and a word for each part that is none."""
    parts = []
    for part in result.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "resource" and (text := getattr(part.resource, "text", None)) is not None:
            parts.append(str(text))
        elif part.type == "resource_link":
            parts.append(f"[{part.name}: {part.uri}]")
        else:
            parts.append(f"[{part.type}]")
    text = as_text("\n".join(parts)).strip()
    if not text:
        return "no reason was given" if result.is_error else "nothing was returned"
    left = len(text) - MAX_TEXT
    return text if left <= 0 else f"{text[:MAX_TEXT]} … ({left} more characters)"
