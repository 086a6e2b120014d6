"""A gateway that says of itself and of its requests what a test wants, over real HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from orchestra.serving.releases.control_channel import close_channel, open_channel
from orchestra.serving.releases.state import SERVING, Serving, read

SILENT_S = 6.0
"""Longer than a look at a gateway waits."""


class FakeGateway(ThreadingHTTPServer):
    """Its own port and its control port in one; it works on a request of the release `busy` until `until`."""

    def __init__(self, root: Path, busy: str, until: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.busy, self.until = root, busy, until
        self.takes = 200
        """Its reply to a release."""
        self.serves = ("7", "")
        """Version and fingerprint."""
        self.answers_with: Serving | None = None
        """The release that it says to answer with, until it is told to load."""
        self.trial: object = None
        """The trial that it tells of, until then."""
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
        if self.path == "/admin/serving" and self.server.answers_with is not None:
            self._send(200, self.server.answers_with.model_dump_json())
        else:
            self._reply(200)

    def do_POST(self) -> None:
        self.server.trial = None
        if self.server.takes == 200 and self.server.answers_with is not None:
            self.server.answers_with = read(self.server.root / SERVING)
        self._reply(self.server.takes)

    def _reply(self, status: int) -> None:
        (version, fingerprint), working = self.server.serves, time.monotonic() < self.server.until
        draining = {self.server.busy: 1} if working else {}
        said = {"version": version, "fingerprint": fingerprint, "draining": draining, "trial": self.server.trial}
        self._send(status, json.dumps(said))

    def _send(self, status: int, body: str) -> None:
        raw = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def fake_gateway(root: Path, busy: str, until: float) -> Iterator[FakeGateway]:
    """One of that workspace, by the name of this process."""
    with FakeGateway(root, busy, until) as made:
        open_channel(root, made.url, made.url)
        try:
            yield made
        finally:
            close_channel(root)
            made.shutdown()
