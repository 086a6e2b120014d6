"""Where the choice of a turn stands."""

from orchestra.rollout.policies.base import Conversation
from orchestra.training.grpo.branching.points import said, ways
from tests.support.worlds import codec
from tests.unit.training.grpo.branching.world import (
    AT_NAME,
    AT_WORD,
    LIMITS,
    WORDS,
    planned,
    question,
    written,
)


def test_a_choice_keeps_the_reasons_that_it_begins_with() -> None:
    turn = codec().turn(written("gpt-5", "unsure cheap doubt-saving-best"))
    found = ways(Conversation(question(), codec().prompt(question())), turn, codec(), LIMITS, AT_WORD)
    last = {word: codec().decode(ids).split("\n")[2] for word, ids in found.items()}
    assert last == {word: f"unsure cheap doubt-saving-{word}" for word in WORDS}


def test_a_thought_s_line_says_what_comes_before_the_choice() -> None:
    assert planned(AT_WORD)[1].said == "" and planned(AT_NAME)[1].said == ""
    line = "unsure cheap doubt-saving-"
    turn = codec().decode(codec().turn(written("gpt-5", f"{line}best")))
    assert said(turn, question(), AT_WORD) == line
