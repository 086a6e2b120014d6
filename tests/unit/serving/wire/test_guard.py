"""What stands before every route, over real sockets: hosts, origins, sizes and seconds."""

import asyncio
import contextlib
import json
import math
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn import Config

from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire import connection as bounds
from orchestra.serving.wire.connection import IDLE_S, BoundedProtocol, GracefulServer
from orchestra.serving.wire.guard import LOCAL_NAMES, RequestGuard
from orchestra.serving.wire.request import MAX_BODY
from orchestra.system.processes import server_socket
from tests.support.mailbox import certificate
from tests.support.real_gateway import listening, served
from tests.support.serving_world import backend
from tests.support.waiting import soon

ASKED = {"messages": [{"role": "user", "content": "what is 37*24?"}]}
PATH = "/v1/chat/completions"


class Hasty(BoundedProtocol):
    header_s = 1.5


@pytest.fixture(autouse=True)
def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server waits for requests on their way when it ends: test_takeover is about that."""
    monkeypatch.setattr(bounds, "LEAVE_S", 0.05)
    monkeypatch.setattr(BoundedProtocol, "leave_s", 0.05)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A gateway on a real port whose patience is short."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    app = create_app(Gateway(folder, backend=backend(folder)), load=False)
    assert isinstance(app, RequestGuard)
    with listening(RequestGuard(app.app, body_s=1.5), Hasty) as port:
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


def test_a_name_is_served_however_it_is_spelled(tmp_path: Path) -> None:
    hosts = (*LOCAL_NAMES, "2001:DB8:0::1", "Orchestra.example.org")
    with listening(create_app(Gateway(tmp_path, backend=backend(tmp_path)), load=False, hosts=hosts)) as port:

        def status(host: str) -> int:
            return httpx.post(f"http://127.0.0.1:{port}{PATH}", json=ASKED, headers={"Host": host}).status_code

        for host in ("[2001:db8::1]", "[2001:DB8:0:0::1]:8800", "orchestra.example.org", "ORCHESTRA.example.org:80"):
            assert status(host) == 200, host
        for host in ("[2001:db8::2]", "[127.0.0.1]", "[orchestra.example.org]", "[::1"):
            assert status(host) == 403, host


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1/v1/models", 200),
        ("HTTP://localhost:8800/v1/models?x=1", 200),
        ("https://127.0.0.1/health", 200),
        ("http://127.0.0.1", 200),
        ("http://127.0.0.1/%76%31/models", 200),
        ("http://127.0.0.1/v2", 404),
        ("http://evil.example/v1/models", 403),
        ("http://evil.example@127.0.0.1/v1/models", 403),
        ("http://evil.example?/v1/models", 403),
        ("http:///v1/models", 403),
        ("ftp://127.0.0.1/v1/models", 404),
    ],
)
def test_a_target_may_be_a_whole_address_whose_host_then_counts(port: int, target: str, status: int) -> None:
    for host in ("127.0.0.1", "evil.example"):
        asked = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        with connected(port, asked.encode()) as made:
            said = heard(made).splitlines()[0]
        foreign = target.startswith("ftp") and host == "evil.example"
        assert said.split()[1] == str(403 if foreign else status).encode(), (target, host)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_monitors_ask_by_a_number_or_a_listed_name(port: int, path: str) -> None:
    for host in ("10.0.3.7:8800", "10.0.3.7", "[2001:db8::7]:8800", "localhost", "LOCALHOST:8800"):
        assert httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8800", "10.0.3.7.evil.example", "localhost.", "gateway", "8800", "[]"):
        reply = httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
        assert reply.status_code == 403 and reply.json()["error"]["code"] == "foreign_host", host


def test_a_link_elsewhere_leads_to_the_page_and_to_nothing_else(port: int) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    def status(path: str, **changes: str) -> int:
        headers = {**link, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers).status_code

    assert status("/") == 200
    for path in ("/health", "/metrics", "/v1/models", "/openapi.json"):
        assert status(path) == 403, path
    assert status("/", Sec_Fetch_Dest="iframe") == status("/", Sec_Fetch_Mode="no-cors") == 403
    assert status("/", Host="evil.example") == status("/", Origin="https://evil.example") == 403
    reply = httpx.post(f"http://127.0.0.1:{port}{PATH}", json=ASKED, headers=link)
    assert reply.status_code == 403 and reply.json()["error"]["code"] == "foreign_origin"


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


def test_a_request_that_reads_has_no_body(port: int) -> None:
    """Whoever does not expect one takes it for the next request."""
    reply = httpx.request("GET", f"http://127.0.0.1:{port}/v1/models", json=ASKED)
    assert reply.status_code == 400 and "has no body" in reply.text


@pytest.mark.parametrize("name", ["Origin", "Authorization"])
def test_a_header_that_decides_who_may_ask_stands_once(port: int, name: str) -> None:
    """A proxy before the gateway may have checked the other."""
    value = {"Origin": f"http://127.0.0.1:{port}", "Authorization": "Bearer x"}[name]
    twice = [f"{name}: {value}"] * 2
    with connected(port, head(port, *twice, "Content-Length: 2", "Connection: close") + b"{}") as connection:
        said = heard(connection)
    assert f"the header {name.lower()} stands twice".encode() in said, said


@pytest.mark.parametrize(("version", "headers"), [("1.1", ["Content-Length: 5"]), ("1.0", [])])
def test_a_body_whose_end_is_stated_in_two_ways_is_refused_and_nothing_behind_it_read(
    port: int, version: str, headers: list[str]
) -> None:
    """A proxy before the gateway may have taken what follows for a part of the body, and checked none of it."""
    body = json.dumps(ASKED).encode()
    first = head(port, "Transfer-Encoding: chunked", *headers).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    behind = f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    with connected(port, first + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) + behind) as connection:
        said = heard(connection)
    assert b" 400 " in said.splitlines()[0] and said.count(b"HTTP/1.1 ") == 1, said


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


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Writes for as long as somebody is there."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.ensure_future(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def short(scope: Any, receive: Any, send: Any) -> None:
    """More than the system takes, less than asyncio takes before it pauses by itself."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 40_000})


