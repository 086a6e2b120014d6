"""The world is fair: no trick comes near a policy that chooses, and the oracle shows that there is room above it."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from orchestra.config.schema import load_params
from orchestra.evaluation.baselines.base import ORACLE, STRONGEST, baseline_policy
from orchestra.evaluation.baselines.knowledge import Knowledge, who_is_right
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.synthesis.dataset.generate import generate
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example, Price, ToolCall
from tests.support.worlds import ROOT, codec

Decide = Callable[[Conversation], str]


@pytest.fixture(scope="module")
def world() -> tuple[Toolkit, list[Example]]:
    params = load_params(ROOT / "params.yaml")
    update = {"train_examples": 6, "heldout_examples": 80}
    small = params.model_copy(update={"synthesize": params.synthesize.model_copy(update=update)})
    toolkit = Toolkit.from_params(small, ROOT)
    made = generate(small, toolkit)
    return made.known_to(toolkit), made.examples["heldout"]


def accuracy(world: tuple[Toolkit, list[Example]], policy: ScriptedPolicy) -> float:
    toolkit, examples = world
    limits = load_params(ROOT / "params.yaml").rollout.model_copy(update={"max_tokens": 8000})
    episodes = rollout(examples, policy, codec(), toolkit, RolloutOptions(limits, Price()))
    return sum(episode.solved for episode in episodes) / len(episodes)


def trick(decide: Decide) -> ScriptedPolicy:
    return ScriptedPolicy("trick", decide, codec().turn)


def always(tool: str) -> Decide:
    """Calls one catalogue entry with the question, whatever is asked, and repeats what it says."""
    arguments = {"calculator": "expression", "search": "query"}

    def decide(conversation: Conversation) -> str:
        offered = next((spec.name for spec in conversation.example.toolbox if spec.tool == tool), None)
        if conversation.turns or offered is None:
            return format_answer(conversation.turns[0].observation or "" if conversation.turns else "no")
        said = conversation.example.instruction
        return format_call(ToolCall(name=offered, arguments={arguments[tool]: said} if tool in arguments else {}))

    return decide


def test_no_trick_scores_two_thirds_of_always_strongest(world: tuple[Toolkit, list[Example]]) -> None:
    toolkit, examples = world
    right = asyncio.run(who_is_right(examples, toolkit))
    knowledge = Knowledge(toolkit.catalogue, right)
    strongest, oracle = (
        accuracy(world, baseline_policy(name, knowledge, codec().turn)) for name in (STRONGEST, ORACLE)
    )
    assert oracle > strongest + 0.05
    answers = Counter(example.verifier.answer for example in examples if example.verifier.answer)
    # The sandbox starts a process a call, and prints nothing for a question that is no program.
    tricks = {f"always {tool}": always(tool) for tool in toolkit.catalogue.entries if tool != "python"}
    commonest = answers.most_common(1)[0][0]
    tricks["the commonest answer, without a call"] = lambda conversation: format_answer(str(commonest))
    tricks["the question as its own answer"] = lambda conversation: format_answer(conversation.example.instruction)
    tricks["a word of the instruction"] = lambda conversation: format_answer(
        conversation.example.instruction.split()[-1]
    )
    tricks["done, without a call"] = lambda conversation: format_answer("Done.")
    scores = {name: accuracy(world, trick(decide)) for name, decide in tricks.items()}
    assert {name: score for name, score in scores.items() if score > strongest * 2 / 3} == {}
    assert all(score <= 0.05 for name, score in scores.items() if not name.startswith("always"))
