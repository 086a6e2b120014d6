"""Policies that say what they are told, for tests of the loop."""

from collections.abc import Sequence
from typing import Any

from orchestra.config.schema import Rollout
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example, ToolCall
from tests.support.worlds import PRICE, codec, example

LIMITS = Rollout(max_turns=4, max_turn_tokens=400, max_tokens=4000)


def call(tool: str, /, **arguments: Any) -> str:
    return format_call(ToolCall(name=tool, arguments=arguments))


SUM = call("calculator", expression="37*24")
RIGHT = format_answer("888")


def says(*texts: str) -> ScriptedPolicy:
    """A policy that says the texts in turn, the last one for ever."""
    return ScriptedPolicy("script", lambda c: texts[min(len(c.turns), len(texts) - 1)], codec().turn)


class Typist:
    """Says a text, but no more tokens of it than it is allowed."""

    name = "typist"

    def __init__(self, text: str) -> None:
        self.ids = codec().turn(text)

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing to prepare."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        return [Generation(self.ids[:m], [], "stop" if len(self.ids) <= m else "length") for m in max_tokens]

    def end(self) -> None:
        """Nothing to free."""


def play(tools: Toolkit, policy: Any, item: Example | None = None, limits: Rollout = LIMITS) -> Episode:
    return rollout([item or example()], policy, codec(), tools, RolloutOptions(limits, PRICE))[0]
