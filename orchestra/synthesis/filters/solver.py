"""Who tries the examples: a solver that knows the known solution and makes mistakes, or a checkpoint."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.config.schema import Params
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.policies.chat import PREFIX, chat_policy
from orchestra.rollout.policies.scripted import follow
from orchestra.synthesis.filters.filters import Solver
from orchestra.tools.base import UNSURE
from orchestra.tools.toolkit import Toolkit
from orchestra.types import ToolSpec

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Policy
    from orchestra.rollout.users import UserSimulator

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


def is_billed(name: str, toolkit: Toolkit) -> bool:
    """Whether that solver's tries cost money: its own tokens, the experts that it asks, or the judge of its answers.
    What its calls of simulated experts would cost is modelled, and nobody's bill."""
    asked = name.startswith(PREFIX) or not toolkit.catalogue.all_simulated or toolkit.judge is not None
    return name != "none" and asked


def solver_named(
    name: str, params: Params, toolkit: Toolkit, root: Path, user: "UserSimulator | None" = None
) -> Solver | None:
    """The solver called `none`, `known`, `chat:` and an expert of the catalogue, or by its checkpoint's folder, under
    the limits of `params`; raises `DataError` when that is no checkpoint."""
    if name == "none":
        return None
    from orchestra.rollout.render import Codec

    prompted = name.startswith(PREFIX)
    codec = Codec.load(params.model.tokenizer_folder(root) if name == "known" or prompted else name)
    policy: Policy = stumbling(codec.turn, params.synthesize.seed)
    if prompted:
        policy = chat_policy(name, toolkit, codec.turn, {"temperature": params.grpo.temperature})
    elif name != "known":
        from orchestra.rollout.policies.transformers import TransformersPolicy

        policy = TransformersPolicy(name, name=Path(name).name, temperature=params.grpo.temperature)
    price = toolkit.catalogue.prices[name.removeprefix(PREFIX)] if prompted else None
    return Solver(policy, codec, toolkit, params.rollout, user=user, price=price)
