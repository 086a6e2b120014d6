"""vLLM's completions over a checkpoint in this process, for tests: a real HTTP server whose weights can be replaced."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.transformers import TransformersPolicy
from tests.support.worlds import example


class ModelServer(ThreadingHTTPServer):
    """Answers /health and /v1/completions, greedily."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.serve(folder)
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def serve(self, folder: Path) -> None:
        """Another checkpoint from now on."""
        self._policy = TransformersPolicy(folder, name="served")

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = [Conversation(example("e"), request["prompt"])]
        with self._lock:
            self._policy.begin(asked)
            (made,) = asyncio.run(self._policy.generate(asked, [request["max_tokens"]]))
            self._policy.end()
        choice = {"token_ids": made.ids, "logprobs": {"token_logprobs": made.logprobs}, "finish_reason": made.stop}
        return {"choices": [choice], "usage": {}}


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        self._reply(self.server.complete(json.loads(self.rfile.read(size))))

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
