"""vLLM asks for its key below /v1 and some other paths only; here every path does: /invocations completes texts, and
rollout servers have endpoints that replace weights."""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class KeyCheck:
    """vLLM is told of it by `--middleware`; only /health answers whoever asks."""

    def __init__(self, app: App) -> None:
        self.app, self.right = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/health" or self._has_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the key is missing: Authorization: Bearer ..."})

    def _has_key(self, scope: Message) -> bool:
        said = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(said) == 1 and hmac.compare_digest(said[0], self.right)
