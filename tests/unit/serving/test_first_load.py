"""A gateway that starts before what it needs: it serves as soon as that is there."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra.errors import DataError
from orchestra.serving import gateway as module
from orchestra.serving.backend import Backend
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases import supervisor, vllm
from orchestra.serving.releases.state import Serving, write
from orchestra.system.processes import free_port, remembered, start_service, stop_services
from tests.support.serving_world import backend, params, workspace
from tests.support.worlds import codec
from tests.unit.serving.releases.test_supervisor import start
from tests.unit.serving.test_gateway import client


def served(root: Path, url: str, service: str | None = None) -> Serving:
    """A release through vLLM whose checkpoint is a tokenizer: the gateway reads no more of it."""
    codec().tokenizer.save_pretrained(str(workspace(root) / "models/none"))
    made = Serving(
        version="7", checkpoint="models/none", checkpoint_hash="h", engine="vllm", fingerprint="f", code="c",
        vllm_url=url, vllm_service=service, params=params().model_dump(mode="json", by_alias=True),
    )  # fmt: skip
    write(root, made)
    return made


async def watched(gateway: Gateway, work: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]) -> None:
    """Do it beside a gateway that was started and looks after itself; it is given what asks for the health."""
    async with client(gateway) as http:

        async def health() -> Any:
            return (await http.get("/health")).json()

        await gateway.start()
        watching = asyncio.ensure_future(gateway.watch())
        try:
            await work(health)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def well(health: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while (found := await health()).get("status") != "ok":
            await asyncio.sleep(0.05)
    return found


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.1)


@pytest.mark.slow
def test_a_gateway_that_starts_before_its_model_server_serves_when_that_answers(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    served(tmp_path, "http://127.0.0.1:1")

    async def work(health: Callable[[], Awaitable[Any]]) -> None:
        error = (await health())["error"]
        assert error["code"] == "failed" and f"{url}: vLLM does not answer" in error["message"]
        await asyncio.to_thread(start, tmp_path, "others", port)
        assert (await well(health))["version"] == "7"

    try:
        asyncio.run(watched(Gateway(tmp_path, vllm_urls=[url]), work))
    finally:
        stop_services(tmp_path)


def test_a_release_is_loaded_with_the_rows_of_its_domains_tools(tmp_path: Path) -> None:
    port = free_port()
    made = served(tmp_path, f"http://127.0.0.1:{port}")
    try:
        start(tmp_path, "others", port)
        loaded = Backend.load(tmp_path, made)
    finally:
        stop_services(tmp_path)
    assert len(loaded._frames._rows) == len(loaded.toolkit.domain("mock").tools)


def test_what_is_released_after_the_start_is_served(tmp_path: Path) -> None:
    port = free_port()

    async def work(health: Callable[[], Awaitable[Any]]) -> None:
        assert "nothing was released" in (await health())["error"]["message"]
        served(tmp_path, f"http://127.0.0.1:{port}")
        assert (await well(health))["version"] == "7"

    try:
        start(tmp_path, "others", port)
        asyncio.run(watched(Gateway(tmp_path), work))
    finally:
        stop_services(tmp_path)


def test_a_model_server_of_the_workspace_is_started_before_the_first_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    served(tmp_path, url, "vllm-blue")
    # As after a reboot: it is remembered, and gone.
    start_service(tmp_path, "vllm-blue", [sys.executable, "-c", ""], port=port, url=url).end()

    def launch(root: Path, name: str, folder: Path, *, max_len: int, port: int, settings: object) -> object:
        start(root, name, port)
        return remembered(root, name)

    monkeypatch.setattr(vllm, "launch", launch)
    monkeypatch.setattr(supervisor, "verify_manifest", lambda _: None)
    monkeypatch.setattr(module, "PAUSE_S", 600.0)  # Once it is up, no pause is waited for.

    async def work(health: Callable[[], Awaitable[Any]]) -> None:
        assert (await well(health))["version"] == "7"

    try:
        asyncio.run(watched(Gateway(tmp_path), work))
    finally:
        stop_services(tmp_path)


def test_a_damaged_checkpoint_is_told_and_its_server_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.5)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    served(tmp_path, url, "vllm-blue")
    start_service(tmp_path, "vllm-blue", [sys.executable, "-c", ""], port=port, url=url).end()

    async def work(health: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(60):
            while "manifest.json" not in (message := (await health())["error"]["message"]):
                await asyncio.sleep(0.05)
        assert "vllm-blue could not be started again" in message and not vllm.healthy(url)

    asyncio.run(watched(Gateway(tmp_path), work))


def test_what_cannot_be_loaded_is_tried_seldom_and_its_own_message_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, backend(tmp_path).serving)
    tries, now = [], [0.0]

    def load(cls: type[Backend], root: Path, serving: Serving) -> Backend:
        tries.append(now[0])
        raise DataError("the weights are damaged", where="models/none")

    monkeypatch.setattr(Backend, "load", classmethod(load))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def go() -> None:
        gateway = Gateway(tmp_path)
        for second in range(600):
            now[0] = float(second)
            await gateway._start_again()
            assert gateway.failure == "models/none: the weights are damaged"

    asyncio.run(go())
    assert tries[:5] == [0, 5, 15, 35, 65] and len(tries) < 25
