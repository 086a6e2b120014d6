"""Connections that nobody can hold: uvicorn's protocol, with bounds on headers, unread answers and their number.

A server that ends loses no request: it answers whatever was sent on a connection that it had accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import resource
import socket
import ssl
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import cast
from weakref import WeakKeyDictionary

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_local_addr, is_ssl
from uvicorn.server import ServerState

from orchestra.serving.wire.errors import REQUEST_ID, bad_request, request_id
from orchestra.serving.wire.steering import take_all

HEADER_S = 10.0
"""Seconds from the first byte of a request (or the opening of its connection) to the end of its headers, and seconds
that a TLS handshake may take."""
IDLE_S = 75
"""Seconds that a connection may be idle between two requests. Clients and proxies must give it up before: the official
client does after 5 s, nginx and most load balancers after 60 s. Where both do at once, a request is lost."""
WRITE_S = 60.0
"""Seconds that a caller may leave an answer unread."""
LEAVE_S = 2.0
"""Seconds that a connection without a request stays open when the server ends: one may be on its way."""
MAX_CONNECTIONS = 1000
"""Of one port."""
MAX_ARRIVING = 2048
KEPT_FILES = 256
"""Files that a process may open beside connections: databases, traces, tools, model servers."""
MAX_AHEAD = 256 << 10
"""Bytes that a caller may send ahead on a connection while its request is worked on."""


def most_connections() -> int:
    """Of one port, as far as the system lets this process open files. The control port may have as many."""
    return min(MAX_CONNECTIONS, _free_files() // 2)


def most_arriving() -> int:
    """Connections that are accepted at a stretch, before the first of them can be closed: asyncio logs every one for
    which it cannot open a file."""
    return min(MAX_ARRIVING, _free_files() // 6)


def _free_files() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(limit - KEPT_FILES, limit // 2)


class _Port:
    """The connections of one port."""

    def __init__(self) -> None:
        self.open = 0
        self.waiting: dict[BoundedProtocol, bool] = {}
        """Those that work on no whole request, the longest first, and whether the body of one arrives; among them those
        whose TLS handshake is not over, and those that wait for the end of their peer."""

    def enter(self, new: BoundedProtocol) -> None:
        """Count a connection. On a full port the one that waits longest is closed for it."""
        self.open += 1
        self.waiting[new] = False
        if self.open > most_connections():
            longest = next((one for one in self.waiting if not one._unread()), new)
            self.waiting.pop(longest, None)
            longest._hang_up()

    def leave(self, one: BoundedProtocol) -> None:
        """It is closed."""
        self.open -= 1
        self.waiting.pop(one, None)


_PORTS: WeakKeyDictionary[ServerState, dict[int | None, _Port]] = WeakKeyDictionary()
"""By server and number."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose connections end when a request's headers do not arrive in time, or an answer is not read in time.

    While a request is worked on its connection is read on, whatever was sent ahead: otherwise nobody would notice that
    the caller hangs up.
    """

    header_s = HEADER_S
    write_s = WRITE_S
    leave_s = LEAVE_S
    _leaving = False
    _header_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _port: _Port
    _ahead = 0
    """Bytes of later requests."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made, tls = cast(asyncio.Transport, transport), getattr(self.server_state, "tls", None)
        if tls is not None and not is_ssl(made):
            self.transport = made
            self._enter()
            self._shake_hands(tls)
            return
        super().connection_made(made)
        if tls is None:
            self._enter()
        self.timeout_keep_alive = IDLE_S
        # Writing pauses at the first byte that the system does not take, because even one keeps a closed connection
        # open. TLS compares with `>=`, so that its first byte is 1.
        self.transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)
        self._watch()
        if isinstance(self.server_state, _ServerState) and self.server_state.leaving:
            self.shutdown()

    def _enter(self) -> None:
        """Take a place of the port."""
        address = get_local_addr(self.transport)
        self._port = _PORTS.setdefault(self.server_state, {}).setdefault(address and address[1], _Port())
        self._port.enter(self)

    def _shake_hands(self, tls: ssl.SSLContext) -> None:
        """Begin TLS on a connection; once that is done, `connection_made` is called again."""
        over = self.loop.create_future()
        over.add_done_callback(self._shaken)
        limit_s = math.ceil(self.header_s)
        below = SSLProtocol(self.loop, self, tls, over, server_side=True, ssl_handshake_timeout=limit_s)
        self.transport.set_protocol(below)
        below.connection_made(self.transport)

    def _shaken(self, over: asyncio.Future[None]) -> None:
        over.exception()  # It is nobody's to handle.
        if self.scheme is None:
            self._port.leave(self)

    def data_received(self, data: bytes) -> None:
        self._ahead = self._ahead + len(data) if self._whole() else 0
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP: in the form of every refusal."""
        body = json.dumps(bad_request("the request is no valid HTTP/1.1").body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (REQUEST_ID, request_id().encode()),
        ]
        first = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (first, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def shutdown(self) -> None:
        """The server ends: a request under way is answered, and so is one that comes within `leave_s`."""
        self._leaving = True
        self._say_last()
        self.loop.call_later(self.leave_s, self._leave)

    def _say_last(self) -> None:
        """Have the answer that is next say that the connection ends with it.

        One that has begun cannot: its connection stays open for `leave_s` after it.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_started and cycle.keep_alive:
            cycle.keep_alive = False
            # uvicorn's answer repeats what the request says of its connection.
            self.headers.append((b"connection", b"close"))

    def _waiting(self) -> bool:
        """Whether no request is worked on."""
        return self.cycle is None or self.cycle.response_complete

    def _rank(self) -> None:
        """Keep its place among those that a full port closes, or give it up: while a request is worked on or its answer
        is read."""
        transport = self.transport
        idle = self._waiting() and (transport.is_closing() or not transport.get_write_buffer_size())
        arrives = not self._waiting() and self.conn.their_state is h11.SEND_BODY
        waiting, waits = self._port.waiting, (idle or arrives) and self in self.connections
        if not waits or waiting.get(self) is not arrives:
            waiting.pop(self, None)
        if waits:
            waiting.setdefault(self, arrives)

    def _unread(self) -> int:
        """Bytes of answers that the system has not taken yet."""
        transport: asyncio.Transport | None = self.transport
        if self.scheme == "https":
            # TLS hands all of it to a transport below, with a buffer of its own that only this tells.
            transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
        return 0 if transport is None else transport.get_write_buffer_size()

    def _hang_up(self) -> None:
        """End a connection without a request; an answer is still sent to its end. Where none is left, nothing is waited
        for: with TLS, close() waits 30 s until the peer ends too."""
        unread = self._unread()
        if not self.transport.is_closing():
            self.transport.close()
        if not unread:
            self.transport.abort()

    def _leave(self) -> None:
        if self._waiting() and not self.transport.is_closing():
            super().shutdown()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._rank()
        if self._leaving:
            self.loop.call_later(self.leave_s, self._leave)

    def handle_events(self) -> None:
        super().handle_events()
        self._rank()
        if self._leaving:
            self._say_last()
        if self._whole() and not self.transport.is_closing():
            if self._ahead > MAX_AHEAD:
                self.transport.close()
            else:
                self.flow.resume_reading()

    def _whole(self) -> bool:
        """Whether a request that was read to its end is worked on."""
        return not self._waiting() and self.conn.their_state is h11.DONE

    def pause_writing(self) -> None:
        super().pause_writing()
        # abort(), since close() would wait until the caller has read the rest.
        self._unread_timer = self.loop.call_later(self.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._has_read()
        super().resume_writing()
        self._rank()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._has_read()
        self._port.leave(self)
        super().connection_lost(exc)

    def _watch(self) -> None:
        """A request under way has its own limits; without one its headers are awaited."""
        if not self._waiting():
            self._forget()
        elif self._header_timer is None and self.timeout_keep_alive_task is None:
            self._header_timer = self.loop.call_later(self.header_s, self._late)

    def _forget(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _has_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _late(self) -> None:
        self._header_timer = None
        if self._waiting() and not self.transport.is_closing():
            self._hang_up()


class _ServerState(ServerState):
    """uvicorn's, and whether the server ends."""

    leaving = False
    tls: ssl.SSLContext | None = None


class GracefulServer(Server):
    """A server that ends without losing a request that reached it, also while another one takes its port over.

    Closing a listening socket resets the connections that the system has made on it and nobody has accepted, and
    asyncio drops those whose acceptance has begun. Both kinds are accepted first.
    """

    server_state: _ServerState

    def __init__(
        self, config: Config, *, takeover: bool = False, patience_s: Callable[[], int | None] | None = None
    ) -> None:
        """`takeover`: from its start on, all new connections of its ports are its own. `patience_s`: asked at its end,
        how many seconds requests under way have; default: as configured."""
        super().__init__(config)
        self.server_state, self._takeover, self._patience_s = _ServerState(), takeover, patience_s
        self.steered: list[bool] | None = None
        """Of each socket of a takeover, whether the system sends it all; None before the start."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # The protocol begins TLS itself, which counts the connection before its handshake.
        self.server_state.tls, self.config.ssl = self.config.ssl, None
        await super().startup(sockets)
        self.steered = [take_all(listening) for listening in sockets or []] if self._takeover else []

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._patience_s is not None:
            self.config.timeout_graceful_shutdown = self._patience_s()
        loop = asyncio.get_running_loop()
        for listening in sockets or []:
            loop.remove_reader(listening)
        # What asyncio has begun to accept becomes a connection.
        await asyncio.sleep(0.01)
        # From here to the closing of the sockets, in super(), nothing else runs.
        waiting = []
        for listening in sockets or []:
            # Until nobody waits, or this process may open no more files.
            with contextlib.suppress(OSError):
                while True:
                    waiting.append(listening.accept()[0])
        self.server_state.leaving = True
        # uvicorn waits for what is in `tasks`.
        arriving = loop.create_task(self._arrived(waiting))
        self.server_state.tasks.add(arriving)
        arriving.add_done_callback(self.server_state.tasks.discard)
        await super().shutdown(sockets)

    async def _arrived(self, waiting: list[socket.socket]) -> None:
        """Until these connections, and those whose TLS handshakes are under way, have come and gone."""
        await asyncio.gather(*map(self._accept, waiting))
        if self.server_state.tls is not None:
            await asyncio.sleep(LEAVE_S)
        while self.server_state.connections:
            await asyncio.sleep(0.1)

    async def _accept(self, made: socket.socket) -> None:
        made.setblocking(False)

        def protocol() -> H11Protocol:
            kind = cast(type[H11Protocol], self.config.http_protocol_class)
            return kind(self.config, self.server_state, self.lifespan.state)

        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(protocol, made)
