"""Callers that hang up while they are answered: the work ends, whatever they had sent ahead and however they leave."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.app import HeldStream, create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire.connection import MAX_AHEAD
from tests.support.real_gateway import listening
from tests.support.serving_world import backend, calculate
from tests.support.worlds import codec

BODY = json.dumps({"messages": [{"role": "user", "content": "what is 2*3?"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
AHEAD = [
    b"",
    b"G",
    b"GET /health HTTP/1.1\r\n",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    WHOLE * 3,
    CHUNKED,
    b"\r\n" * 20,
    b"\x00" * 5_000,
    WHOLE * 400,
]
SECONDS = 20
"""On a busy machine; the work itself takes a minute."""


class Slow(ScriptedPolicy):
    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        await asyncio.sleep(60)
        raise AssertionError


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


LEAVE: list[Callable[[socket.socket], object]] = [
    socket.socket.close,
    reset,
    lambda connection: connection.shutdown(socket.SHUT_WR),
]


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path, backend=backend(tmp_path, policy=Slow("slow", calculate, codec().turn)))


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_the_work_ends_with_its_connection(gateway: Gateway) -> None:
    """Also where more was sent behind the request: in pieces, at once, later."""
    made = gateway.backend
    assert made is not None
    rng = random.Random(0)
    with listening(create_app(gateway, load=False)) as port:
        for ahead in AHEAD:
            for leave in LEAVE:
                connection = socket.create_connection(("127.0.0.1", port))
                first, at_once = rng.choice([WHOLE, CHUNKED]), rng.random() < 0.5
                connection.sendall(first + ahead if at_once else first)
                assert until(lambda: made.in_flight == 1)
                if not at_once:
                    for place in range(0, len(ahead), step := rng.choice([1_000, 50_000, 1 << 20])):
                        connection.sendall(ahead[place : place + step])
                leave(connection)
                assert until(lambda: made.in_flight == 0), (ahead[:40], at_once, leave)
                connection.close()


@pytest.mark.parametrize("turns", [0, 1])
def test_the_place_of_a_stream_is_free_when_its_work_has_ended(turns: int, tmp_path: Path) -> None:
    """Be it that the caller leaves while nothing is sent, or between two events."""
    began, over, in_flight = threading.Event(), threading.Event(), list[tuple[int, int]]()

    class Ending(ScriptedPolicy):
        async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
            if len(conversations[0].turns) < turns:
                return await super().generate(conversations, max_tokens)
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                for _ in range(50):  # As a tool that is told to end, and takes a while.
                    await asyncio.sleep(0.01)
                in_flight.append((made.in_flight, gateway.places.running))
                over.set()
            raise AssertionError

    made = backend(tmp_path, policy=Ending("ending", calculate, codec().turn))
    gateway = Gateway(tmp_path, backend=made)
    body = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with listening(create_app(gateway, load=False)) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert began.wait(SECONDS)
        assert over.wait(SECONDS)
        assert until(lambda: (made.in_flight, gateway.places.running) == (0, 0))
    assert in_flight == [(1, 1)]


def test_a_stream_that_the_server_stops_sending_is_closed_before_its_place_is_free() -> None:
    order, held = list[str](), contextlib.AsyncExitStack()
    held.callback(order.append, "place")

    async def events() -> AsyncGenerator[str, None]:
        try:
            yield "first"
            yield "second"
        finally:
            order.append("work")

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise OSError

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    async def go() -> None:
        left = events()  # Held here: nobody else closes it.
        with pytest.raises(ClientDisconnect):
            await HeldStream(left, held)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        assert order == ["work", "place"]

    asyncio.run(go())


def test_who_sends_without_end_behind_a_request_is_hung_up_on(gateway: Gateway) -> None:
    made = gateway.backend
    assert made is not None
    with listening(create_app(gateway, load=False)) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(SECONDS)
            connection.sendall(WHOLE)
            assert until(lambda: made.in_flight == 1)
            with pytest.raises(OSError):
                for _ in range(400):
                    connection.sendall(b"x" * MAX_AHEAD)
        assert until(lambda: made.in_flight == 0)
