"""How much of a server's reply over HTTP is read: experts, search providers and MCP servers are other people's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2

MAX_BYTES = 4 << 20
"""Of one reply: a result with a picture fits."""
MAX_BRACKETS = 100_000
"""In one reply, those within its texts included: a list or an object takes longest to read."""
TOO_LONG = f"a reply of more than {MAX_BYTES >> 20} MB"
TOO_DEEP = f"a reply of more than {MAX_BRACKETS:,} brackets"
PACKED = "a compressed reply, which was not asked for"
IDENTITY = {"accept-encoding": "identity"}
"""A few packed bytes can unpack to any number, so no reply is unpacked."""


class BodyError(httpx2.StreamError):
    """A reply that is not read to its end."""


def brackets(data: bytes) -> int:
    """How many lists and objects it may hold."""
    return data.count(b"[") + data.count(b"{")


class Body(httpx2.AsyncByteStream):
    """The body of a response as it is read, within the bounds; raises `BodyError`."""

    def __init__(self, stream: Any, most: float = MAX_BYTES) -> None:
        self._stream, self._most = stream, most
        self._size = self._nested = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self.count(chunk)
            yield chunk

    def count(self, chunk: bytes) -> None:
        """Take note of a part; raises `BodyError` when it is too much."""
        self._size, self._nested = self._size + len(chunk), self._nested + brackets(chunk)
        if self._size > self._most or self._nested > MAX_BRACKETS:
            raise BodyError(TOO_LONG if self._size > self._most else TOO_DEEP)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyError(PACKED)
    response.stream = Body(response.stream)


BOUNDED: Any = {"headers": IDENTITY, "event_hooks": {"response": [_bound]}}
"""Settings of an `httpx2.AsyncClient` whose replies stay within the bounds."""
