"""Users that keep asking a gateway over HTTP while something else happens to it, and what each of them was told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

ANSWER, MODEL, UNTYPED = "", "model_error", ("broken", "server_error")
"""Kinds of a reply: an answer; the model's own failure, which no release causes; what tells a client nothing."""


@dataclass(frozen=True)
class UserReply:
    """What one request came to."""

    at: float
    """When the reply was there, by `time.monotonic`."""
    kind: str
    """The error's type; `ANSWER` for an answer; `broken` where no error in OpenAI's form came."""
    code: str
    """The error's code, or `200`."""
    version: str = ""
    """Of the model that answered."""
    detail: str = ""
    """The error's words."""

    @property
    def failed(self) -> bool:
        return self.kind not in (ANSWER, MODEL)

    @property
    def untyped(self) -> bool:
        return self.kind in UNTYPED


def read_reply(status: int, body: Any) -> tuple[str, str, str]:
    """Kind, code and version of a reply's JSON; raises `KeyError` or `TypeError` where it is neither form."""
    if status == 200:
        return ANSWER, "200", str(body["orchestra"]["version"])
    error = body["error"]
    version = str(body.get("orchestra", {}).get("version", ""))
    return str(error["type"]), str(error["code"]), version


async def ask(http: httpx.AsyncClient, body: Mapping[str, object]) -> UserReply:
    """One request for a chat completion, whatever comes of it."""
    detail = ""
    try:
        reply = await http.post("/v1/chat/completions", json=body)
        kind, code, version = read_reply(reply.status_code, reply.json())
        detail = "" if kind == ANSWER else reply.text
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        kind, code, version, detail = "broken", type(error).__name__, "", str(error)
    return UserReply(time.monotonic(), kind, code, version, detail)


class UserLoad:
    """So many users, each with one request under way at a time, in a thread of their own."""

    def __init__(self, url: str, questions: Sequence[str], users: int, pause_s: float = 0.0) -> None:
        """`pause_s`: between a user's reply and the next question."""
        self.replies: list[UserReply] = []
        self._url, self._questions, self._users, self._pause_s = url, questions, users, pause_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No more questions; those under way are answered first."""
        self._done.set()
        self._thread.join()

    def await_answer(self, since: float, timeout_s: float, version: str | None = None) -> UserReply | None:
        """The first answer after `since`, of this version where one is named; None: none came in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for reply in list(self.replies):
                if reply.at >= since and reply.kind == ANSWER and version in (None, reply.version):
                    return reply
            time.sleep(0.1)
        return None

    def codes(self) -> Counter[str]:
        return Counter(reply.code for reply in self.replies)

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=self._users)
        async with httpx.AsyncClient(base_url=self._url, timeout=300, limits=limits, trust_env=False) as http:
            await asyncio.gather(*(self._user(http, number) for number in range(self._users)))

    async def _user(self, http: httpx.AsyncClient, number: int) -> None:
        place = number
        while not self._done.is_set():
            question = self._questions[place % len(self._questions)]
            self.replies.append(await ask(http, {"messages": [{"role": "user", "content": question}]}))
            place += self._users
            await asyncio.sleep(self._pause_s)
