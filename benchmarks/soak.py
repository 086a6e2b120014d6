"""Minutes of load on a gateway whose tools fail now and then, while releases come and go: `python -m benchmarks.soak`.

It starts a vLLM of its own over `models/grpo` and serves on a real port of this process. A release is another version
over the same weights; the next one brings the first back. What must hold: every failure is typed, none comes of a
release, and at the end no connection, task or process is left over and memory has not grown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import httpx
import uvicorn

from benchmarks.clock import resident
from benchmarks.command import run_benchmark, usage
from benchmarks.ending import cleaned_up
from benchmarks.gateway import open_serving
from benchmarks.load import ask
from orchestra.config.schema import load_params
from orchestra.errors import ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases import vllm
from orchestra.serving.releases.state import Serving, write
from orchestra.serving.wire.connection import BoundedProtocol
from orchestra.system.processes import descendants, server_socket, stop_services
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.types import Example, ToolCall

NAME = "vllm-soak"
PLANTED = "tool_failure"
"""Code of the failures that the planted faults cause."""
MOST_GROWTH = 0.1
"""Share by which memory may grow after the first fifth of the time."""
SETTLE_S = 6.0
"""Seconds after which idle connections have been given up."""


@dataclass
class SoakReport:
    """What the requests came to, and what was left over."""

    codes: Counter[str] = field(default_factory=Counter)
    """`200`, or the failures' codes."""
    untyped: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    releases: int = 0
    early_mb: float = 0.0
    """Of memory, after a fifth of the time."""
    late_mb: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    """Sockets, tasks and processes that are there more than before."""

    def faults(self, *, failing: bool) -> list[str]:
        """What must not be; `failing`: tools were made to fail."""
        found = [f"untyped: {one}" for one in self.untyped[:3]]
        other = {code: n for code, n in self.codes.items() if code not in ("200", *((PLANTED,) if failing else ()))}
        found += [f"failed without a planted fault: {other}"] if other else []
        found += [f"{count} {what} left over" for what, count in self.left.items() if count > 0]
        if self.late_mb > self.early_mb * (1 + MOST_GROWTH):
            found.append(f"memory grew from {self.early_mb:.0f} to {self.late_mb:.0f} MB")
        return found

    def lines(self) -> list[str]:
        """For people."""
        taken = sorted(self.seconds) or [0.0]
        return [
            f"requests: {dict(self.codes)}; releases: {self.releases}",
            f"seconds: p50 {taken[len(taken) // 2]:.2f}, p95 {taken[int(0.95 * (len(taken) - 1))]:.2f}",
            f"memory: {self.early_mb:.0f} MB early, {self.late_mb:.0f} MB at the end; left over: {self.left}",
        ]


def failing_tools(share: float) -> contextlib.AbstractContextManager[object]:
    """Tools of which so many calls fail for a reason that is not the model's."""
    rng, call = random.Random(0), ToolSession.call

    async def sometimes(self: ToolSession, asked: ToolCall) -> ToolOutcome:
        if rng.random() < share:
            raise ToolError("planted", where="benchmarks.soak")
        return await call(self, asked)

    return mock.patch.object(ToolSession, "call", sometimes)


async def soak(
    gateway: Gateway,
    examples: Sequence[Example],
    release: Callable[[int], None],
    minutes: float,
    users: int,
    count: int,
) -> SoakReport:
    """Ask for so many minutes, with so many users and releases; `release` writes what the gateway is to load next."""
    report, before = SoakReport(), _held()
    server = uvicorn.Server(uvicorn.Config(create_app(gateway, load=False), http=BoundedProtocol, log_config=None))
    sock = server_socket()
    sock.bind(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.02)
    began = time.monotonic()
    until = began + 60 * minutes

    async def user(http: httpx.AsyncClient, number: int) -> None:
        place = number
        while time.monotonic() < until:
            await _ask(http, examples[place % len(examples)], report)
            place += users

    async def releases() -> None:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + (number + 1) * 60 * minutes / (count + 1) - time.monotonic()))
            release(number + 1)
            await gateway.load()
            report.releases += 1

    async def watch() -> None:
        for fifth in range(1, 5):
            await asyncio.sleep(max(0.0, began + 12 * minutes * fifth - time.monotonic()))
            report.early_mb = report.early_mb or resident() / 1e6
            told = f"{sum(report.codes.values())} requests, {len(report.untyped)} of them untyped failures"
            print(f"after {0.2 * fifth * minutes:.1f} of {minutes:g} minutes: {told}", file=sys.stderr, flush=True)

    limits = httpx.Limits(max_connections=users)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits, trust_env=False) as http:
        await asyncio.gather(releases(), watch(), *(user(http, number) for number in range(users)))
        report.late_mb = resident() / 1e6
    server.should_exit = True
    await serving
    await asyncio.sleep(SETTLE_S)
    await gateway.look()
    assert gateway.backend is not None
    await gateway.backend.aclose()
    gateway.telemetry.close()
    after = _held()
    report.left = {what: after[what] - before[what] for what in before}
    return report


async def _ask(http: httpx.AsyncClient, example: Example, report: SoakReport) -> None:
    body: dict[str, object] = {"messages": [{"role": "user", "content": example.instruction}]}
    body |= {"domain": example.domain} if example.domain else {}
    began = time.monotonic()
    reply = await ask(http, body)
    report.codes[reply.code] += 1
    if reply.untyped:
        report.untyped.append(f"{reply.code}: {reply.detail}")
    report.seconds.append(time.monotonic() - began)


def _held() -> dict[str, int]:
    """Sockets, tasks and processes of this process."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(entry))
    sockets = sum(name.startswith("socket:") for name in names)
    return {"sockets": sockets, "tasks": len(asyncio.all_tasks()), "processes": len(descendants(os.getpid()))}


def _workspace(root: Path, folder: Path) -> None:
    """The workspace's files under another root, so that nothing of the benchmark stays in it."""
    for name in ("data", "models", ".venv-vllm", "params.yaml"):
        (folder / name).symlink_to(root / name)


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--failing", type=float, default=0.1, help="share of the tool calls that fail")
    parser.add_argument("--releases", type=int, default=20, help="releases and rollbacks meanwhile")
    parser.add_argument("--checkpoint", type=Path, default=Path("models/grpo"))
    args = parser.parse_args(given)
    workspace = Path.cwd()
    examples = read_jsonl(workspace / "data/validated/heldout.jsonl", Example, fix="make pipeline")
    max_len = load_params(workspace / "params.yaml").rollout.max_tokens
    with cleaned_up(), tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _workspace(workspace, root)
        service = vllm.launch(root, NAME, root / args.checkpoint, max_len=max_len)
        try:
            vllm.wait_healthy(root, service, 600, print)
            serving = open_serving(root, root / args.checkpoint, service.url, NAME)

            def release(number: int) -> None:
                write(root, version(serving, number))

            async def run() -> SoakReport:
                release(0)
                gateway = Gateway(root)
                await gateway.load()
                return await soak(gateway, examples, release, args.minutes, args.conversations, args.releases)

            with failing_tools(args.failing):
                report = asyncio.run(run())
        finally:
            stop_services(root, NAME)
    faults = report.faults(failing=args.failing > 0)
    print(
        "\n".join([*report.lines(), *(f"FAULT: {fault}" for fault in faults), "" if faults else "nothing to object to"])
    )
    return 1 if faults else 0


def version(serving: Serving, number: int) -> Serving:
    """One of two releases that differ by their names alone."""
    name = f"soak-{number % 2}"
    return serving.model_copy(update={"version": name, "fingerprint": name})


if __name__ == "__main__":
    run_benchmark(main)
