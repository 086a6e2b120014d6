"""A model's endpoint for tests: a real HTTP server on 127.0.0.1 that plays a script and keeps what it was asked."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)
Script = list[tuple[int, Any, float]] | Callable[[dict[str, Any]], Any]
"""Either (status, body, seconds) in turn, the last one for ever; or what to reply to a request, as such a triple or as
an object. Status 0 hangs up without a word."""


def answer(content: Any = "Kelmar", **message: Any) -> dict[str, Any]:
    """A chat completion of 100 tokens read, 40 of them from a cache, and 7 written."""
    counts = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": counts}


def ended(finish: str, content: Any = None, **message: Any) -> dict[str, Any]:
    """A chat completion that ended so: `length` without content are thoughts that did not end."""
    told = answer(content, **message)
    return told | {"choices": [told["choices"][0] | {"finish_reason": finish}]}


def taking_no(parameter: str, told: str = "`{}` is deprecated for this model.") -> Callable[[dict[str, Any]], Any]:
    """A model that refuses a parameter, as Claude its temperature, and else says TRUE and 888."""

    def reply(request: dict[str, Any]) -> Any:
        said = {"error": {"type": "invalid_request_error", "message": told.format(parameter)}}
        return (400, said, 0) if parameter in request else (200, answer("Decision: TRUE\nAnswer: 888"), 0)

    return reply


def completion(request: dict[str, Any], content: str) -> dict[str, Any]:
    """A chat completion with every field that OpenAI's schema wants, for clients that check it."""
    told = answer(content)
    counts = told["usage"] | {"total_tokens": 107}
    choices = [{"index": 0, **choice} for choice in told["choices"]]
    kept = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": request["model"]}
    return {**kept, "choices": choices, "usage": counts}


class Double(ThreadingHTTPServer):
    """Plays the script and keeps what it was asked, and with which keys."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.asked, self.keys = script, list[Any](), list[str | None]()
        self.headers: dict[str, str] = {}
        """Sent with every reply."""
        self.heads: list[dict[str, str]] = []
        self.health: tuple[int, Any] = (404, {})
        """What it says of itself: status and body of /health."""
        self.lock = threading.Lock()
        self.connections = 0
        self.at_once = self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, request: dict[str, Any]) -> tuple[int, Any, float]:
        if callable(self.script):
            said = self.script(request)
            return said if isinstance(said, tuple) else (200, answer(json.dumps(said)), 0)
        return self.script[min(len(self.asked), len(self.script)) - 1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, Double)
        self.server.connections += 1

    def do_GET(self) -> None:
        assert isinstance(self.server, Double)
        status, said = self.server.health if self.path == "/health" else (404, {})
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Double)
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.asked.append(request)
        server.keys.append(self.headers.get("authorization"))
        server.heads.append(dict(self.headers))
        status, body, seconds = server.reply(request)
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        threading.Event().wait(seconds)
        with server.lock:
            server.at_once -= 1
        if status == 0:
            self.close_connection = True
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def handle(self) -> None:
        # A client that gave up leaves half a request.
        with suppress(ConnectionResetError, json.JSONDecodeError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def serving(script: Script) -> AbstractContextManager[Double]:
    """The double while it serves."""
    return running(Double(script))


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Any server while it serves."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def idle_proxy() -> Iterator[dict[str, str]]:
    """This environment with every variable for a proxy, which must receive nothing."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        small = {f"{kind}_proxy": address for kind in ("http", "https", "all")}
        kept = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
        yield kept | small | {name.upper(): address for name in small}
        proxy.setblocking(False)
        with suppress(BlockingIOError):
            raise AssertionError(f"the proxy was asked: {proxy.accept()[0].recv(4096)!r}")
