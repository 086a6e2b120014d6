"""Examples made by hand."""

from typing import Any

import pytest

from orchestra.errors import ConfigError
from orchestra.rollout.question import question
from orchestra.tools.toolkit import Toolkit


def test_an_example_is_named_by_its_text_or_by_an_id_of_its_own(tools: Toolkit) -> None:
    first, second = question("what is 3*4?", tools, answer="12"), question("what is 3*4?", tools, answer="12", id="b")
    assert (first.id, second.id, second.instruction) == ("what is 3*4?", "b", "what is 3*4?")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"answer": 42}, r"verifier|answer: Input should be a valid string \(got 42\)"),
        ({"answer": "12", "preference": "cheap"}, "preference: .*instance of Preference"),
        ({"tools": ["gpt-5", "calculator", "gpt-5"]}, "gpt-5 is offered twice"),
    ],
)
def test_what_is_no_example_is_refused_in_one_line(tools: Toolkit, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        question("what is 3*4?", tools, **given)
    assert "\n" not in str(caught.value)
