"""What a vLLM server of a benchmark adds to its answers: when its front end took the request, and when it had answered.

vLLM's environment loads it (`--middleware`), which has nothing of ours: it imports the standard library alone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

BEGAN, ENDED = b"x-clock-began", b"x-clock-ended"
"""Headers with seconds of the machine's monotonic clock, which all processes share."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Any, Send], Awaitable[None]]


class ClockHeaders:
    """An ASGI middleware."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = [(BEGAN, f"{began:.6f}".encode()), (ENDED, f"{time.monotonic():.6f}".encode())]
                message["headers"] = [*message.get("headers", ()), *told]
            await send(message)

        await self.app(scope, receive, reply)
