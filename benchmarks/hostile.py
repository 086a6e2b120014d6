"""What hostile callers do to honest ones: `python -m benchmarks.hostile`, 32 callers of which every fourth is hostile.

A gateway of its own, in a process of its own, over a policy whose turns take a fixed time: what is measured is the
gateway. Honest callers ask sums, one after the other, first alone and then beside the hostile ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import httpx

from benchmarks.clock import process_cpu_s, resident
from benchmarks.command import judge, run_benchmark, usage
from benchmarks.ending import answering
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire.connection import BoundedProtocol
from orchestra.system.processes import free_port
from orchestra.types import ToolCall
from tests.support.serving_world import backend, calculate
from tests.support.worlds import codec

CALLERS, HOSTILE_SHARE = 32, 4
"""Every fourth caller is hostile."""
TURN_S = 0.5
"""Seconds of a turn of the policy."""
PATH = "/v1/chat/completions"
PATIENCE_S = 30.0
"""The longest that a hostile caller holds one connection."""
P95_BAR, MEMORY_BAR, PAID_BAR = 1.5, 64.0, 0.0
"""p95 beside hostile callers by p95 without; growth of memory in MB; dollars for callers who had left."""
CONTROL = ("<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|endoftext|>", "\n")


class Paced(ScriptedPolicy):
    """Every turn takes its time, as a model's does."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        await asyncio.sleep(TURN_S)
        return await super().generate(conversations, max_tokens)


def decide(conversation: Conversation) -> str:
    """Sums are calculated; `hang` runs a program without an end; `expert` pays an expert in its second turn."""
    asked, turn = conversation.example.instruction, len(conversation.turns)
    if asked == "hang" and turn == 0:
        return format_call(ToolCall(name="python", arguments={"code": "while True: pass"}))
    if asked == "expert" and turn == 0:
        return format_call(ToolCall(name="calculator", arguments={"expression": "1+1"}))
    if asked == "expert" and turn == 1:
        return format_call(ToolCall(name="gpt-5", arguments={"question": "who wrote Opal?"}))
    return calculate(conversation) if asked.startswith("what is ") else format_answer("no")


def serve(folder: Path, port: int) -> None:
    """The gateway's process."""
    import uvicorn

    gateway = Gateway(folder, backend=backend(folder, policy=Paced("paced", decide, codec().turn)))
    app = create_app(gateway, load=False)
    uvicorn.run(app, port=port, http=BoundedProtocol, ws="none", log_level="critical", lifespan="off")


@dataclass
class Callers:
    """Who asks one gateway, until a moment."""

    port: int
    until: float
    seconds: list[float] = field(default_factory=list)
    """Of each honest request."""
    failed: Counter[str] = field(default_factory=Counter)
    """Honest requests without the right answer, by status."""
    done: Counter[str] = field(default_factory=Counter)
    """What hostile callers did, by kind."""

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    async def honest(self, number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=120, trust_env=False) as http:
            await asyncio.sleep(rng.random() * 2 * TURN_S)  # They do not step in time.
            first = True
            while first or not self.over:  # Once at least, on a machine however slow.
                first = False
                one, other = rng.randrange(1000), rng.randrange(1000)
                began = time.perf_counter()
                reply = await http.post(PATH, json=asked(f"what is {one}*{other}?"))
                self.seconds.append(time.perf_counter() - began)
                right = reply.status_code == 200 and f'"{one * other}"' in reply.text
                if not right:
                    self.failed[str(reply.status_code)] += 1

    async def hostile(self, number: int) -> None:
        """One kind, over and over; whatever becomes of the connection, the next one follows."""
        kinds = list(KINDS)
        kind, rng = kinds[number % len(kinds)], random.Random(number)
        while not self.over:
            with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    left_s = max(0.1, min(PATIENCE_S, self.until - time.monotonic()))
                    async with asyncio.timeout(left_s):
                        await KINDS[kind](reader, writer, rng)
                finally:
                    self.done[kind] += 1
                    writer.transport.abort()
            await asyncio.sleep(0.01)


def asked(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


def head(*headers: str) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: dict[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    return head(f"Content-Length: {len(raw)}") + raw


CHUNK = b"10000\r\n" + bytes(65536) + b"\r\n"
LONG: tuple[list[object], ...] = ([0] * 300_000, [{}] * 200_000, [{"type": "text", "text": ""}] * 25_000)
COSTLY = (
    *(whole(asked(letter * 450_000)) for letter in '"\\<{'),
    *(whole({"messages": [{"role": "user", "content": parts}]}) for parts in LONG),
)
"""Made once: what hostile callers cost here is not to be measured."""
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter, random.Random], Awaitable[object]]


async def endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(head("Transfer-Encoding: chunked"))
    while not reader.at_eof():
        writer.write(CHUNK)
        await writer.drain()


async def costly_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """A megabyte that is slow to encode, or to check."""
    writer.write(rng.choice(COSTLY))
    await reader.read(100)


async def slow_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    for byte in head("X-Pad: " + "x" * 1000):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(rng.random())


async def stalled_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(head(f"Content-Length: {rng.randint(2, 1000)}") + b"{")
    await reader.read()


