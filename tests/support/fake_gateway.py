"""A gateway that says of itself and of its requests what a test wants, over real HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from orchestra.serving.releases.control_channel import close_channel, open_channel

SILENT_S = 6.0
"""Longer than a look at a gateway waits."""


class FakeGateway(ThreadingHTTPServer):
    """Its own port and its control port in one; it works on a request of the release `busy` until `until`."""

    def __init__(self, busy: str, until: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.busy, self.until = busy, until
        self.takes = 200
        """Its reply to a release."""
        self.serves = ("7", "")
        """Version and fingerprint."""
        self.asked, self.silent = threading.Event(), threading.Event()
        """Whether it was asked how it is, and whether it is slow to say."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeGateway

    def do_GET(self) -> None:
        self.server.asked.set()
        if self.server.silent.is_set():
            time.sleep(SILENT_S)
        self._reply(200)

    def do_POST(self) -> None:
        self._reply(self.server.takes)

    def _reply(self, status: int) -> None:
        (version, fingerprint), working = self.server.serves, time.monotonic() < self.server.until
        said = {"version": version, "fingerprint": fingerprint, "draining": {self.server.busy: 1} if working else {}}
        raw = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def fake_gateway(root: Path, busy: str, until: float) -> Iterator[FakeGateway]:
    """One of that workspace, by the name of this process."""
    with FakeGateway(busy, until) as made:
        open_channel(root, made.url, made.url)
        try:
            yield made
        finally:
            close_channel(root)
            made.shutdown()
