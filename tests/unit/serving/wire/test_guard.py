"""What stands before every route, over real sockets: hosts, origins, sizes and seconds."""

import asyncio
import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire.connection import IDLE_S, BoundedProtocol
from orchestra.serving.wire.guard import RequestGuard
from orchestra.serving.wire.request import MAX_BODY
from tests.support.real_gateway import listening
from tests.support.serving_world import backend

ASKED = {"messages": [{"role": "user", "content": "what is 37*24?"}]}
PATH = "/v1/chat/completions"


class Hasty(BoundedProtocol):
    header_s = 0.5


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A gateway on a real port whose patience is short."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    app = create_app(Gateway(folder, backend=backend(folder)), load=False)
    assert isinstance(app, RequestGuard)
    with listening(RequestGuard(app.app, body_s=0.7), Hasty) as port:
        yield port


def connected(port: int, said: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(10)
    made.sendall(said)
    return made


def heard(connection: socket.socket) -> bytes:
    """All until the server closes."""
    found = b""
    while chunk := connection.recv(65536):
        found += chunk
    return found


def head(port: int, *headers: str) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_request_is_answered(port: int) -> None:
    reply = httpx.post(f"http://127.0.0.1:{port}{PATH}", json=ASKED)
    assert reply.json()["choices"][0]["message"]["content"] == "888"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused(port: int, host: str) -> None:
    reply = httpx.post(f"http://127.0.0.1:{port}{PATH}", json=ASKED, headers={"Host": host})
    assert reply.status_code == 403 and reply.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused(port: int, origin: str) -> None:
    for method, path in (("POST", PATH), ("GET", "/health")):
        reply = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers={"Origin": origin}, json=None)
        assert reply.status_code == 403 and reply.json()["error"]["code"] == "foreign_origin"
    own = httpx.get(f"http://127.0.0.1:{port}/health", headers={"Origin": f"http://127.0.0.1:{port}"})
    assert own.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_only_json_is_read(port: int, kind: str) -> None:
    """Any page may have a browser send the other kinds without asking."""
    reply = httpx.post(f"http://127.0.0.1:{port}{PATH}", content=json.dumps(ASKED), headers={"Content-Type": kind})
    assert reply.status_code == 415


def test_a_long_body_is_refused_before_it_is_read(port: int) -> None:
    with connected(port, head(port, f"Content-Length: {MAX_BODY + 1}")) as connection:
        said = heard(connection)
    assert b" 413 " in said.splitlines()[0] and b"too_large" in said


def test_a_body_without_an_end_is_refused_at_its_limit(port: int) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0
    with connected(port, head(port, "Transfer-Encoding: chunked")) as connection, pytest.raises(OSError):
        while sent < 200 * MAX_BODY:
            connection.sendall(chunk)
            sent += len(chunk)
    # What the kernel takes without the server, and no more.
    assert sent < 20 * MAX_BODY


def test_half_open_headers_and_stalled_bodies_end(port: int) -> None:
    began = time.monotonic()
    waiting = [
        connected(port, b""),
        connected(port, f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()),
        connected(port, head(port, "Content-Length: 100") + b"{"),
    ]
    said = [heard(connection) for connection in waiting]
    assert time.monotonic() - began < 5
    assert said[0] == said[1] == b"" and b" 408 " in said[2].splitlines()[0]
    for connection in waiting:
        connection.close()


def test_a_connection_that_is_kept_may_not_stay_half_open_either(port: int) -> None:
    with connected(port, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()) as connection:
        said = b""
        while not said.endswith(b"}"):
            said += connection.recv(65536)
        assert b" 200 " in said.splitlines()[0]
        connection.sendall(b"GET /health HT")
        began = time.monotonic()
        assert heard(connection) == b"" and time.monotonic() - began < 4


def test_who_does_not_read_an_answer_is_hung_up_on() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]

    async def blocked(_: object) -> None:
        await asyncio.sleep(60)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"127.0.0.1")]}
    with pytest.raises(TimeoutError):
        asyncio.run(RequestGuard(app, write_s=0.1)(scope, receive, blocked))


def test_clients_give_an_idle_connection_up_before_the_gateway_closes_it() -> None:
    """Where both do at once, a request is lost; the official client is httpx, with limits of its own."""
    from aiohttp import TCPConnector
    from openai import DEFAULT_CONNECTION_LIMITS

    async def aiohttps() -> float:
        connector = TCPConnector()
        try:
            return float(connector._keepalive_timeout or math.inf)
        finally:
            await connector.close()

    limits = (httpx.Limits(), DEFAULT_CONNECTION_LIMITS)
    others = [*(one.keepalive_expiry or math.inf for one in limits), asyncio.run(aiohttps())]
    assert all(seconds < IDLE_S for seconds in others)