async def control_strings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    def text() -> str:
        return "".join(rng.choices(CONTROL, k=rng.randint(1, 60)))

    roles = ["user", "system", "assistant"]
    said = [{"role": rng.choice(roles), "content": text()} for _ in range(rng.randint(0, 20))]
    tool = {"type": "function", "function": {"name": "f", "description": text(), "parameters": {"type": "object"}}}
    writer.write(whole({"messages": [*said, {"role": "user", "content": text()}], "tools": [tool]}))
    await reader.read(100)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Leaves in the first turn; the second would pay an expert."""
    writer.write(whole(asked("expert")))
    await writer.drain()
    await asyncio.sleep(rng.random() * TURN_S * 0.8)


async def hanging_program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(whole(asked("hang")))
    await reader.read(100)


async def unread_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Asks and asks on one connection, and reads nothing."""
    while not reader.at_eof():
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50)
        await writer.drain()
        await asyncio.sleep(rng.random() / 5)


KINDS: dict[str, Act] = {
    "endless bodies": endless_body,
    "costly texts": costly_text,
    "slow headers": slow_headers,
    "stalled bodies": stalled_body,
    "control strings": control_strings,
    "hang-ups": hang_up,
    "hanging programs": hanging_program,
    "unread answers": unread_answers,
}


@dataclass(frozen=True)
class Found:
    """Of one run."""

    requests: int
    failed: dict[str, int]
    cpu_s: float
    """Processor seconds of the gateway for one honest request, whatever else it worked on."""
    p50_s: float
    p95_s: float
    grown_mb: float
    """The largest resident memory of the gateway less that before the run."""
    kept_mb: float
    """Resident memory after the run less that before."""
    done: dict[str, int]


async def run(port: int, pid: int, honest: int, hostile: int, seconds: float) -> Found:
    """Ask for so long."""
    before, worked = resident(pid=pid) / 1e6, process_cpu_s(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # The largest begins again.
    callers = Callers(port, time.monotonic() + seconds)
    await asyncio.gather(
        *(callers.honest(number) for number in range(honest)), *(callers.hostile(number) for number in range(hostile))
    )
    cut = quantiles(callers.seconds, n=100)
    grown, worked = resident("VmHWM", pid) / 1e6 - before, process_cpu_s(pid) - worked
    await asyncio.sleep(2 * TURN_S)  # What is under way ends.
    kept = resident(pid=pid) / 1e6 - before
    count, done = len(callers.seconds), dict(sorted(callers.done.items()))
    return Found(count, dict(callers.failed), worked / count, cut[49], cut[94], grown, kept, done)


def paid_usd(port: int) -> float:
    """Dollars for experts: only callers that have left asked for one."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    found = re.findall(r'^orchestra_cost_usd_total\{component="expert"\} (\S+)', text, re.M)
    return sum(map(float, found))


def who_stays(port: int) -> None:
    """Ask for an expert and wait: what those who left would have paid."""
    httpx.post(f"http://127.0.0.1:{port}{PATH}", json=asked("expert"), timeout=120, trust_env=False)


def bars(alone: Found, beside: Found, paid: float, control: float) -> dict[str, bool]:
    """By name, whether each is met."""
    return {
        "without a right answer": not alone.failed and not beside.failed,
        "p95": beside.p95_s <= P95_BAR * alone.p95_s,
        "memory, largest growth": beside.grown_mb <= MEMORY_BAR,
        "memory, kept": beside.kept_mb <= MEMORY_BAR,
        "paid for callers who had left": paid <= PAID_BAR < control,
    }


def report(alone: Found, beside: Found, paid: float, control: float) -> str:
    """For people, with the bars. `control`: dollars of one who stayed, which shows that they are counted."""
    ratio = beside.p95_s / alone.p95_s
    rows = [
        ("honest requests", f"{alone.requests}", f"{beside.requests}", "", ""),
        ("without a right answer", str(sum(alone.failed.values())), str(sum(beside.failed.values())), "0", ""),
        ("p50", f"{alone.p50_s:.3f} s", f"{beside.p50_s:.3f} s", "", ""),
        ("p95", f"{alone.p95_s:.3f} s", f"{beside.p95_s:.3f} s", f"≤ {P95_BAR:g} times", f"{ratio:.2f} times"),
        ("processor time by honest request", f"{1000 * alone.cpu_s:.1f} ms", f"{1000 * beside.cpu_s:.1f} ms", "", ""),
        ("memory, largest growth", f"{alone.grown_mb:.0f} MB", f"{beside.grown_mb:.0f} MB", f"≤ {MEMORY_BAR:g} MB", ""),
        ("memory, kept", f"{alone.kept_mb:.0f} MB", f"{beside.kept_mb:.0f} MB", f"≤ {MEMORY_BAR:g} MB", ""),
        ("paid for callers who had left", "", f"{paid:g} USD", f"{PAID_BAR:g} USD", f"one who stays: {control:g} USD"),
    ]
    lines = ["| | honest alone | beside hostile | bar | found |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "hostile: " + ", ".join(f"{count} {kind}" for kind, count in beside.done.items())])


def measure(seconds: float, callers: int = CALLERS) -> tuple[Found, Found, float, float]:
    """Both runs on one gateway, what was paid for callers who had left, and what one who stays pays."""
    hostile = callers // HOSTILE_SHARE
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.hostile", "--serve", folder, "--port", str(port)]
        with answering(command, port, "benchmarks.hostile") as child:
            asyncio.run(run(port, child.pid, callers - hostile, 0, 2 + 4 * TURN_S))  # Imports, caches and the pool.
            alone = asyncio.run(run(port, child.pid, callers - hostile, 0, seconds))
            beside = asyncio.run(run(port, child.pid, callers - hostile, hostile, seconds))
            paid = paid_usd(port)
            who_stays(port)
            return alone, beside, paid, paid_usd(port) - paid


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each of the two runs")
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.serve is not None:
        serve(args.serve, args.port)
        return 0
    found = measure(args.seconds)
    print(report(*found))
    return judge(bars(*found))


if __name__ == "__main__":
    run_benchmark(main)
