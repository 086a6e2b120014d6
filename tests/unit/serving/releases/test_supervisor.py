"""A model server that was killed is started again, and what it left behind is ended."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.serving.releases import supervisor, vllm
from orchestra.serving.releases.lock import alone
from orchestra.serving.releases.state import Serving
from orchestra.serving.releases.supervisor import Supervisor
from orchestra.system.processes import alive, free_port, remembered, services, start_service, stop_services
from tests.support.serving_world import params
from tests.support.waiting import soon

SERVER = """
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("engine.pid", "w").write(str(child.pid))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def start(root: Path, name: str, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    start_service(root, name, [sys.executable, "-c", SERVER, str(port)], port=port, url=url)
    assert soon(lambda: vllm.healthy(url), 60)


def test_after_a_kill_the_engine_is_ended_and_the_server_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    start(tmp_path, "vllm-blue", port)
    engine = int((tmp_path / "engine.pid").read_text())
    (service,) = services(tmp_path)
    serving = Serving(
        version="1", checkpoint="models/none", checkpoint_hash="h", engine="vllm", fingerprint="f", code="c",
        vllm_url=service.url, vllm_service="vllm-blue", params=params().model_dump(mode="json", by_alias=True),
    )  # fmt: skip

    def launch(root: Path, name: str, folder: Path, *, max_len: int, port: int, settings: object) -> object:
        start(root, name, port)
        return remembered(root, name)

    monkeypatch.setattr(vllm, "launch", launch)
    monkeypatch.setattr(supervisor, "verify_manifest", lambda _: None)
    os.kill(service.pid, signal.SIGKILL)
    os.waitpid(service.pid, 0)
    assert alive(engine) and not service.running and service.members == [engine]
    again: list[int] = []

    async def go() -> None:
        made = Supervisor(tmp_path, lambda: again.append(1))
        with alone(tmp_path):  # a release runs: it has its own servers
            made.seen(serving, "vLLM does not answer")
            await asyncio.sleep(0.3)
        assert alive(engine) and not again
        made._next_try = 0.0
        began = time.monotonic()
        while not again and time.monotonic() - began < 60:
            made.seen(serving, "vLLM does not answer")
            await asyncio.sleep(0.05)

    async def of_another() -> None:
        made = Supervisor(tmp_path, lambda: again.append(2))
        made._silent_since = time.monotonic() - 2 * supervisor.HUNG_S
        before = serving.model_copy(update={"vllm_url": f"http://127.0.0.1:{free_port()}"})
        made.seen(before, "vLLM does not answer")
        assert made._task is None
        with pytest.raises(ServiceError, match="another release has a server of this name"):
            supervisor.restart(tmp_path, before)

    try:
        asyncio.run(go())
        assert again == [1] and not alive(engine)
        asyncio.run(of_another())
        (back,) = services(tmp_path)
        assert back.pid != service.pid and back.url == service.url and vllm.healthy(back.url)
        # `stop` finds both.
        stop_services(tmp_path)
        assert not alive(int((tmp_path / "engine.pid").read_text())) and services(tmp_path) == []
    finally:
        stop_services(tmp_path)
