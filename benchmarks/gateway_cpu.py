"""Processor milliseconds of the gateway's process for a turn: `python -m benchmarks.gateway_cpu`.

The gateway runs on a port of its own in a process of its own, callers ask it from another, and a stand-in for vLLM in a
third answers every turn after a fixed time. Processor time depends less than seconds do on what else the machine does,
so that two versions can be compared on a busy one: `--baseline FOLDER` runs another checkout's gateway in turns with
this one's. What vLLM itself takes for a turn is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.errors import ServiceError
from orchestra.system.processes import free_port
from orchestra.types import ToolCall

CONVERSATIONS = (1, 8, 32)
TURNS = 2
"""Of a request: a tool is called, and its result answered."""
TURN_S = 0.05
"""Seconds that the stand-in takes for a turn."""
THOUGHT = "<think>\nsum\n</think>\n\n"
KINDS: list[tuple[str, str | None, ToolCall]] = [
    *[("who wrote Opal", None, ToolCall(name="gpt-5", arguments={"question": "who wrote Opal?"}))] * 7,
    *[("which books are there", "mock", ToolCall(name="find_books", arguments={}))] * 2,
    ("what is 37*24", None, ToolCall(name="calculator", arguments={"expression": "37*24"})),
]
"""What is asked, with which domain's tools, and the call of the first turn; about as held-out questions are mixed."""


def serve(folder: Path, port: int, model: int) -> None:
    """The gateway's process, as a release has it; an older checkout does what it knows of that."""
    import uvicorn

    from orchestra.config.deploy import Deploy
    from orchestra.rollout.policies.vllm import VllmPolicy
    from orchestra.serving.app import create_app
    from orchestra.serving.gateway import Gateway
    from orchestra.serving.wire import connection
    from orchestra.system import environment, processes
    from tests.support.serving_world import backend

    policy = VllmPolicy(f"http://127.0.0.1:{model}", "orchestra", name="stand-in", persistent=True)
    doubts: dict[str, Any] = {"least_confidence": -0.2} if "least_confidence" in Deploy.model_fields else {}
    app = create_app(Gateway(folder, backend=backend(folder, policy=policy, **doubts)), load=False)
    environment.quiet()
    getattr(environment, "keep_loaded", gc.freeze)()
    config = uvicorn.Config(app, http=connection.BoundedProtocol, ws="none", access_log=False, log_config=None)
    listening = getattr(processes, "server_socket", socket.socket)()
    listening.bind(("127.0.0.1", port))
    getattr(connection, "GracefulServer", uvicorn.Server)(config).run(sockets=[listening])


def stand_in(port: int) -> None:
    """A model server that knows two turns: the call that a question asks for, and an answer once a result is there."""
    from aiohttp import web

    from orchestra.rollout.parse import format_answer, format_call
    from tests.support.worlds import codec

    known = codec()
    calls = {question: known.turn(f"{THOUGHT}{format_call(call)}") for question, _, call in KINDS}
    answer = known.turn(f"{THOUGHT}{format_answer('888')}")

    def turn(prompt: list[int]) -> list[int]:
        asked, _, made = known.decode(prompt).rpartition("<|im_start|>user")[2].partition("<tool_call>")
        return answer if made else next(call for question, call in calls.items() if question in asked)

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = turn(body["prompt"])
        if not body.get("stream"):
            await asyncio.sleep(TURN_S)
            return web.json_response(completion(body, ids, "stop"))
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for place, one in enumerate(ids):
            await asyncio.sleep(TURN_S / len(ids))
            finish = "stop" if place + 1 == len(ids) else None
            await reply.write(b"data: " + json.dumps(completion(body, [one], finish)).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/health", _well)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


async def _well(_: Any) -> Any:
    from aiohttp import web

    return web.Response()


def completion(body: dict[str, Any], ids: list[int], finish: str | None) -> dict[str, Any]:
    """As vLLM writes it, with the fields that nobody reads."""
    logprobs = {
        "text_offset": list(range(len(ids))),
        "token_logprobs": [-0.0123456789] * len(ids),
        "tokens": [f"token_{i}" for i in ids],
        "top_logprobs": [{f"token_{i}": -0.0123456789} for i in ids],
    }
    choice = {"index": 0, "text": "text", "logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
    choice |= {
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": None if body.get("stream") else body["prompt"],
    }
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids), "prompt_tokens_details": None}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    turns: int
    cpu_ms: float
    """A turn."""


