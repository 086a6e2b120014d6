"""Where the choice of a turn stands."""

from orchestra.rollout.policies.base import Conversation
from orchestra.training.grpo.branching.points import said, shared, ways
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


def test_no_way_needs_more_tokens_than_a_turn_and_an_episode_may_have() -> None:
    """One more token than the ways need, since the turn goes on behind them."""
    begun, turn = Conversation(question(), codec().prompt(question())), codec().turn(written("gpt-5", "best"))
    found = ways(begun, turn, codec(), LIMITS, AT_WORD)
    sizes = {word: len(ids) for word, ids in found.items()}
    most, least = max(sizes.values()), min(sizes.values())
    for room in (least, most, most + 1):
        wanted = {word: ids for word, ids in found.items() if sizes[word] < room}
        for limits in ({"max_turn_tokens": room}, {"max_tokens": begun.length + room}):
            assert ways(begun, turn, codec(), LIMITS.model_copy(update=limits), AT_WORD) == wanted


def test_what_all_ways_begin_with_is_counted() -> None:
    assert shared([(1, 2, 3), (1, 2, 4), (1, 2, 3, 5)]) == 2 and shared([(1,), (2,)]) == 0
