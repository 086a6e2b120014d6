"""A server that ends, also while another takes its port over: no request is lost, and no silent caller holds it."""

import asyncio
import http.client
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestra.serving.wire.connection import LEAVE_S, BoundedProtocol
from tests.support.mailbox import certificate
from tests.support.real_gateway import RunningServer


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Works a while; a stream is told at once that it begins."""
    begin = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    if scope["path"] == "/stream":
        await send(begin)
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"k"})
        return
    await asyncio.sleep(0.02 if scope["path"] == "/work" else 0)
    await send(begin)
    await send({"type": "http.response.body", "body": b"ok"})


class Impatient(BoundedProtocol):
    leave_s = 0.5


@pytest.mark.parametrize("path", ["/", "/work", "/stream"])
@pytest.mark.parametrize("kept", [False, True], ids=["new connections", "kept connections"])
def test_many_users_notice_no_takeover(kept: bool, path: str) -> None:
    done, answers, failures = threading.Event(), [0], []

    def user(port: int) -> None:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        while not done.is_set():
            try:
                made.request("GET", path)
                assert made.getresponse().read() == b"ok"
                answers[0] += 1
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
                made.close()
            # The client connects again by itself after this, and after an answer that closes its connection.
            if not kept:
                made.close()
        made.close()

    old = RunningServer(app)
    users = [threading.Thread(target=user, args=[old.port]) for _ in range(8)]
    for one in users:
        one.start()
    try:
        for _ in range(3):
            new = RunningServer(app, port=old.port)
            time.sleep(0.2)
            old.end()
            old = new
    finally:
        done.set()
        for one in users:
            one.join()
        old.end()
    assert answers[0] > 100 and not failures


def test_from_its_start_on_every_connection_is_the_new_ones() -> None:
    def told(name: bytes) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
            await send({"type": "http.response.body", "body": name})

        return answer

    def asked(port: int) -> bytes:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        made.request("GET", "/")
        return made.getresponse().read()

    first = RunningServer(told(b"1"))
    second = RunningServer(told(b"2"), port=first.port)
    if second.server.steered != [True]:
        second.end()
        first.end()
        pytest.skip("this kernel has no rule for the sockets of a port")
    assert {asked(first.port) for _ in range(64)} == {b"2"}
    third = RunningServer(told(b"3"), port=first.port)
    assert {asked(first.port) for _ in range(64)} == {b"3"}
    first.end()
    # The rule has ended with it: the two that are left share the port.
    assert {asked(third.port) for _ in range(64)} == {b"2", b"3"}
    second.end()
    assert {asked(third.port) for _ in range(64)} == {b"3"}
    third.end()


def test_a_request_that_comes_while_the_server_ends_is_answered() -> None:
    running = RunningServer(app)
    opened = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    opened.connect()
    running.server.should_exit = True
    while not running.server.server_state.leaving:
        time.sleep(0.01)
    opened.request("GET", "/")
    answer = opened.getresponse()
    assert answer.status == 200 and answer.headers["connection"] == "close" and answer.read() == b"ok"
    running.end()


def test_a_caller_whose_tls_handshake_comes_while_the_server_ends_is_answered(tmp_path: Path) -> None:
    certificate(tmp_path, "127.0.0.1")
    running = RunningServer(app, tls=tmp_path)
    made = socket.create_connection(("127.0.0.1", running.port), timeout=10)
    running.server.should_exit = True
    while not running.server.server_state.leaving:
        time.sleep(0.01)
    time.sleep(LEAVE_S / 4)
    trusted = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    with trusted.wrap_socket(made, server_hostname="127.0.0.1") as opened:
        opened.sendall(b"GET /work HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while chunk := opened.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok")
    running.end()


def test_a_connection_that_nobody_accepted_is_answered_too() -> None:
    held, release = threading.Event(), threading.Event()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/busy":
            held.set()
            # On purpose: while this runs, the loop accepts nothing.
            release.wait(10)
        await app(scope, receive, send)

    running = RunningServer(busy)
    first, second = (http.client.HTTPConnection("127.0.0.1", running.port, timeout=10) for _ in range(2))
    first.request("GET", "/busy")
    assert held.wait(10)
    running.server.should_exit = True
    second.request("GET", "/")
    release.set()
    assert first.getresponse().read() == second.getresponse().read() == b"ok"
    running.end()


def test_a_silent_connection_keeps_no_server() -> None:
    running = RunningServer(app, Impatient)
    kept = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    kept.request("GET", "/")
    kept.getresponse().read()
    with socket.create_connection(("127.0.0.1", running.port), timeout=5) as silent:
        began = time.monotonic()
        running.end()
        assert time.monotonic() - began < 5
        assert silent.recv(1) == b""
    kept.close()


def test_an_answer_in_two_writes_waits_for_no_acknowledgement() -> None:
    """Nagle's algorithm would hold the second write back for 40 ms on a kept connection."""
    found = []

    class Watched(BoundedProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made = transport.get_extra_info("socket")
            found.append(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    running = RunningServer(app, Watched)
    with socket.create_connection(("127.0.0.1", running.port), timeout=5):
        running.end()
    assert found == [1]
