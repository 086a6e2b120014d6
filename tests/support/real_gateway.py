"""A gateway on a real port of this process, for clients of others."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from orchestra.serving.wire.connection import BoundedProtocol, GracefulServer
from orchestra.system.processes import LOCALHOST, server_socket


class RunningServer:
    """A server in a thread, on a port that others of its kind may share."""

    def __init__(
        self, app: Any, protocol: type[BoundedProtocol] = BoundedProtocol, port: int = 0, tls: Path | None = None
    ) -> None:
        """`tls`: the folder of a certificate and its key (see `tests.support.mailbox`)."""
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            log_level="critical",
            lifespan="off",
            ssl_certfile=tls and tls / "certificate.pem",
            ssl_keyfile=tls and tls / "key.pem",
        )
        self.server = GracefulServer(config, takeover=bool(port))
        sock = server_socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((LOCALHOST, port))
        self.port = sock.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [sock]}, daemon=True)
        self.thread.start()
        while not self.server.started or self.server.steered is None:
            time.sleep(0.02)

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def listening(app: Any, protocol: type[BoundedProtocol] = BoundedProtocol) -> Iterator[int]:
    """Serve an application in a thread until the block ends; its port."""
    with served(app, protocol) as running:
        yield running.port


@contextlib.contextmanager
def served(
    app: Any, protocol: type[BoundedProtocol] = BoundedProtocol, tls: Path | None = None
) -> Iterator[RunningServer]:
    """Serve an application in a thread until the block ends."""
    running = RunningServer(app, protocol, tls=tls)
    try:
        yield running
    finally:
        running.end()
