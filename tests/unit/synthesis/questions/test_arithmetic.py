"""Sums in everyday wordings: each wording names its numbers, and the calculator reads what it is asked."""

import random
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.files.jsonl import read_jsonl
from orchestra.synthesis.questions.arithmetic import arithmetic, in_words
from orchestra.synthesis.questions.arithmetic_words import FORMS, ORDERS
from orchestra.synthesis.questions.everyday import direct
from orchestra.synthesis.questions.stories import STORIES
from orchestra.synthesis.questions.surface import misspelt
from orchestra.tools.calculator import evaluate, printed
from orchestra.types import Record
from tests.support.worlds import ROOT

LETTER = re.compile(r"\{(\w+)\}")
DISTRACTING = {"x", "y"}
CONSTANTS = {"2", "3", "4", "7", "10", "12", "24", "60", "100", "1000", "1000000"}


@pytest.mark.parametrize(("form", "wordings"), [*STORIES, *FORMS, *ORDERS])
def test_every_wording_names_the_numbers_of_its_sum(form: str, wordings: tuple[str, ...]) -> None:
    for wording in wordings:
        said = {"u" if letter == "plural" else letter for letter in LETTER.findall(wording)}
        assert said - DISTRACTING == set(LETTER.findall(form))


def test_the_calculator_is_asked_with_the_numbers_as_they_were_written() -> None:
    """Mostly by the question itself; else in a sum of its numbers, of which a few are said in words alone."""
    drafts = list(islice(arithmetic(random.Random(1), set()), 600))
    itself = copied = 0
    for draft in drafts:
        arguments = draft.golden_calls[0].arguments
        itself += not arguments
        asked = str(arguments.get("expression", draft.instruction))
        numbers = set(re.findall(r"\d[\d,.]*", asked)) - CONSTANTS
        copied += all(number.rstrip(".,") in draft.instruction for number in numbers)
        assert printed(evaluate(asked)) == draft.answer
    assert 400 < itself < 500 and copied > 580


@given(st.integers(0, 999_999), st.sampled_from([" ", "-"]))
def test_numbers_in_words_are_read_again(number: int, joiner: str) -> None:
    assert evaluate(in_words(str(number), joiner)) == number


@given(st.integers(0, 10**6))
def test_a_slip_changes_one_word_of_the_question_and_of_its_part_alike(seed: int) -> None:
    question, part = "Please tell me what twenty plus fifteen comes to.", "twenty plus fifteen"
    changed, inside = misspelt(random.Random(seed), question, part)
    assert changed != question and len(changed) >= len(question) - 1
    assert inside in changed
    assert changed.count(" ") == question.count(" ")


class _Sample(Record):
    ask: str
    expect: str
    why: str


@pytest.fixture(scope="module")
def given_words() -> set[str]:
    """The words of six thousand instructions."""
    rng = random.Random(3)
    made = [*islice(arithmetic(rng, set()), 3000), *islice(direct(rng, "train"), 3000)]
    return {" ".join(re.findall(r"\w+", draft.instruction.lower())) for draft in made}


@pytest.mark.parametrize("file", ["first_contact", "newcomers", "strangers"])
def test_no_first_question_is_trained_on(given_words: set[str], file: str) -> None:
    """Greetings and bare sums aside, which everybody writes alike."""
    samples = read_jsonl(ROOT / f"tests/data/wording/{file}.jsonl", _Sample)
    asked = {" ".join(re.findall(r"\w+", one.ask.lower())) for one in samples}
    assert not {one for one in asked & given_words if one.count(" ") > 3}