@pytest.mark.parametrize(
    ("app", "asked"),
    [
        (endless, b""),  # The answer has begun.
        (short, b"\r\nGET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" * 50),  # Answers wait that have not begun.
        (short, b"Connection: close\r\n"),  # The server is done, and only some bytes are left.
    ],
)
def test_who_does_not_read_an_answer_is_hung_up_on(app: Any, asked: bytes) -> None:
    made, lost = threading.Semaphore(0), threading.Semaphore(0)

    class Impatient(BoundedProtocol):
        write_s = 0.5

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            # The system keeps little of what is not read.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)
            made.release()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            assert self not in self.connections
            lost.release()

    with listening(RequestGuard(app), Impatient) as port, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + asked + b"\r\n")
        assert made.acquire(timeout=20) and lost.acquire(timeout=20)


def test_who_reads_on_is_not_hung_up_on() -> None:
    paused, timers = threading.Event(), []

    class Watched(BoundedProtocol):
        def pause_writing(self) -> None:
            super().pause_writing()
            timers.append(self._unread_timer)
            paused.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"x" * 20_000_000})

    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with listening(RequestGuard(app), Watched) as port, connected(port, asked) as connection:
        assert paused.wait(20)
        assert heard(connection).count(b"x") >= 20_000_000
    assert timers and all(timer is not None and timer.cancelled() for timer in timers)


