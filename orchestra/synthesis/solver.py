"""The offline solver: it knows an example's known solution, and makes mistakes."""

import random
from collections.abc import Callable

from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies import Conversation, ScriptedPolicy
from orchestra.rollout.scripts import follow
from orchestra.tools.base import UNSURE
from orchestra.types import ToolSpec

MISTAKE = 0.2
"""How often it fails at one step."""


def stumbling(encode_turn: Callable[[str], list[int]], seed: int, mistake: float = MISTAKE) -> ScriptedPolicy:
    """Follows the known solution, but at each step gives up with probability `mistake`: more steps are harder.

    A try fails at the same step whenever it is made: the draw depends on seed, example, sample and step.
    """

    def decide(conversation: Conversation) -> str:
        step = f"{seed}:{conversation.example.id}:{conversation.sample}:{len(conversation.turns)}"
        rng = random.Random(step)
        if rng.random() < mistake:
            return format_answer(UNSURE)

        def choose(_: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
            return rng.choice(left)

        return follow(conversation, choose)

    return ScriptedPolicy("stumbling", decide, encode_turn)
