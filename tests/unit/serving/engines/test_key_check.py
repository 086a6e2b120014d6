"""Model servers that are started here answer only who has their key: to complete a text, and to replace weights."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from orchestra.config.deploy import VllmServer
from orchestra.config.engine import PlayServer
from orchestra.serving.engines.inside.key_check import KeyCheck
from orchestra.serving.engines.server import own_settings
from orchestra.serving.releases import vllm

PATHS = ["/collective_rpc", "/sleep", "/server_info", "/v1/models", "/health/../sleep", "//health", "/invocations", "/"]
WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": "Basic right"},
    {"X-Authorization": "Bearer right"},
]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setenv("VLLM_API_KEY", "right")
    made = FastAPI()
    made.add_middleware(KeyCheck)

    @made.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()

    @made.api_route("/{path:path}", methods=["GET", "POST", "OPTIONS"])
    async def anything(path: str) -> str:
        return path

    return made


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_every_path_but_health_asks_for_the_key(app: FastAPI, method: str) -> None:
    async def statuses(path: str, headers: dict[str, str] | list[tuple[str, str]]) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://vllm") as client:
            return (await client.request(method, path, headers=headers)).status_code

    for path in PATHS:
        for headers in WRONG:
            assert asyncio.run(statuses(path, headers)) == 401, (path, headers)
        assert asyncio.run(statuses(path, {"Authorization": "Bearer right"})) == 200, path
    both = [("Authorization", "Bearer right"), ("Authorization", "Bearer wrong")]
    assert asyncio.run(statuses("/sleep", both)) == 401, "another reader of the request may take the second"
    assert asyncio.run(statuses("/health", {})) == 200


def test_a_socket_asks_for_the_key_too(app: FastAPI) -> None:
    client = TestClient(app)
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass
    with client.websocket_connect("/v1/realtime", headers={"Authorization": "Bearer right"}):
        pass


def test_vllm_finds_it_without_anything_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "theirs.py").touch()
    rollout: dict[str, Any] = own_settings(tmp_path, PlayServer(), adapters=False)
    release: dict[str, Any] = vllm.environment(tmp_path, VllmServer())
    more = vllm.environment(tmp_path, VllmServer(), {"PYTHONPATH": str(tmp_path)})
    assert rollout["VLLM_SERVER_DEV_MODE"] == "1" and "VLLM_SERVER_DEV_MODE" not in release
    line = vllm.command(tmp_path / "python", 8123, 64, VllmServer())
    module, _, name = line[line.index("--middleware") + 1].rpartition(".")
    code = f"import sys, theirs; from {module} import {name}; print('orchestra' in sys.modules)"
    for env in (rollout, release, more):
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True
        )
        assert done.stdout == "False\n" and env["VLLM_API_KEY"]
