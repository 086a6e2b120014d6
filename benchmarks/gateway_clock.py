"""The gateway's process of `benchmarks.gateway`: the real thing on a port, whose answers tell where their time went."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from aiohttp import ClientResponse, http_writer

from benchmarks.vllm_clock import BEGAN, ENDED
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.app import create_app
from orchestra.serving.backend import Backend
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.state import Serving
from orchestra.serving.wire.connection import BoundedProtocol, GracefulServer
from orchestra.system.processes import LOCALHOST, server_socket
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.types import ToolCall

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-clock"


@dataclass
class RequestClock:
    """Seconds of one request, by who spent them."""

    turns: int = 0
    policy_s: float = 0.0
    """From the call of the policy to its return."""
    queued_s: float = 0.0
    """Of it, after the turn's request was written and before vLLM's front end took it."""
    served_s: float = 0.0
    """Of it, from there until vLLM's front end had the answer."""
    tools_s: float = 0.0
    sent: float = dataclasses.field(default=0.0, repr=False)
    """When the request of the turn under way was written."""


CLOCK: ContextVar[RequestClock] = ContextVar("CLOCK")


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Have policies, tools and the HTTP client tell the request's clock within the block."""
    turn, call = VllmPolicy._turn, ToolSession.call
    written, read = http_writer.StreamWriter.write_eof, ClientResponse.read

    async def timed_turn(self: VllmPolicy, client: Any, conversation: Conversation, most: int) -> Generation:
        began, clock = time.monotonic(), CLOCK.get()
        try:
            return await turn(self, client, conversation, most)
        finally:
            clock.policy_s += time.monotonic() - began
            clock.turns += 1

    async def timed_call(self: ToolSession, asked: ToolCall) -> ToolOutcome:
        began = time.monotonic()
        try:
            return await call(self, asked)
        finally:
            CLOCK.get().tools_s += time.monotonic() - began

    async def timed_write(self: Any, chunk: bytes = b"") -> None:
        await written(self, chunk)
        if (clock := CLOCK.get(None)) is not None:
            clock.sent = time.monotonic()

    async def timed_read(self: ClientResponse) -> bytes:
        body = await read(self)
        clock, began = CLOCK.get(None), self.headers.get(BEGAN.decode())
        if clock is not None and began is not None:
            clock.queued_s += max(0.0, float(began) - clock.sent)
            clock.served_s += float(self.headers[ENDED.decode()]) - float(began)
        return body

    changes: list[tuple[Any, str, Any]] = [
        (VllmPolicy, "_turn", timed_turn),
        (ToolSession, "call", timed_call),
        (http_writer.StreamWriter, "write_eof", timed_write),
        (ClientResponse, "read", timed_read),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, timed in changes:
            stack.enter_context(mock.patch.object(owner, name, timed))
        yield


def told(app: ASGIApp) -> ASGIApp:
    """The application, each of whose answers has its clock in a header."""

    async def timed(scope: Scope, receive: Receive, send: Send) -> None:
        clock = RequestClock()
        CLOCK.set(clock)

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = json.dumps(dataclasses.asdict(clock)).encode()
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), seconds)]
            await send(message)

        await app(scope, receive, reply if scope["type"] == "http" else send)

    return timed


def serve(root: Path, folder: Path, serving: Serving, port: int) -> None:
    """Serve until told to end, with the checkpoint of `root` and the files of `folder`."""
    import uvicorn

    app = told(create_app(Gateway(folder, backend=Backend.load(root, serving)), load=False))
    with watched():
        listening = server_socket()
        listening.bind((LOCALHOST, port))
        config = uvicorn.Config(app, http=BoundedProtocol, ws="none", access_log=False, log_config=None)
        GracefulServer(config).run(sockets=[listening])
