"""How much the gateway adds to a turn, at 1, 8 and 32 conversations: `python -m benchmarks.gateway`.

It starts a vLLM of its own over `models/grpo` and a gateway in a process of its own, and asks it held-out questions. A
turn's overhead is all that is neither vLLM nor a tool, by the clock of the one who asks: HTTP on both sides of the
gateway, and what its process waits for a core that vLLM holds. vLLM's part of a turn begins when its request is written
and ends when vLLM's front end has the answer.

Beside it stand what that overhead is made of (the gateway's own processor time, and its wait for a core), and the
overhead by vLLM's own counter. The counter leaves vLLM's HTTP side out, which that figure so counts as overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from benchmarks.clock import process_cpu_s, waited_s
from benchmarks.command import judge, run_benchmark, usage
from benchmarks.ending import answering, cleaned_up
from benchmarks.gateway_clock import HEADER, RequestClock, serve
from orchestra.config.schema import load_params
from orchestra.files.checkpoint import hash_dir
from orchestra.files.jsonl import read_jsonl
from orchestra.serving.releases import vllm
from orchestra.serving.releases.state import Serving
from orchestra.system.processes import (
    LOCALHOST,
    Service,
    descendants,
    free_port,
    stop_services,
)
from orchestra.types import Example

NAME = "vllm-benchmark"
CONVERSATIONS = (1, 8, 32)
BAR_MS, BAR_SHARE = 5.0, 0.05


@dataclass(frozen=True)
class RequestTime:
    """One request, by the clock of the one who asks."""

    wall_s: float
    clock: RequestClock

    @property
    def own_s(self) -> float:
        """Neither vLLM nor a tool."""
        return self.wall_s - self.clock.tools_s - self.clock.queued_s - self.clock.served_s


@dataclass(frozen=True)
class Overhead:
    """Of one number of conversations; milliseconds are a turn's."""

    conversations: int
    requests: int
    turns: int
    p50_ms: float
    share: float
    """Of the requests' time."""
    cpu_ms: float
    """Processor time of the gateway's process."""
    waited_ms: float
    """Time for which its thread could have run and no core was free."""
    vllm_cpu_ms: float
    """Processor time of vLLM's processes."""
    counter_p50_ms: float
    """`p50_ms` where vLLM's part is what its own counter says."""
    counter_share: float
    per_second: float

    @property
    def met(self) -> bool:
        return self.p50_ms <= BAR_MS and self.share <= BAR_SHARE

    @property
    def counter_met(self) -> bool:
        """The same by vLLM's counter, for which the bars were first set."""
        return self.counter_p50_ms <= BAR_MS and self.counter_share <= BAR_SHARE


def counted_seconds(metrics: str) -> tuple[float, float]:
    """What vLLM counts: seconds of all requests, and their number."""

    def total(part: str) -> float:
        pattern = rf"^vllm:e2e_request_latency_seconds_{part}\{{.*\}} (\S+)"
        return sum(float(value) for value in re.findall(pattern, metrics, re.MULTILINE))

    return total("sum"), total("count")


@dataclass(frozen=True)
class Machine:
    """What the processes had used at one moment."""

    gateway_s: float
    waited_s: float
    vllm_s: float
    counted: tuple[float, float]

    @classmethod
    async def now(cls, http: aiohttp.ClientSession, vllm_url: str, gateway: int, servers: Sequence[int]) -> Machine:
        headers = {"Authorization": f"Bearer {vllm.api_key(Path.cwd())}"}
        async with http.get(f"{vllm_url}/metrics", headers=headers) as reply:
            reply.raise_for_status()
            counted = counted_seconds(await reply.text())
        return cls(process_cpu_s(gateway), waited_s(gateway), sum(map(process_cpu_s, servers)), counted)


async def ask_all(
    http: aiohttp.ClientSession, url: str, examples: Sequence[Example], conversations: int
) -> tuple[list[RequestTime], float]:
    """Ask every example once, so many at a time; the answered requests, and the seconds of all."""
    waiting, found = list(examples), list[RequestTime]()

    async def user() -> None:
        while waiting:
            one = waiting.pop()
            body: dict[str, Any] = {"messages": [{"role": "user", "content": one.instruction}]}
            body |= {"domain": one.domain} if one.domain else {}
            began = time.monotonic()
            async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
                await reply.read()
            if reply.status == 200:
                clock = RequestClock(**json.loads(reply.headers[HEADER]))
                found.append(RequestTime(time.monotonic() - began, clock))

    began = time.monotonic()
    await asyncio.gather(*(user() for _ in range(conversations)))
    return found, time.monotonic() - began


async def measure(
    url: str, gateway: int, service: Service, examples: Sequence[Example], conversations: int
) -> Overhead:
    """The overhead at so many conversations."""
    servers = [service.pid, *descendants(service.pid)]
    connector = aiohttp.TCPConnector(limit=conversations)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        before = await Machine.now(http, service.url, gateway, servers)
        requests, whole_s = await ask_all(http, url, examples, conversations)
        after = await Machine.now(http, service.url, gateway, servers)
    return overhead(conversations, requests, whole_s, before, after)


