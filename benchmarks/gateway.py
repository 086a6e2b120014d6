"""How much the gateway adds to a turn, at 1, 8 and 32 conversations: `python -m benchmarks.gateway`.

It starts a vLLM of its own over `models/grpo` and sends held-out questions through the gateway's whole HTTP side, in
this process. A turn's overhead is all that is neither vLLM nor a tool: the seconds of a request, less those of its
tools, less those that vLLM itself counts from a request's arrival to its end. The HTTP between both is overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import httpx

from orchestra.config.schema import load_params
from orchestra.files.checkpoint import hash_dir
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.app import create_app
from orchestra.serving.backend import Backend
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases import vllm
from orchestra.serving.releases.state import Serving
from orchestra.system.processes import stop_services
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.types import Example, ToolCall

NAME = "vllm-benchmark"
CONVERSATIONS = (1, 8, 32)
BAR_MS, BAR_SHARE = 5.0, 0.05


@dataclass
class Clock:
    """Seconds within the policy and within tools, by the request that runs."""

    policy_s: dict[str, float] = field(default_factory=dict)
    tools_s: dict[str, float] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def add(self, where: dict[str, float], request: str, began: float) -> None:
        where[request] = where.get(request, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class Overhead:
    """Of one number of conversations."""

    conversations: int
    requests: int
    turns: int
    p50_ms: float
    """A turn."""
    share: float
    """Of the requests' time."""
    per_second: float


def served_seconds(metrics: str) -> tuple[float, float]:
    """What vLLM counts: seconds of all requests, and their number."""

    def total(part: str) -> float:
        pattern = rf"^vllm:e2e_request_latency_seconds_{part}\{{.*\}} (\S+)"
        return sum(float(value) for value in re.findall(pattern, metrics, re.MULTILINE))

    return total("sum"), total("count")


async def measure(backend: Backend, examples: Sequence[Example], conversations: int, folder: Path) -> Overhead:
    """Ask every example once, so many at a time."""
    gateway, clock = Gateway(folder, backend=backend), Clock()
    generate, call = VllmPolicy.generate, ToolSession.call

    async def timed_generate(
        self: VllmPolicy, asked: Sequence[Conversation], limits: Sequence[int]
    ) -> list[Generation]:
        began, request = time.perf_counter(), asked[0].example.id
        try:
            return await generate(self, asked, limits)
        finally:
            clock.add(clock.policy_s, request, began)
            clock.turns[request] = clock.turns.get(request, 0) + 1

    async def timed_call(self: ToolSession, asked: ToolCall) -> ToolOutcome:
        began = time.perf_counter()
        try:
            return await call(self, asked)
        finally:
            clock.add(clock.tools_s, self._example.id, began)

    walls: dict[str, float] = {}
    waiting = list(examples)
    transport = httpx.ASGITransport(app=create_app(gateway, load=False))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=600) as http,
        httpx.AsyncClient(base_url=str(backend.serving.vllm_url), trust_env=False) as server,
    ):

        async def user() -> None:
            while waiting:
                one = waiting.pop()
                body: dict[str, Any] = {"messages": [{"role": "user", "content": one.instruction}]}
                body |= {"domain": one.domain} if one.domain else {}
                began = time.perf_counter()
                reply = await http.post("/v1/chat/completions", json=body)
                took = time.perf_counter() - began
                if reply.status_code == 200:
                    walls[reply.json()["orchestra"]["trace_id"]] = took

        with (
            mock.patch.object(VllmPolicy, "generate", timed_generate),
            mock.patch.object(ToolSession, "call", timed_call),
        ):
            before = served_seconds((await server.get("/metrics")).text)
            began = time.perf_counter()
            await asyncio.gather(*(user() for _ in range(conversations)))
            whole_s = time.perf_counter() - began
            after = served_seconds((await server.get("/metrics")).text)
    gateway.telemetry.close()
    turns = sum(clock.turns[request] for request in walls)
    # What vLLM does not count of a turn: HTTP on both sides, and the reading and writing of JSON.
    http_s = (sum(clock.policy_s.values()) - (after[0] - before[0])) / max(1.0, after[1] - before[1])
    own = [
        (wall - clock.policy_s[request] - clock.tools_s.get(request, 0.0)) / clock.turns[request] + http_s
        for request, wall in walls.items()
    ]
    overhead_s = sum(each * clock.turns[request] for each, request in zip(own, walls, strict=True))
    share = overhead_s / sum(walls.values())
    return Overhead(conversations, len(walls), turns, 1000 * median(own), share, len(walls) / whole_s)


def table(rows: Sequence[Overhead]) -> str:
    """For people, with the bars."""
    heads = ("conversations", "requests", "turns", "ms a turn, p50", "share of the time", "requests a second", "bars")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        met = "met" if row.p50_ms <= BAR_MS and row.share <= BAR_SHARE else "missed"
        figures = (f"{row.p50_ms:.1f}", f"{row.share:.1%}", f"{row.per_second:.1f}", met)
        lines.append(f"| {' | '.join([str(row.conversations), str(row.requests), str(row.turns), *figures])} |")
    return "\n".join([*lines, f"bars: {BAR_MS:g} ms and {BAR_SHARE:.0%}, at each number"])


def open_backend(root: Path, checkpoint: Path, url: str) -> Backend:
    return Backend.load(root, open_serving(root, checkpoint, url, NAME))


def open_serving(root: Path, checkpoint: Path, url: str, service: str) -> Serving:
    """A release of the checkpoint at a server that is up."""
    params = load_params(root / "params.yaml")
    return Serving(
        version="benchmark",
        checkpoint=str(checkpoint.relative_to(root)),
        checkpoint_hash=hash_dir(checkpoint),
        engine="vllm",
        vllm_url=url,
        vllm_service=service,
        params=json.loads(params.model_dump_json(by_alias=True)),
        fingerprint="benchmark",
        code="benchmark",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=main.__doc__)
    parser.add_argument("--questions", type=int, default=120, help="held-out questions at each number")
    parser.add_argument("--checkpoint", type=Path, default=Path("models/grpo"))
    args = parser.parse_args()
    root = Path.cwd()
    examples = read_jsonl(root / "data/validated/heldout.jsonl", Example, fix="make pipeline")[: args.questions]
    max_len = load_params(root / "params.yaml").rollout.max_tokens
    service = vllm.launch(root, NAME, root / args.checkpoint, max_len=max_len)
    try:
        vllm.wait_healthy(root, service, 600, print)
        rows = []
        for conversations in CONVERSATIONS:
            # A loop each: the connections of a policy belong to one.
            backend = open_backend(root, root / args.checkpoint, service.url)
            with tempfile.TemporaryDirectory() as folder:
                rows.append(asyncio.run(measure(backend, examples, conversations, Path(folder))))
            print(rows[-1], flush=True)
        print(table(rows))
    finally:
        stop_services(root, NAME)


if __name__ == "__main__":
    main()
