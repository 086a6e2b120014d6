"""The model behind a vLLM server: token ids in, token ids and log-probabilities out, over /v1/completions."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import httpx

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation

STOPS: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
"""How vLLM says that a turn ended. Anything else ("abort": the server shuts down) is a failure, never an empty turn."""


class VllmPolicy:
    """Greedy at temperature 0; otherwise sampled with a seed per (seed, example, sample, turn).

    One request per conversation, all at once: the server batches them, and its prefix cache carries the earlier turns.
    Log-probabilities are those of the unscaled distribution. Safe to share between running loops.
    """

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
    ) -> None:
        self.base_url, self.model = base_url.rstrip("/"), model
        self.temperature, self.seed = temperature, seed
        self.stop_token_ids = list(stop_token_ids)
        """Besides the checkpoint's own eos token."""
        self.timeout_s, self.concurrency = timeout_s, concurrency
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing to prepare: the server keeps the cache."""

    def end(self) -> None:
        """Nothing to free."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; raises `ServiceError` when the server is down, refuses, or aborts."""
        # A client per turn: a policy outlives event loops, a client does not. The server is ours: no proxy.
        limits = httpx.Limits(max_connections=self.concurrency)
        timeout = httpx.Timeout(self.timeout_s, pool=None)
        async with httpx.AsyncClient(
            base_url=self.base_url, limits=limits, timeout=timeout, trust_env=False, verify=False
        ) as client:
            tasks = [
                asyncio.ensure_future(self._turn(client, c, limit))
                for c, limit in zip(conversations, max_tokens, strict=True)
            ]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

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
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if self.stop_token_ids:
            body["stop_token_ids"] = self.stop_token_ids
        if self.temperature > 0:
            key = f"{self.seed}/{conversation.example.id}/{conversation.sample}/{len(conversation.turns)}"
            body["seed"] = zlib.crc32(key.encode())
        return body

    async def _turn(self, client: httpx.AsyncClient, conversation: Conversation, max_tokens: int) -> Generation:
        try:
            reply = await client.post("/v1/completions", json=self.request(conversation, max_tokens))
        except httpx.HTTPError as error:
            raise self._failure(f"{type(error).__name__} {error}".strip()) from None
        if reply.status_code != 200:
            raise self._failure(f"HTTP {reply.status_code}: {reply.text[:200]}")
        try:
            return read_completion(reply.json())
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._failure(str(error)) from None

    def _failure(self, what: str) -> ServiceError:
        return ServiceError(what, where=f"vLLM at {self.base_url}", fix="see its log in .state/logs, or deploy again")


def read_completion(body: dict[str, Any]) -> Generation:
    """The one choice of a completion; raises `ValueError` (or a lookup error) when it is not a whole turn."""
    choice = body["choices"][0]
    reason = choice["finish_reason"]
    if reason not in STOPS:
        raise ValueError(f"the turn was not finished: finish_reason {reason!r}")
    ids = choice["token_ids"]
    logprobs = choice["logprobs"]["token_logprobs"]
    if not ids or len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids with {len(logprobs)} log-probabilities")
    details = body.get("usage", {}).get("prompt_tokens_details") or {}
    return Generation(list(ids), [float(p) for p in logprobs], STOPS[reason], int(details.get("cached_tokens") or 0))
