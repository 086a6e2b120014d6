"""The model in the gateway's own process: one caller's end is nobody else's."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.serving.episodes.engine import ThreadedPolicy
from orchestra.types import StopReason
from tests.support.scripts import LIMITS
from tests.support.worlds import PRICE, codec, example, tiny_model, toolkit


class Slow(TransformersPolicy):
    """Its first turn waits until it is let go."""

    begun, go = threading.Event(), threading.Event()

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        self.begun.set()
        assert self.go.wait(60)
        return await super().generate(conversations, max_tokens)


def test_a_caller_whose_time_is_up_and_who_then_hangs_up_is_nothing_to_the_next(tmp_path: Path) -> None:
    slow = Slow("", name="slow", model=tiny_model(), eos_id=codec().eos_id)
    policy, tools = ThreadedPolicy(slow), toolkit(tmp_path)

    async def ask(name: str) -> StopReason:
        options = RolloutOptions(LIMITS, PRICE, judge=False)
        return (await run_episodes([example(name)], policy, codec(), tools, options))[0].stop

    async def body() -> StopReason:
        first = asyncio.ensure_future(ask("first"))
        await asyncio.to_thread(slow.begun.wait, 60)
        for _ in range(2):
            first.cancel()
            await asyncio.sleep(0.05)  # The thread's turn is waited for.
        slow.go.set()
        await asyncio.wait([first])
        return await ask("second")

    try:
        assert asyncio.run(body()) is not StopReason.CANCELLED
    finally:
        policy.close()
