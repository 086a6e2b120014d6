"""What a server may send: bytes and values of one message, and bytes and messages until a call is sent or answered."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx2

from orchestra.tools.http_body import IDENTITY, MAX_BYTES, Body

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

MAX_VALUES = 20_000
"""In one message, besides structured content. The SDK makes a model of each, or five errors of a wrong one."""
MAX_ITEMS = 1_000
"""Parts of a result, and tools of a page, that are read; the others are left out."""
MAX_SENT = 32 << 20
"""Bytes until a call is sent or answered, the server's stderr included."""
MAX_MESSAGES = 5_000
"""Messages until then."""
REQUEST_COUNTS = 50
"""So many messages is a request of the server's: each is answered, and waits until the server reads that."""


class Quota:
    """What one session's server may still send; `over` is set when it has sent more, and `excess` says what."""

    def __init__(self, over: asyncio.Event) -> None:
        self.excess: str | None = None
        self._over = over
        self.renew()

    def renew(self) -> None:
        """A call is sent or was answered."""
        self._bytes, self._messages = MAX_SENT, MAX_MESSAGES

    def takes(self, size: int, messages: int = 0) -> bool:
        """Whether so much more is within the bounds; the session ends when it is not."""
        self._bytes, self._messages = self._bytes - size, self._messages - messages
        if self.excess is None and min(self._bytes, self._messages) < 0:
            said = f"{MAX_SENT >> 20} MB" if self._bytes < 0 else f"{MAX_MESSAGES:,} messages"
            self.excess = f"it sent more than {said} that are no answer"
            self._over.set()
        return self.excess is None


def fitting(message: SessionMessage) -> SessionMessage | None:
    """A message that is cheap to read: cut down where nobody reads more, an error where that is not enough; None for
    one that nobody waits for."""
    from mcp_types import JSONRPCResponse

    said = message.message
    if isinstance(said, JSONRPCResponse):
        _cut(said.result)
    if _values([getattr(said, part, None) for part in ("params", "result")]) <= MAX_VALUES:
        return message
    if isinstance(said, JSONRPCResponse):
        return refusal(said.id, f"a reply of more than {MAX_VALUES:,} values")
    return None


def refusal(number: int | str, why: str) -> SessionMessage:
    """In place of the reply to this request."""
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError

    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=INTERNAL_ERROR, message=why)))


def _cut(result: dict[str, Any]) -> None:
    """Leave out what is not shown: structured content beside parts, and all but the first of many parts or tools."""
    content = result.get("content")
    if isinstance(content, list):
        structured = result.pop("structuredContent", None)
        if not content and structured is not None:
            content.append({"type": "text", "text": json.dumps(structured, ensure_ascii=False)})
    for key, value in result.items():
        if isinstance(value, list) and (left := len(value) - MAX_ITEMS) > 0:
            more = [{"type": "text", "text": f"… ({left} more parts)"}] if key == "content" else []
            result[key] = value[:MAX_ITEMS] + more


def _values(value: Any) -> int:
    """Values within a value, counted until there are too many."""
    count, rest = 0, [value]
    while rest and count <= MAX_VALUES:
        one = rest.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        rest.extend(inner)
    return count


class QuotaBody(Body):
    """The body of a response as it is read, within the quota too; what breaks off ends its own request alone."""

    def __init__(self, stream: Any, quota: Quota, most: float) -> None:
        super().__init__(stream, most)
        self._quota = quota

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in super().__aiter__():
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(str(error) or type(error).__name__) from None

    def count(self, chunk: bytes) -> None:
        if not self._quota.takes(len(chunk)):
            raise httpx2.StreamError(str(self._quota.excess))
        super().count(chunk)


def http_client(headers: dict[str, str], quota: Quota, *, proxied: bool) -> httpx2.AsyncClient:
    """A client whose responses stay within the bounds; it asks for none that is compressed, and unpacks none."""

    async def bound(response: httpx2.Response) -> None:
        response.headers.pop("content-encoding", None)
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = QuotaBody(response.stream, quota, math.inf if streamed else MAX_BYTES)

    return httpx2.AsyncClient(
        headers={**IDENTITY, **headers},
        timeout=httpx2.Timeout(30.0, read=None),
        trust_env=proxied,
        event_hooks={"response": [bound]},
    )
