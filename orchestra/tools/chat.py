"""Any OpenAI-compatible chat endpoint: a deadline, bounded retries, typed errors and a cassette."""

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

from orchestra.errors import ToolError
from orchestra.tools.cassette import Cassette, Reply
from orchestra.types import Usage

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that may pass by themselves."""
Hook = Callable[[], None]
_SURROGATE = re.compile("[\ud800-\udfff]")


class Chat:
    """Asks one model at one address (`url`, up to `/v1`). One client per event loop, its connections pooled."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        key: str = "",
        deadline_s: float = 300,
        attempts: int = 3,
        backoff_s: float = 0.5,
        cassette: Cassette | None = None,
    ) -> None:
        self.name, self.model, self._attempts = name, model, attempts
        self._url, self._key = url.rstrip("/") + "/chat/completions", key
        self._deadline_s, self._backoff_s, self._cassette = deadline_s, backoff_s, cassette
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    async def ask(self, body: dict[str, Any], *, on_attempt: Hook | None = None, on_lost: Hook | None = None) -> Reply:
        """The reply to `body`, to which the model's name is added; raises `ToolError`.

        `on_attempt` is called before anything is sent, and may refuse by raising; `on_lost` after every attempt whose
        reply never came or could not be read, since it may still be billed.
        """
        body = {"model": self.model, **body}
        attempt, lost = on_attempt or _nothing, on_lost or _nothing
        recorded = self._cassette.find(body) if self._cassette is not None else None
        if recorded is not None:
            return recorded
        try:
            async with asyncio.timeout(self._deadline_s):
                answered = await self._ask(body, attempt, lost)
        except TimeoutError:
            raise ToolError(f"no answer within {self._deadline_s:g} s", where=self.name) from None
        reply = self._read(answered, lost)
        if self._cassette is not None:
            self._cassette.add(body, reply, secret=self._key)
        return reply

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._client is not None:
            _, client = self._client
            self._client = None
            await client.aclose()

    async def _ask(self, body: dict[str, Any], attempt: Hook, lost: Hook) -> Any:
        import httpx

        problem = "never asked"
        for number in range(self._attempts):
            if number:
                await asyncio.sleep(self._backoff_s * 2 ** (number - 1) * (0.5 + random.random()))
            attempt()
            try:
                response = await self._pool().post(self._url, json=body)
            except asyncio.CancelledError:
                lost()
                raise
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
                if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    lost()
                continue
            if response.status_code in RETRIED:
                problem = f"HTTP {response.status_code}"
                continue
            if response.status_code != 200:
                raise ToolError(f"HTTP {response.status_code}: {response.text[:200]}", where=self.name)
            try:
                return response.json()
            except ValueError:
                problem = "the reply is not JSON"
                lost()
        raise ToolError(f"{problem} after {self._attempts} attempts", where=self.name, fix="see the endpoint's log")

    def _pool(self) -> Any:
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
            timeout = httpx.Timeout(self._deadline_s, connect=10)
            self._client = loop, httpx.AsyncClient(headers=headers, timeout=timeout)
        return self._client[1]

    def _read(self, reply: Any, lost: Hook) -> Reply:
        """Text and tokens of a reply; an empty or refused one is the endpoint's failure, never an answer."""
        try:
            choice = reply["choices"][0]
            content = choice["message"].get("content")
            counts = reply.get("usage") or {}
            cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            usage = Usage(
                input_tokens=counts.get("prompt_tokens") or 0,
                cached_input_tokens=cached,
                output_tokens=counts.get("completion_tokens") or 0,
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            lost()
            what = f"a reply of another shape ({type(error).__name__}: {error})"
            raise ToolError(
                what, where=self.name, fix="check that the endpoint speaks OpenAI chat completions"
            ) from None
        if not isinstance(content, str) or not content.strip():
            lost()
            raise ToolError(f"an empty answer (finish_reason {choice.get('finish_reason')})", where=self.name)
        # JSON can spell half of a surrogate pair, which is no text: no record could hold it.
        text = _SURROGATE.sub("\ufffd", content).strip()
        return Reply(text=text, usage=usage, counted=bool(counts.get("completion_tokens")))


def _nothing() -> None:
    """Where nobody counts."""