def overhead(
    conversations: int, requests: Sequence[RequestTime], whole_s: float, before: Machine, after: Machine
) -> Overhead:
    """What the requests and the processes' clocks come to."""
    turns, walls = sum(one.clock.turns for one in requests), sum(one.wall_s for one in requests)
    counted, count = after.counted[0] - before.counted[0], after.counted[1] - before.counted[1]
    # By the counter only the mean of all turns is known.
    between_s = (sum(one.clock.policy_s for one in requests) - counted) / max(1.0, count)
    by_counter = [
        (one.wall_s - one.clock.policy_s - one.clock.tools_s) / one.clock.turns + between_s for one in requests
    ]
    return Overhead(
        conversations,
        len(requests),
        turns,
        p50_ms=1000 * median(one.own_s / one.clock.turns for one in requests),
        share=sum(one.own_s for one in requests) / walls,
        cpu_ms=1000 * (after.gateway_s - before.gateway_s) / turns,
        waited_ms=1000 * (after.waited_s - before.waited_s) / turns,
        vllm_cpu_ms=1000 * (after.vllm_s - before.vllm_s) / turns,
        counter_p50_ms=1000 * median(by_counter),
        counter_share=sum(ms * one.clock.turns for ms, one in zip(by_counter, requests, strict=True)) / walls,
        per_second=len(requests) / whole_s,
    )


def bars(rows: Sequence[Overhead]) -> dict[str, bool]:
    """By number of conversations, whether both are met."""
    return {f"{row.conversations} conversations": row.met for row in rows}


def table(rows: Sequence[Overhead]) -> str:
    """For people, with the bars."""
    heads = (
        *("conversations", "requests", "turns", "ms a turn, p50", "share of the time", "bars"),
        *("its CPU, ms a turn", "its wait for a core, ms a turn", "vLLM's CPU, ms a turn"),
        *("by vLLM's counter: ms a turn, p50", "share", "requests a second"),
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        figures = (
            *(str(row.conversations), str(row.requests), str(row.turns)),
            *(f"{row.p50_ms:.1f}", f"{row.share:.1%}", "met" if row.met else "missed"),
            *(f"{row.cpu_ms:.2f}", f"{row.waited_ms:.2f}", f"{row.vllm_cpu_ms:.1f}"),
            *(f"{row.counter_p50_ms:.1f}", f"{row.counter_share:.1%}", f"{row.per_second:.1f}"),
        )
        lines.append(f"| {' | '.join(figures)} |")
    by_counter = f"by vLLM's counter they hold at {sum(row.counter_met for row in rows)} of {len(rows)} numbers"
    return "\n".join([*lines, f"bars: {BAR_MS:g} ms and {BAR_SHARE:.0%}, at each number; {by_counter}"])


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


def launch(root: Path, checkpoint: Path) -> Service:
    """A vLLM server as a release starts it, whose answers tell when it had them (see `benchmarks.vllm_clock`)."""
    params = load_params(root / "params.yaml")
    return vllm.launch(
        root,
        NAME,
        checkpoint,
        max_len=params.rollout.max_tokens,
        settings=params.deploy.vllm,
        extra=("--middleware", "benchmarks.vllm_clock.ClockHeaders"),
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )


@contextlib.contextmanager
def gateway_process(root: Path, serving: Serving) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway on a port of its own, once it answers; ended with the block."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "serving.json"
        file.write_text(serving.model_dump_json(), encoding="utf-8")
        line = [sys.executable, "-m", "benchmarks.gateway", "--serve", str(file), "--port", str(port)]
        with answering(line, port, "benchmarks.gateway", cwd=root) as process:
            yield f"http://{LOCALHOST}:{port}", process


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--questions", type=int, default=120, help="held-out questions at each number")
    parser.add_argument("--checkpoint", type=Path, default=Path("models/grpo"))
    parser.add_argument("--serve", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    root = Path.cwd()
    if args.serve is not None:
        serve(root, args.serve.parent, Serving.model_validate_json(args.serve.read_text(encoding="utf-8")), args.port)
        return 0
    examples = read_jsonl(root / "data/validated/heldout.jsonl", Example, fix="make pipeline")[: args.questions]
    with cleaned_up():
        service = launch(root, root / args.checkpoint)
        try:
            vllm.wait_healthy(root, service, 600, print)
            serving = open_serving(root, root / args.checkpoint, service.url, NAME)
            with gateway_process(root, serving) as (url, process):
                # What is loaded at first use: no turn's.
                asyncio.run(measure(url, process.pid, service, examples[:16], 4))
                rows = []
                for conversations in CONVERSATIONS:
                    rows.append(asyncio.run(measure(url, process.pid, service, examples, conversations)))
                    print(rows[-1], flush=True)
            print(table(rows))
            return judge(bars(rows))
        finally:
            stop_services(root, NAME)


if __name__ == "__main__":
    run_benchmark(main)
