"""A turn that the model was not sure of is replaced, paid for, and never streamed."""

import asyncio
from collections.abc import Sequence

import pytest

from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing
from orchestra.serving.episodes.caution import CautiousPolicy
from orchestra.types import Usage
from tests.support.worlds import example

INSTEAD = [7, 8]


class Written(KeepsNothing):
    """Writes the given turn, and streams it to whom the conversation names."""

    by_episode, name = True, "written"

    def __init__(self, logprobs: list[float], usage: Usage | None = None) -> None:
        self.made = Generation([1, 2, 3], logprobs, "stop", cached_tokens=4, usage=usage)
        self.begun: list[Conversation] = []

    def begin(self, conversations: Sequence[Conversation]) -> None:
        self.begun += conversations

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        assert all(any(c is known for known in self.begun) for c in conversations), "not the ones it began with"
        for conversation in conversations:
            if conversation.on_tokens is not None:
                conversation.on_tokens([1])
        return [self.made for _ in conversations]


def turn(inner: Written, least: float = -0.1) -> tuple[Generation, list[int]]:
    """The turn, and the tokens that were streamed."""
    streamed: list[int] = []
    conversation = Conversation(example("e"), [5] * 10, on_tokens=streamed.extend)
    policy = CautiousPolicy(inner, least, INSTEAD)
    assert policy.by_episode and policy.name == "written"
    policy.begin([conversation])
    (made,) = asyncio.run(policy.generate([conversation], [9]))
    policy.end()
    return made, streamed


@pytest.mark.parametrize("logprobs", [[-0.09, -0.09, -0.09], [-3.0, -0.01, 0.0], [-9.0], []])
def test_a_sure_turn_passes_and_is_streamed_whole(logprobs: list[float]) -> None:
    inner = Written(logprobs)
    assert turn(inner) == (inner.made, [1, 2, 3])


def test_a_doubted_turn_is_replaced_and_its_tokens_are_never_streamed() -> None:
    made, streamed = turn(Written([-3.0, -0.5, -0.01]))
    assert made.ids == streamed == INSTEAD and made.logprobs == [] and made.stop == "stop"
    assert made.usage == Usage(input_tokens=10, cached_input_tokens=4, output_tokens=3), "what was written is paid for"


def test_what_the_endpoint_counted_stands() -> None:
    counted = Usage(input_tokens=99, output_tokens=5)
    assert turn(Written([-3.0, -3.0, -3.0], counted))[0].usage == counted
