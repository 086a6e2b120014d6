"""The control: a model's thoughts with a rule's choices."""

import asyncio

import pytest

from orchestra.evaluation.baselines.by_rule import EVERY, RuledPolicy, chosen
from orchestra.rollout.policies.base import Conversation
from orchestra.training.choices import ANSWER
from tests.support.worlds import codec
from tests.unit.training.grpo.branching.world import LIMITS, policy, question


@pytest.mark.parametrize(
    ("line", "turn", "search", "choice"),
    [
        ("cheap saving-strongest", 0, True, "cheapest"),
        ("fast hurry-strongest", 0, False, "fastest"),
        ("any open-strongest", 0, True, "search"),
        ("any open-strongest", 0, False, "fastest"),
        ("like liking-strongest", 0, False, "named"),
        ("not avoiding-strongest", 0, False, "other-fastest"),
        ("unsure like doubt-liking-strongest", 1, False, "fastest"),
        ("nothing cheap empty-saving-answer", 1, False, "cheapest"),
        ("one any single-open-strongest", 1, False, ANSWER),
        ("one right single-careful-answer", 1, False, "cheapest"),
        ("differ right torn-careful-strongest", 2, False, "strongest"),
        ("agree right sure-careful-strongest", 2, False, ANSWER),
        ("unsure any doubt-open-strongest", 4, False, ANSWER),
        ("", 0, False, "fastest"),
    ],
)
def test_the_choice_follows_from_the_wish_and_what_is_known(line: str, turn: int, search: bool, choice: str) -> None:
    assert chosen(line, turn, search=search) == choice


def test_whatever_a_thought_says_the_choice_is_one_that_can_be_written() -> None:
    for wish in ("any", "cheap", "fast", "right", "like", "not"):
        for state in ("", "unsure", "nothing", "one", "agree", "differ", "found"):
            for turn in range(5):
                for search in (True, False):
                    assert chosen(f"{state} {wish} x".strip(), turn, search=search) in EVERY.words


def test_a_thought_that_plans_calls_makes_no_choice() -> None:
    """`best` is a tool here, so the taught model's thought names what to call, and stays."""
    asked = question()
    box = (*asked.toolbox, asked.toolbox[0].model_copy(update={"name": "best"}))
    inner, planned = policy(), 0
    ruled = RuledPolicy(inner, codec(), LIMITS)
    for seed in range(12):
        inner.seed = seed
        conversation = Conversation(asked.model_copy(update={"toolbox": box}), codec().prompt(asked))
        inner.begin([conversation])
        (plain,) = asyncio.run(inner.generate([conversation], [LIMITS.max_turn_tokens]))
        inner.end()
        (turn,) = asyncio.run(ruled.generate([conversation], [LIMITS.max_turn_tokens]))
        if codec().decode(plain.ids).split("\n")[2:3] == ["best"]:
            planned += 1
            assert turn.ids == plain.ids
    assert planned


def test_a_turn_is_taken_back_to_its_choice_and_goes_on_from_the_rule_s() -> None:
    """The taught model's `best` stands where a state would, behind which the rule answers; `cheap` is no choice."""
    inner = policy()
    ruled, seen = RuledPolicy(inner, codec(), LIMITS), set()
    for seed in range(12):
        inner.seed = seed
        conversation = Conversation(question(), codec().prompt(question()))
        inner.begin([conversation])
        (plain,) = asyncio.run(inner.generate([conversation], [LIMITS.max_turn_tokens]))
        inner.end()
        (turn,) = asyncio.run(ruled.generate([conversation], [LIMITS.max_turn_tokens]))
        own, other = (codec().decode(one.ids).split("\n") for one in (plain, turn))
        if own[2:3] == ["best"]:
            assert other[:3] == [*own[:2], "answer"] and turn.logprobs == []
            assert turn.cached_tokens == len(conversation.prompt_ids) - 1
        elif own[2:3] == ["cheap"]:
            assert turn.ids == plain.ids
        seen.add(own[2] if len(own) > 2 else "")
    assert {"best", "cheap"} <= seen
