"""What an expert's call costs beside the expert: `python -m benchmarks.tools_experts`, against a local double."""

import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.command import Row, run_benchmark, show
from orchestra.tools.chat.client import Chat
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.replay.cassette import Cassette
from tests.support.endpoint import answer, serving

CALLS = 400
AT_ONCE = 32
SECONDS = 0.05
"""What the double takes to answer in the run of many at once."""


def rows() -> list[Row]:
    """Without bars: none is set for experts."""
    with serving([(200, answer(), 0.0)]) as double:
        single_s, cpu_s = asyncio.run(_one_by_one(double.url))
    with serving([(200, answer(), SECONDS)]) as double:
        many_s = asyncio.run(_at_once(double.url))
        connections = double.connections
    replay_s = _replay()
    ideal_s = CALLS / AT_ONCE * SECONDS
    return [
        Row("expert call, local double: median over the wire", f"{single_s * 1000:.1f} ms"),
        Row("expert call, local double: processor, client and double", f"{cpu_s * 1000:.1f} ms"),
        Row(
            f"{CALLS} calls of {SECONDS * 1000:.0f} ms, {AT_ONCE} at once",
            f"{many_s:.2f} s (at best {ideal_s:.2f}), {connections} connections",
        ),
        Row("calls replayed from a cassette", f"{1 / replay_s:,.0f} /s"),
    ]


async def _one_by_one(url: str) -> tuple[float, float]:
    chat = Chat("one", model="m", url=url)
    await chat.ask(_body(0))  # The SDK's import and the connection.
    taken: list[float] = []
    cpu = time.process_time()
    for number in range(CALLS // 4):
        began = time.perf_counter()
        await chat.ask(_body(number))
        taken.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    await chat.aclose()
    return statistics.median(taken), cpu / len(taken)


async def _at_once(url: str) -> float:
    chat = Chat("many", model="m", url=url, provider=RateLimiter(ProviderLimits(concurrency=AT_ONCE)))
    began = time.perf_counter()
    await asyncio.gather(*(chat.ask(_body(number)) for number in range(CALLS)))
    taken = time.perf_counter() - began
    await chat.aclose()
    return taken


def _replay() -> float:
    """Seconds a replayed call."""
    with tempfile.TemporaryDirectory() as folder, serving([(200, answer(), 0.0)]) as double:
        file = Path(folder) / "tape.jsonl"

        async def run(chat: Chat) -> float:
            began = time.perf_counter()
            for number in range(CALLS):
                await chat.ask(_body(number))
            taken = time.perf_counter() - began
            await chat.aclose()
            return taken / CALLS

        asyncio.run(run(Chat("tape", model="m", url=double.url, cassette=Cassette(file, "record"))))
        return asyncio.run(run(Chat("tape", model="m", url="", cassette=Cassette(file, "replay"))))


def _body(number: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"what is {number}+1?"}]}


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
