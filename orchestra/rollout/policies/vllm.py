"""The model behind a vLLM server: token ids in, token ids and log-probabilities out, over /v1/completions."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import from_json, to_json

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from yarl import URL

STOPS: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
"""How vLLM says that a turn ended. Anything else ("abort": the server shuts down) is a failure, never an empty turn."""
MAX_LINE = 2**24
"""Bytes of one event of a stream; the first one repeats the prompt's token ids."""
CONNECT_S = 30.0
"""Seconds until a server takes a connection, at most: another replica may take the turn."""


class VllmPolicy(KeepsNothing):
    """Greedy at temperature 0; otherwise sampled with a seed per (seed, example, sample, turn).

    One request per conversation, all at once: the server batches them, and its prefix cache carries the earlier turns.
    Log-probabilities are those of the unscaled distribution. Safe to share between running loops, unless `persistent`:
    then one pool of connections serves every turn of one loop, until `aclose`.
    """

    by_episode = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        name: str,
        temperature: float = 0.0,
        seed: int = 0,
        stop_token_ids: Sequence[int] = (),
        timeout_s: float = 120.0,
        concurrency: int = 64,
        api_key: str | None = None,
        persistent: bool = False,
        logprobs: bool = True,
    ) -> None:
        """`logprobs` False: none are asked for, which spares the server's front end a third of its time."""
        self.base_url, self.model = base_url.rstrip("/"), model
        self.temperature, self.seed = temperature, seed
        self.stop_token_ids = list(stop_token_ids)
        """Besides the checkpoint's own eos token."""
        self.timeout_s, self.concurrency = timeout_s, concurrency
        self._name = name
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._persistent, self._logprobs = persistent, logprobs
        self._pool: ClientSession | None = None

    @property
    def name(self) -> str:
        return self._name

    @cached_property
    def _url(self) -> URL:
        from yarl import URL

        return URL(f"{self.base_url}/v1/completions")

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; raises `ServiceError` when the server is down, refuses, or aborts."""
        client = self._pool or self._client()
        if self._persistent:
            self._pool = client
        turns = [self._turn(client, c, limit) for c, limit in zip(conversations, max_tokens, strict=True)]
        if self._persistent and len(turns) == 1:
            return [await turns[0]]  # A task of its own would be one turn of the event loop more.
        tasks = [asyncio.ensure_future(turn) for turn in turns]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            if self._pool is None:
                await client.close()

    async def aclose(self) -> None:
        """Close the pool of a persistent policy."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    def _client(self) -> ClientSession:
        """Of the running event loop: a policy may outlive it, a client does not."""
        # Not httpx: each of its requests takes several times the processor's time, which many conversations wait for.
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        # Given up before the server does: it keeps an idle connection for 5 s. The server is ours: no certificates.
        connector = TCPConnector(limit=self.concurrency, keepalive_timeout=3.0, ssl=False)
        timeout = ClientTimeout(total=None, sock_connect=min(CONNECT_S, self.timeout_s), sock_read=self.timeout_s)
        return ClientSession(
            connector=connector,
            timeout=timeout,
            headers={**self._headers, "Content-Type": "application/json"},
            cookie_jar=DummyCookieJar(),
            read_bufsize=MAX_LINE // 2,
        )

    def request(self, conversation: Conversation, max_tokens: int) -> dict[str, Any]:
        """The body of one request; everything that decides a token is in it, whatever the checkpoint's defaults."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": conversation.ids,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if self._logprobs:
            body["logprobs"] = 0
        if self.stop_token_ids:
            body["stop_token_ids"] = self.stop_token_ids
        if self.temperature > 0:
            key = f"{self.seed}/{conversation.example.id}/{conversation.sample}/{len(conversation.turns)}"
            body["seed"] = zlib.crc32(key.encode())
        return body

    async def _turn(self, client: ClientSession, conversation: Conversation, max_tokens: int) -> Generation:
        from aiohttp import ClientError

        body = self.request(conversation, max_tokens)
        try:
            if conversation.on_tokens is not None:
                return await self._streamed(client, body, conversation.on_tokens)
            async with client.post(self._url, data=to_json(body)) as reply:
                raw = await reply.read()
                if reply.status != 200:
                    raise self._failure(f"HTTP {reply.status}: {raw[:200].decode(errors='replace')}")
            return read_completion(from_json(raw), logprobs=self._logprobs)
        except (ClientError, TimeoutError) as error:
            raise self._failure(f"{type(error).__name__} {error}".strip()) from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._failure(str(error)) from None

    async def _streamed(
        self, client: ClientSession, body: dict[str, Any], told: Callable[[Sequence[int]], None]
    ) -> Generation:
        """The same turn, told token by token; raises as `read_completion` does where it breaks off."""
        whole: dict[str, Any] = {"token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": None}
        usage: dict[str, Any] = {}
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with client.post(self._url, data=to_json(body)) as reply:
            if reply.status != 200:
                text = (await reply.read()).decode(errors="replace")
                raise self._failure(f"HTTP {reply.status}: {text[:200]}")
            async for raw in reply.content:
                line = raw.strip()
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                event = from_json(line.removeprefix(b"data: "))
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    ids = choice.get("token_ids") or []
                    whole["token_ids"] += ids
                    whole["logprobs"]["token_logprobs"] += (choice.get("logprobs") or {}).get("token_logprobs") or []
                    whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
                    if ids:
                        told(ids)
        return read_completion({"choices": [whole], "usage": usage}, logprobs=self._logprobs)

    def _failure(self, what: str) -> ServiceError:
        return ServiceError(what, where=f"vLLM at {self.base_url}", fix="see its log in .state/logs, or deploy again")


def read_completion(body: dict[str, Any], *, logprobs: bool = True) -> Generation:
    """The one choice of a completion; raises `ValueError` (or a lookup error) when it is not a whole turn.

    `logprobs`: whether each token must have one.
    """
    choice = body["choices"][0]
    reason = choice["finish_reason"]
    if reason not in STOPS:
        raise ValueError(f"the turn was not finished: finish_reason {reason!r}")
    ids = choice["token_ids"]
    chances = [float(one) for one in choice["logprobs"]["token_logprobs"]] if logprobs else []
    if not ids or (logprobs and len(ids) != len(chances)):
        raise ValueError(f"{len(ids)} token ids with {len(chances)} log-probabilities")
    details = body.get("usage", {}).get("prompt_tokens_details") or {}
    return Generation(list(ids), chances, STOPS[reason], int(details.get("cached_tokens") or 0))
