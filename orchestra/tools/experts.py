"""Real experts: any OpenAI-compatible endpoint, with a deadline, bounded retries and typed errors."""

import asyncio
import random
import re
import time
from typing import Any

from pydantic import JsonValue

from orchestra.errors import ToolError
from orchestra.ledger import cost_of
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue import Entry, environment
from orchestra.types import Component, Usage

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that may pass by themselves."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Endpoint:
    """Asks one model at one address. One client per event loop, its connections pooled."""

    component = Component.EXPERT

    def __init__(self, name: str, entry: Entry, *, attempts: int = 3, backoff_s: float = 0.5) -> None:
        assert entry.base_url_env is not None and entry.endpoint_model is not None
        self.name, self._entry = name, entry
        self._url = environment(entry.base_url_env, tool=name).rstrip("/") + "/chat/completions"
        self._key = environment(entry.api_key_env, tool=name) if entry.api_key_env else ""
        self._attempts, self._backoff_s = attempts, backoff_s
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Ask the question (default: the instruction and what is known so far); raises `ToolError`."""
        question = str(arguments.get("question") or "\n".join([context.instruction, *context.notes]))
        body = {"model": self._entry.endpoint_model, "messages": [{"role": "user", "content": question}]}
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._entry.deadline_s):
                reply = await self._ask(body)
        except TimeoutError:
            raise ToolError(f"no answer within {self._entry.deadline_s:g} s", where=self.name) from None
        text, usage = self._read(reply)
        return ToolResult(
            text=text,
            usage=usage,
            cost_usd=cost_of(context.price, usage),
            latency_s=round(time.monotonic() - began, 3),
        )

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._client is not None:
            _, client = self._client
            self._client = None
            await client.aclose()

    async def _ask(self, body: dict[str, Any]) -> Any:
        import httpx

        problem = "never asked"
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._backoff_s * 2 ** (attempt - 1) * (0.5 + random.random()))
            try:
                response = await self._pool().post(self._url, json=body)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
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
        raise ToolError(f"{problem} after {self._attempts} attempts", where=self.name, fix="see the endpoint's log")

    def _pool(self) -> Any:
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
            timeout = httpx.Timeout(self._entry.deadline_s, connect=10)
            self._client = loop, httpx.AsyncClient(headers=headers, timeout=timeout)
        return self._client[1]

    def _read(self, reply: Any) -> tuple[str, Usage]:
        """Text and tokens of a reply; an empty or refused one is the tool's failure, never an answer."""
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
            what = f"a reply of another shape ({type(error).__name__}: {error})"
            raise ToolError(
                what, where=self.name, fix="check that the endpoint speaks OpenAI chat completions"
            ) from None
        if not isinstance(content, str) or not content.strip():
            raise ToolError(f"an empty answer (finish_reason {choice.get('finish_reason')})", where=self.name)
        # JSON can spell half of a surrogate pair, which is no text: no record could hold it.
        return _SURROGATE.sub("\ufffd", content).strip(), usage
