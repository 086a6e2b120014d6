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


@pytest.mark.parametrize(
    ("request_", "expression", "kept"),
    [
        ("I buy 3 loaves at 2.50 each. How much?", "3*2.50", True),
        ("Three loaves at 2.50 each, how much?", "3*2.50", True),
        ("The coat is 1,200 with 25% off. New price?", "1,200-1,200*25/100", True),
        ("How many hours are in 3 days?", "3*24", True),
        ("one egg costs 2 and i buy twenty-five", "2*25", True),
        ("I buy 3 loaves at 2.50 each and a jar for 6. How much?", "2.50/6", False),
        ("I take 2 pills a day of a box of 56. How long?", "56/56", False),
        ("I work 6 hours a day, 5 days a week at 11 an hour. My pay?", "6*6", False),
        ("3 metres of rope in pieces of 0.25 metres, how many?", "0.25*12", False),
        ("what is 18 times 4", "18*45", False),
        ("what is 18 times 4", "18*4+99", False),
        ("what is 9 times 8", "9 �ase 8", True),  # It cannot be read, so that the request is.
    ],
)
def test_a_sum_of_its_own_has_the_numbers_of_the_request(request_: str, expression: str, kept: bool) -> None:
    call = format_call(ToolCall(name="calculator", arguments={"expression": expression}))
    policy = CautiousPolicy(
        ScriptedPolicy("sums", lambda _: call, codec().turn), -0.1, codec().turn("instead"), codec()
    )
    conversation = Conversation(example("e", instruction=request_), [5] * 10)
    policy.begin([conversation])
    (made,) = asyncio.run(policy.generate([conversation], [99]))
    assert made.ids == codec().turn(call if kept else "instead")


def test_a_sum_in_a_conversation_may_have_the_numbers_of_earlier_messages() -> None:
    call = format_call(ToolCall(name="calculator", arguments={"expression": "888/8"}))
    sums = ScriptedPolicy("sums", lambda _: call, codec().turn)
    policy = CautiousPolicy(sums, -0.1, codec().turn("instead"), codec(), sums=False)
    conversation = Conversation(example("e", instruction="now divide it by 8"), [5] * 10)
    policy.begin([conversation])
    (made,) = asyncio.run(policy.generate([conversation], [99]))
    assert made.ids == codec().turn(call)


def test_another_tools_numbers_are_its_own_affair() -> None:
    call = format_call(ToolCall(name="search", arguments={"expression": "9"}))
    policy = CautiousPolicy(ScriptedPolicy("asks", lambda _: call, codec().turn), -0.1, codec().turn("no"), codec())
    conversation = Conversation(example("e", instruction="Who founded it in 1911?"), [5] * 10)
    policy.begin([conversation])
    (made,) = asyncio.run(policy.generate([conversation], [99]))
    assert made.ids == codec().turn(call)


def test_what_the_endpoint_counted_stands() -> None:
    counted = Usage(input_tokens=99, output_tokens=5)
    assert turn(Written([-3.0, -3.0, -3.0], counted))[0].usage == counted
