"""What judges are asked, and how their replies are read: an unreadable one is no score."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import ConfigError, JudgeError
from orchestra.rewards.rubrics import FRAMES, HLE, RUBRICS, rubric


def extracted(**other: object) -> str:
    said = {"extracted_final_answer": "7", "reasoning": "equal", "correct": "yes", "confidence": 80, "strict": True}
    return json.dumps(said | other)


LABELS = {
    "hle": ("[question]: ", "[response]: ", "[correct_answer]: "),
    "frames": ("- Question: ", "- Predicted Answer: ", "- Ground Truth Answer: "),
    "calls": ("===Request===\n", "===What the assistant did and said===\n", "===Known solution===\n"),
}
"""What stands before the question, the response and the reference."""


@pytest.mark.parametrize("name", sorted(RUBRICS))
def test_a_prompt_holds_question_response_and_reference_whatever_they_contain(name: str) -> None:
    (message,) = rubric(name).messages("how {many}?", "seven {0}", "7 {x}")
    assert message.role == "user"
    for label, text in zip(LABELS[name], ("how {many}?", "seven {0}", "7 {x}"), strict=True):
        assert f"{label}{text}\n" in message.content
    assert "{question}" not in message.content and "{response}" not in message.content


def test_an_object_of_hle_is_read_alone_and_in_a_fence() -> None:
    for reply in (extracted(), f"```json\n{extracted()}\n```", f"  ```\n{extracted()}\n```\n"):
        said = HLE.ruling(reply)
        assert (said.solved, said.extracted, said.confidence) == (True, "7", 80)
    assert not HLE.ruling(extracted(correct="no")).solved
    assert [HLE.ruling(extracted(confidence=one)).confidence for one in (-5, 0, 100, 130)] == [0, 0, 100, 100]


@pytest.mark.parametrize("reply", ["", "yes", "{", extracted(correct="maybe"), extracted(confidence="high"), "[1]"])
def test_what_cannot_be_read_is_no_verdict_of_hle(reply: str) -> None:
    with pytest.raises(JudgeError, match="cannot be read"):
        HLE.ruling(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "Explanation: equal\nDecision: TRUE",
        '"Explanation:" equal\n"Decision:" "TRUE"',
        "**Decision:** true",
        "Decision:\nTRUE",
        "Decision: TRUE\n…\nSo it stays:\nDecision: TRUE",
    ],
)
def test_a_decision_counts_however_it_is_written(reply: str) -> None:
    assert FRAMES.ruling(reply).solved
    turned = reply.replace("FALSE", "-").replace("TRUE", "FALSE").replace("true", "False")
    assert not FRAMES.ruling(turned).solved


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "TRUE",
        "The decision is hard.",
        "Decision: MAYBE",
        '"Decision:" ("TRUE" or "FALSE")',
        "Decision: TRUE/FALSE",
        "Decision: TRUEST",
    ],
)
def test_what_decides_nothing_is_no_verdict_of_frames(reply: str) -> None:
    with pytest.raises(JudgeError, match="cannot be read"):
        FRAMES.ruling(reply)


def test_an_unknown_rubric_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigError, match="one of: hle, frames"):
        rubric("other")


DECIDES = ["Decision: {}", '"Decision:" "{}"', "**Decision:** {}", "> Decision: {}", "- decision = {}", "DECISION\n{}"]
TELLS = ["My decision is {}.", 'It says "Decision: {}" itself.', "so decision: {}", *DECIDES]
FILLERS = ["Explanation: equal.", "", "The response quotes:", "```", "***", "On reflection:", '("TRUE" or "FALSE")']


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    lines=st.lists(st.tuples(st.sampled_from(TELLS), st.booleans()), min_size=1, max_size=4),
    own=st.tuples(st.sampled_from(DECIDES), st.booleans()),
    fillers=st.lists(st.sampled_from(FILLERS), min_size=6, max_size=6),
    at=st.integers(0, 4),
)
def test_a_reply_that_says_both_is_no_verdict_and_one_that_says_one_is_that(
    lines: list[tuple[str, bool]], own: tuple[str, bool], fillers: list[str], at: int
) -> None:
    """Wherever the judge's own decision stands among those that it quotes."""
    said = [*lines[:at], own, *lines[at:]]
    reply = "\n".join(
        part
        for (form, true), filler in zip(said, fillers, strict=False)
        for part in (filler, form.format("TRUE" if true else "FALSE"))
    )
    if len({true for _, true in said}) == 1:
        assert FRAMES.ruling(reply).solved is own[1]
    else:
        with pytest.raises(JudgeError, match="cannot be read"):
            FRAMES.ruling(reply)


KEYS = st.sampled_from(['"correct"', '"c\\u006frrect"', '"Correct"', '" correct"', '"CORRECT "'])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(extra=st.lists(st.tuples(KEYS, st.sampled_from(["yes", "no"])), max_size=3), own=st.sampled_from(["yes", "no"]))
def test_two_values_of_a_key_are_no_verdict_of_hle(extra: list[tuple[str, str]], own: str) -> None:
    before = "".join(f'{key}: "{value}", ' for key, value in extra)
    reply = "{" + before + extracted(correct=own)[1:]
    for text in (reply, f"```json\n{reply}\n```"):
        if all(value == own for _, value in extra):
            assert HLE.ruling(text).solved is (own == "yes")
        else:
            with pytest.raises(JudgeError, match="cannot be read"):
                HLE.ruling(text)
