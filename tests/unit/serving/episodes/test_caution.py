"""A turn that the model was not sure of is replaced, paid for, and never streamed."""

import asyncio
from collections.abc import Sequence

import pytest

from orchestra.rollout.parse import format_call
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing, ScriptedPolicy
from orchestra.serving.episodes.caution import CautiousPolicy
from orchestra.types import ToolCall, Turn, Usage
from tests.support.worlds import codec, example

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
    policy = CautiousPolicy(inner, least, INSTEAD, codec())
    assert policy.by_episode and policy.name == "written"
    policy.begin([conversation])
    (made,) = asyncio.run(policy.generate([conversation], [9]))
    policy.end()
    return made, streamed


@pytest.mark.parametrize("logprobs", [[-0.09, -0.09, -0.09], [-0.28, -0.01, 0.0], [-0.09], []])
def test_a_sure_turn_passes_and_is_streamed_whole(logprobs: list[float]) -> None:
    inner = Written(logprobs)
    assert turn(inner) == (inner.made, [1, 2, 3])


def test_a_doubted_turn_is_replaced_and_its_tokens_are_never_streamed() -> None:
    made, streamed = turn(Written([-3.0, -0.5, -0.01]))
    assert made.ids == streamed == INSTEAD and made.logprobs == [] and made.stop == "stop"
    assert made.usage == Usage(input_tokens=10, cached_input_tokens=4, output_tokens=3), "what was written is paid for"


class Repeats(ScriptedPolicy):
    """Calls the calculator with what it cannot read, and makes an answer, or another call, of its error."""

    def __init__(self, then: str) -> None:
        super().__init__("repeats", lambda c: then if c.turns else format_call(DIVISION), codec().turn)


DIVISION = ToolCall(name="calculator", arguments={"expression": "5/0"})


@pytest.mark.parametrize(
    ("observation", "then", "domain", "said"),
    [
        ("error: division by zero", "er96", None, "instead"),
        ("error: division by zero", format_call(DIVISION), None, "then"),
        ("error: the order was shipped", "The order was shipped.", "shop", "then"),
        ("888", "888", None, "then"),
    ],
)
def test_an_answer_to_a_failed_call_is_replaced(observation: str, then: str, domain: str | None, said: str) -> None:
    policy = CautiousPolicy(Repeats(then), -0.1, codec().turn("instead"), codec())
    conversation = Conversation(example("e").model_copy(update={"domain": domain}), [5] * 10)
    policy.begin([conversation])
    (call,) = asyncio.run(policy.generate([conversation], [99]))
    conversation.turns.append(Turn(ids=tuple(call.ids), text="", call=DIVISION, observation=observation))
    (answer,) = asyncio.run(policy.generate([conversation], [99]))
    assert answer.ids == codec().turn("instead" if said == "instead" else then)


def test_what_the_endpoint_counted_stands() -> None:
    counted = Usage(input_tokens=99, output_tokens=5)
    assert turn(Written([-3.0, -3.0, -3.0], counted))[0].usage == counted
