"""Text is told as soon as it is clear, never too early, and adds up to the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.rollout.parse import format_answer, format_call, parse_turn
from orchestra.serving.episodes import stream
from orchestra.serving.episodes.stream import TurnReader
from orchestra.types import ToolCall
from tests.support.worlds import codec


def told(text: str) -> tuple[list[str], list[str]]:
    reader = TurnReader(codec())
    parts = [reader.feed([i]) for i in codec().turn(text)]
    return [thought for thought, _ in parts], [answer for _, answer in parts]


def test_an_answer_comes_word_by_word_after_its_thought() -> None:
    thoughts, answers = told(format_answer("the search found no record of it", thought="music gpt-5"))
    assert "".join(thoughts) == "music gpt-5"
    assert len([part for part in answers if part]) >= 4 and "".join(answers) == "the search found no record of"


def test_nothing_of_a_call_is_told() -> None:
    call = ToolCall(name="search", arguments={"query": "what is <think> of it all"})
    assert set(told(format_call(call, thought="why"))[1]) == {""}


PIECES = st.lists(
    st.sampled_from(["<", "think>", "</think>", "<tool_call>", "tool_call", " ", "\n", "a b", "é", "<think>"])
)


@given(PIECES.map("".join))
def test_what_was_told_is_the_beginning_of_the_answer(text: str) -> None:
    answers = "".join(told(text)[1])
    try:
        answer = parse_turn(codec().decode(codec().turn(text))).answer
    except CallError:
        return  # Told as far as it looked like one; the stream then ends with an error.
    assert (answer or "").startswith(answers)


def test_what_was_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Spy:
        @staticmethod
        def search(text: str, begin: int) -> None:
            read.append(len(text) - begin)

    monkeypatch.setattr(stream, "TAG", Spy)
    told("a word and another " * 40)
    assert len(read) > 40 and max(read) < 60


def test_a_tag_counts_once_it_is_one_and_not_before() -> None:
    assert "".join(told("as <tool_calls say, all is well today, and so on")[1]).endswith("well today, and so")
    assert "".join(told("as <tool_call say, all is well today, and so on")[1]) == "as"