@pytest.mark.parametrize(
    "said", [b"GARBAGE\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"]
)
def test_broken_http_is_refused_in_openais_form(port: int, said: bytes) -> None:
    with connected(port, said) as made:
        head, _, body = heard(made).partition(b"\r\n\r\n")
    names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert head.startswith(b"HTTP/1.1 400 ") and names[b"connection"] == b"close"
    assert names[b"content-type"] == b"application/json" and names[b"x-request-id"].startswith(b"req_")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def asks(connection: socket.socket) -> bool:
    """Whether a request on the connection is answered."""
    connection.settimeout(5)
    found = b""
    with contextlib.suppress(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while not found.endswith(b"ok") and (chunk := connection.recv(4096)):
            found += chunk
    return found.startswith(b"HTTP/1.1 200")


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def slow_at(path: str, begun: threading.Event, go_on: threading.Event) -> Any:
    """An app that works on requests to that path until it may go on, and says when it begins."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == path:
            begun.set()
            await asyncio.to_thread(go_on.wait, 20)
        await ok(scope, receive, send)

    return app


def test_when_connections_run_out_the_one_that_was_idle_longest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 4)
    begun, go_on = threading.Event(), threading.Event()
    app = slow_at("/slow", begun, go_on)
    with contextlib.ExitStack() as held, listening(RequestGuard(app)) as port:

        def connect() -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", port)))

        slow = connect()
        slow.sendall(b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert begun.wait(20)
        kept, *silent = [connect() for _ in range(3)]
        # More than once: the server takes the silent ones meanwhile, so that they are idle for longer.
        assert all(asks(kept) for _ in range(3))
        # Full. New callers are served, and the silent ones make room, the oldest first.
        assert asks(connect())
        assert [asks(one) for one in (silent[1], kept, silent[0])] == [True, True, False]
        assert all(asks(connect()) for _ in range(10))
        go_on.set()
        slow.settimeout(20)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200"), "a request under way is no idle connection"


def test_a_port_full_of_bodies_without_an_end_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 4)
    begun, go_on = threading.Event(), threading.Event()
    app = slow_at("/slow", begun, go_on)
    with served(RequestGuard(app)) as running, contextlib.ExitStack() as held:

        def connect() -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", running.port)))

        body = json.dumps(ASKED).encode()
        slow = connect()
        # Its body is whole, and it says that it is the last on its connection.
        slow.sendall(
            head(1, f"Content-Length: {len(body)}", "Connection: close").replace(PATH.encode(), b"/slow") + body
        )
        assert begun.wait(20)
        waiting = bounds._PORTS[running.server.server_state][running.port].waiting

        def begin_a_body() -> socket.socket:
            made = connect()
            made.sendall(head(running.port, "Content-Length: 100") + b"{")
            assert soon(lambda: bool(waiting) and [*waiting.values()][-1], 5)
            return made

        first, *_ = [begin_a_body() for _ in range(3)]
        assert asks(new := connect())
        assert first.recv(100) == b"", "the one that waits longest makes room"
        for _ in range(2):
            begin_a_body()
        assert asks(new), "it has waited less than the others"
        assert all(asks(connect()) for _ in range(8))
        go_on.set()
        slow.settimeout(20)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200"), "a request that is worked on is cut by nobody"


def over_tls(port: int, folder: Path, said: bytes = b"") -> ssl.SSLSocket:
    """A caller that does not end its side: nothing reads what the server says last."""
    trusted = ssl.create_default_context(cafile=folder / "certificate.pem")
    made = socket.create_connection(("127.0.0.1", port), timeout=20)
    found = trusted.wrap_socket(made, server_hostname="127.0.0.1")
    found.sendall(said)
    return found


@pytest.mark.parametrize(
    "said",
    [b"", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"],
    ids=["silent", "refused", "answered"],
)
def test_a_full_port_waits_for_the_end_of_no_tls_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 4)
    certificate(tmp_path, "127.0.0.1")
    with served(RequestGuard(ok), tls=tmp_path) as running, contextlib.ExitStack() as held:
        for _ in range(12):
            held.enter_context(over_tls(running.port, tmp_path, said))
        assert asks(held.enter_context(over_tls(running.port, tmp_path)))
        connections = running.server.server_state.connections
        assert soon(lambda: len(connections) <= 4, 5)


def test_tls_handshakes_without_an_end_are_counted_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 4)
    certificate(tmp_path, "127.0.0.1")
    with served(RequestGuard(ok), Hasty, tls=tmp_path) as running, contextlib.ExitStack() as held:
        silent = [held.enter_context(connected(running.port, b"")) for _ in range(12)]
        assert asks(held.enter_context(over_tls(running.port, tmp_path)))
        port = bounds._PORTS[running.server.server_state][running.port]
        assert port.open <= 4, "those that were silent longest made room"
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert heard(one) == b""
        assert soon(lambda: port.open == len(running.server.server_state.connections) == 1, 5)
        plain = held.enter_context(connected(running.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in heard(plain), "no TLS, no answer"
        assert soon(lambda: port.open == len(port.waiting) == 1, 5)


def test_a_tls_caller_whose_headers_do_not_come_is_not_waited_for(tmp_path: Path) -> None:
    certificate(tmp_path, "127.0.0.1")
    with served(RequestGuard(ok), Hasty, tls=tmp_path) as running, over_tls(running.port, tmp_path, b"GET / HT"):
        connections = running.server.server_state.connections
        assert soon(lambda: len(connections) == 1, 5) and soon(lambda: not connections, 5)


def test_a_full_tls_port_cuts_no_answer_that_is_read_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 2)
    certificate(tmp_path, "127.0.0.1")
    answered = threading.Event()

    class Narrow(BoundedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            answered.set()

    async def long(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/long":
            return await ok(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"60000")]})
        await send({"type": "http.response.body", "body": b"x" * 60_000})

    trusted = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    with served(RequestGuard(long), Narrow, tls=tmp_path) as running, contextlib.ExitStack() as held:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(20)
        made.connect(("127.0.0.1", running.port))
        late = held.enter_context(trusted.wrap_socket(made, server_hostname="127.0.0.1"))
        late.sendall(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answered.wait(20)
        for _ in range(4):
            assert asks(held.enter_context(over_tls(running.port, tmp_path)))
        found = b""
        while len(found.partition(b"\r\n\r\n")[2]) < 60_000 and (chunk := late.recv(4096)):
            found += chunk
        assert found.endswith(b"x" * 60_000)


def test_connections_of_one_port_take_no_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 2)
    app = create_app(Gateway(tmp_path, backend=backend(tmp_path)), load=False)
    sockets = [server_socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    server = GracefulServer(Config(app, http=BoundedProtocol, ws="none", log_level="critical", lifespan="off"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": sockets}, daemon=True)
    serving.start()
    public, control = (one.getsockname()[1] for one in sockets)
    with contextlib.ExitStack() as held:

        def asked(port: int) -> int:
            return httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=20, trust_env=False).status_code

        assert soon(lambda: server.started, 20)
        first = held.enter_context(connected(control, b""))
        for _ in range(20):
            held.enter_context(connected(public, b""))
        assert (asked(control), asked(public)) == (200, 200)
        first.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 200"), "the other port's callers closed no connection of this one"
    server.should_exit = True
    serving.join(20)
    assert not serving.is_alive()


@pytest.mark.parametrize(("patience_s", "answered"), [(30, True), (1, False)])
def test_how_long_the_last_requests_have_is_asked_at_the_end(patience_s: int, answered: bool) -> None:
    begun = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.sleep(3)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = Config(
        app, http=BoundedProtocol, ws="none", log_level="critical", lifespan="off", timeout_graceful_shutdown=2
    )
    server = GracefulServer(config, patience_s=lambda: patience_s)
    sock = server_socket()
    sock.bind(("127.0.0.1", 0))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    serving.start()
    assert soon(lambda: server.started, 20)
    with connected(sock.getsockname()[1], b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as asking:
        assert begun.wait(20)
        server.should_exit = True
        found = asking.recv(100)
    serving.join(20)
    assert found.startswith(b"HTTP/1.1 200") == answered and not serving.is_alive()


@pytest.mark.parametrize(
    ("files", "most", "arriving"), [(-1, 1000, 2048), (1_048_576, 1000, 2048), (1024, 384, 128), (300, 75, 25)]
)
def test_connections_leave_files_for_the_rest(
    files: int, most: int, arriving: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert (bounds.most_connections(), bounds.most_arriving()) == (most, arriving)


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
