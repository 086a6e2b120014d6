"""What judges are asked, and how their replies are read: an unreadable one is no score."""

import json

import pytest

from orchestra.errors import ConfigError, JudgeError
from orchestra.rewards.rubrics import FRAMES, HLE, RUBRICS, rubric


def extracted(**other: object) -> str:
    said = {"extracted_final_answer": "7", "reasoning": "equal", "correct": "yes", "confidence": 80, "strict": True}
    return json.dumps(said | other)


@pytest.mark.parametrize("name", sorted(RUBRICS))
def test_a_prompt_holds_question_response_and_reference_whatever_they_contain(name: str) -> None:
    (message,) = rubric(name).messages("how {many}?", "seven {0}", "7 {x}")
    assert message.role == "user"
    assert all(text in message.content for text in ("how {many}?", "seven {0}", "7 {x}"))
    assert "{question}" not in message.content and "{response}" not in message.content


def test_an_object_of_hle_is_read_alone_and_in_a_fence() -> None:
    for reply in (extracted(), f"```json\n{extracted()}\n```", f"  ```\n{extracted()}\n```\n"):
        said = HLE.ruling(reply)
        assert (said.solved, said.extracted, said.confidence) == (True, "7", 80)
    assert not HLE.ruling(extracted(correct="no")).solved
    assert HLE.ruling(extracted(confidence=130)).confidence == 100


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
        "Decision: FALSE\n…\nOn reflection:\nDecision: TRUE",
    ],
)
def test_the_last_decision_counts(reply: str) -> None:
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