async def ask(port: int, pid: int, conversations: int, requests: int, *, stream: bool) -> Cost:
    """Ask so many questions, so many at a time."""
    import aiohttp

    from benchmarks.clock import process_cpu_s

    left = list(range(requests))

    async def user(http: aiohttp.ClientSession) -> None:
        while left:
            number = left.pop()
            question, domain, _ = KINDS[number % len(KINDS)]
            # In letters: a number that the sum lacks would have the turn doubted.
            asker = "".join(chr(ord("a") + int(digit)) for digit in str(number))
            messages = [{"role": "user", "content": f"{question}, asks {asker}?"}]
            body = {"messages": messages, "stream": stream} | ({} if domain is None else {"domain": domain})
            async with http.post("/v1/chat/completions", json=body) as reply:
                text = await reply.text()
            if reply.status != 200 or "888" not in text:
                raise ServiceError(f"HTTP {reply.status}: {text[:300]}", where="benchmarks.gateway_cpu")

    connector = aiohttp.TCPConnector(limit=conversations)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as http:
        before = process_cpu_s(pid)
        await asyncio.gather(*(user(http) for _ in range(conversations)))
        spent = process_cpu_s(pid) - before
    turns = TURNS * requests
    return Cost(turns, 1000 * spent / turns)


def measure(checkouts: list[Path], requests: int, rounds: int, *, stream: bool) -> dict[tuple[Path, int], list[Cost]]:
    """Every number of conversations, the checkouts in turns."""
    # Here: a child runs over another checkout, which may not know it.
    from benchmarks.ending import answering

    def child(checkout: Path, port: int, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """A process of this benchmark over the code of a checkout."""
        command = [sys.executable, "-P", __file__, "--port", str(port), *arguments]
        env = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        return answering(command, port, arguments[0], cwd=checkout, env=env)

    found: dict[tuple[Path, int], list[Cost]] = {}
    with contextlib.ExitStack() as stack:
        model = free_port()
        stack.enter_context(child(Path.cwd(), model, "--stand-in"))
        gateways = []
        for checkout in checkouts:
            folder, port = stack.enter_context(tempfile.TemporaryDirectory()), free_port()
            process = stack.enter_context(child(checkout, port, "--serve", folder, "--model", str(model)))
            asyncio.run(ask(port, process.pid, 8, 32, stream=stream))  # Imports and caches.
            gateways.append((checkout, port, process.pid))
        for conversations in CONVERSATIONS:
            for _ in range(rounds):
                for checkout, port, pid in gateways:
                    cost = asyncio.run(ask(port, pid, conversations, requests, stream=stream))
                    found.setdefault((checkout, conversations), []).append(cost)
    return found


def table(found: dict[tuple[Path, int], list[Cost]], checkouts: list[Path]) -> str:
    """For people; the ratio is this checkout's to the baseline's, of medians."""
    lines = ["| conversations | processor ms a turn | baseline | ratio |", "|---|---|---|---|"]
    for conversations in CONVERSATIONS:
        ours, *theirs = (statistics.median(one.cpu_ms for one in found[each, conversations]) for each in checkouts)
        other = (f"{theirs[0]:.2f}", f"{ours / theirs[0]:.2f}") if theirs else ("", "")
        lines.append(f"| {conversations} | {ours:.2f} | {' | '.join(other)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_cpu", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--baseline", type=Path, help="another checkout to compare with")
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--stand-in", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stand_in:
        stand_in(args.port)
    elif args.serve is not None:
        serve(args.serve, args.port, args.model)
    else:
        # Here: a child runs over another checkout, which may not know it.
        from benchmarks.command import run_benchmark

        checkouts = [Path.cwd(), *([args.baseline] if args.baseline else [])]
        found = partial(measure, checkouts, args.requests, args.rounds, stream=args.stream)
        run_benchmark(lambda _: print(table(found(), checkouts)))


if __name__ == "__main__":
    main()
