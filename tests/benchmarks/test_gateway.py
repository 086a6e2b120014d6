"""What the gateway's benchmark counts as whose time, and that a benchmark told to end leaves nothing behind."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from benchmarks.gateway import Machine, RequestTime, bars, overhead, table
from benchmarks.gateway_clock import HEADER, RequestClock, told, watched
from benchmarks.gateway_cpu import completion
from benchmarks.vllm_clock import ClockHeaders
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.system.processes import alive, free_port
from tests.support.serving_world import backend
from tests.support.waiting import soon
from tests.support.worlds import ROOT, codec

TURN_S = 0.2


@contextmanager
def model_server(*, blocking: bool) -> Iterator[str]:
    """A server that takes `TURN_S` for a turn; `blocking`: its front end takes no other request meanwhile."""
    ids = codec().turn(f"<think>\nsum\n</think>\n\n{format_answer('888')}")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        if blocking:
            time.sleep(TURN_S)
        else:
            await asyncio.sleep(TURN_S)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(completion(body, ids, "stop")).encode()})

    port = free_port()
    config = uvicorn.Config(ClockHeaders(app), port=port, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert soon(lambda: server.started, 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def asked(folder: Path, users: int, *, blocking: bool) -> list[RequestTime]:
    """So many requests at once through the whole gateway."""

    async def go(url: str) -> list[RequestTime]:
        policy = VllmPolicy(url, "orchestra", name="p", persistent=True, logprobs=False)
        gateway = Gateway(folder, backend=backend(folder, policy=policy))
        transport = httpx.ASGITransport(app=told(create_app(gateway, load=False)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:

            async def one() -> RequestTime:
                began, body = time.monotonic(), {"messages": [{"role": "user", "content": "what is 37*24?"}]}
                reply = await http.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
                return RequestTime(time.monotonic() - began, RequestClock(**json.loads(reply.headers[HEADER])))

            await one()
            found = await asyncio.gather(*(one() for _ in range(users)))
        await policy.aclose()
        gateway.telemetry.close()
        return found

    with model_server(blocking=blocking) as url, watched():
        return asyncio.run(go(url))


def test_the_servers_turn_is_its_own_and_the_rest_the_gateways(tmp_path: Path) -> None:
    (one,) = asked(tmp_path, 1, blocking=False)
    assert one.clock.turns == 1 and TURN_S <= one.clock.served_s <= one.clock.policy_s <= one.wall_s
    assert one.own_s > 0 and one.own_s + one.clock.served_s <= one.wall_s + 1e-6


def test_a_request_that_the_servers_front_end_is_too_busy_to_take_waits_for_the_server(tmp_path: Path) -> None:
    found = asked(tmp_path, 3, blocking=True)
    waits = sorted(one.clock.queued_s + one.clock.served_s for one in found)
    # One after the other: the last waits for two turns, and has its own.
    assert waits[0] >= TURN_S and waits[-1] >= 2.5 * TURN_S
    assert all(one.own_s < one.wall_s - TURN_S for one in found)


def requests(own_s: float, count: int = 4) -> list[RequestTime]:
    """Of two turns each, which take vLLM 0.05 s and its front end 0.01 s."""
    clock = RequestClock(turns=2, policy_s=0.124 + own_s / 2, queued_s=0.02, served_s=0.1, tools_s=0.01)
    return [RequestTime(0.13 + own_s, clock) for _ in range(count)]


@pytest.mark.parametrize(("own_s", "met"), [(0.004, True), (0.012, False)])
def test_the_bars_hold_for_what_is_neither_the_servers_nor_a_tools(own_s: float, met: bool) -> None:
    before, after = Machine(1.0, 0.5, 3.0, (10.0, 100)), Machine(1.016, 0.508, 3.4, (10.4, 108))
    row = overhead(8, requests(own_s), 0.5, before, after)
    assert row.p50_ms == pytest.approx(500 * own_s) and row.met is met
    assert row.share == pytest.approx(own_s / (0.13 + own_s))
    assert (row.turns, row.per_second) == (8, 8.0)
    assert [row.cpu_ms, row.waited_ms, row.vllm_cpu_ms] == pytest.approx([2.0, 1.0, 50.0])
    # The counter knows 0.05 s a turn: the front end's 0.01 s are overhead to it.
    assert row.counter_p50_ms == pytest.approx(row.p50_ms + 10)
    assert ("missed" in table([row])) is not met
    assert bars([row]) == {"8 conversations": met}


STOPPED = """
import subprocess, sys, time
from benchmarks.ending import cleaned_up
with cleaned_up():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        print(child.pid, flush=True)
        time.sleep(60)
    finally:
        time.sleep(0.5)
        print("closed", flush=True)
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_told_to_end_closes_what_it_has_and_ends_its_children(sign: signal.Signals) -> None:
    command = [sys.executable, "-c", STOPPED]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(sign)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)  # Closing is not broken off.
    assert process.stdout.read() == "closed\n" and process.wait(30) == 128 + sign
    process.stdout.close()
    assert not alive(child)
