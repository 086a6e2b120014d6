"""Choices: each is carried out as it says, and trying them at random favours nobody."""

import random
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.training.choices import (
    ANSWER,
    CHOICES,
    NAMED,
    ORDER,
    OTHER,
    OTHERS,
    SEARCH,
    WORDS,
    Candidate,
    Mark,
    carried_out,
    drawn,
)
from orchestra.types import ToolKind
from tests.support.worlds import catalogue

SPEC = catalogue().spec(catalogue().names(ToolKind.EXPERT)[0])


def one(name: str, usd: str, seconds: float, grade: str, mark: Mark = "") -> Candidate:
    changes = {"name": name, "call_usd": Decimal(usd), "latency_s": seconds}
    return Candidate(SPEC.model_copy(update=changes), grade, mark)


FOUR = (
    one("a", "0.001", 20, "some"),
    one("b", "0.002", 10, "expert"),
    one("c", "0.03", 90, "strong"),
    one("d", "0.2", 150, "good"),
)


@pytest.mark.parametrize(
    ("choice", "name"),
    [("cheapest", "a"), ("priciest", "d"), ("fastest", "b"), ("strongest", "c"), ("best", "b")],
)
def test_a_choice_asks_whom_it_says(choice: str, name: str) -> None:
    asked = carried_out(choice, FOUR)
    assert asked is not None and asked.spec.name == name
    others = [each for each in FOUR if each.spec.name != name]
    marked = [*others, Candidate(asked.spec, asked.grade, "not")]
    other, named = carried_out(f"{OTHER}-{choice}", marked), carried_out(NAMED, marked)
    assert other == carried_out(choice, others)
    assert named is not None and named.spec.name == name


def test_a_poor_expert_is_asked_where_it_is_named_or_nobody_else_is_left() -> None:
    poor = one("p", "0.0001", 1, "poor", "like")
    for word in WORDS:
        assert carried_out(word, [*FOUR, poor]) != poor
        assert carried_out(word, [poor]) == poor
    assert carried_out(NAMED, [*FOUR, poor]) == poor
    assert carried_out(NAMED, FOUR) is None and carried_out(SEARCH, FOUR) is None and carried_out(ANSWER, FOUR) is None


@given(st.permutations(FOUR), st.sampled_from(WORDS))
def test_the_order_of_the_list_does_not_matter(left: list[Candidate], word: str) -> None:
    assert carried_out(word, left) == carried_out(word, FOUR)


def test_every_choice_is_about_as_likely() -> None:
    rng = random.Random(0)
    drawn_ones = Counter(drawn(rng, FOUR, strongest=0.0, search=True) for _ in range(6000))
    assert set(drawn_ones) == {*WORDS, SEARCH}
    assert all(count / 6000 == pytest.approx(1 / 6, abs=0.02) for count in drawn_ones.values())
    later = Counter(drawn(rng, FOUR, strongest=0.0, search=False, answer=0.5) for _ in range(2000))
    assert later[ANSWER] / 2000 == pytest.approx(0.5, abs=0.04)


def shares(marks: str, *, strongest: float = 0.0) -> dict[str, float]:
    """How often each choice is drawn where the experts with an x are named by the preference."""
    rng = random.Random(2)
    left = [Candidate(e.spec, e.grade, "like" if mark == "x" else "") for e, mark in zip(FOUR, marks, strict=True)]
    found = Counter(drawn(rng, left, strongest=strongest, search=False) for _ in range(4000))
    return {choice: count / 4000 for choice, count in found.items()}


def test_habits_have_their_shares() -> None:
    habit = shares("....", strongest=0.5)
    assert habit.keys() == set(WORDS)
    assert all(share == pytest.approx(0.5 if word == "strongest" else 0.125, abs=0.03) for word, share in habit.items())
    some = shares(".x..")
    assert some.keys() == {NAMED, *WORDS, *OTHERS}
    assert some[NAMED] == pytest.approx(0.2, abs=0.03)
    assert sum(some[one] for one in OTHERS) == pytest.approx(0.6, abs=0.03)
    # Where all are named there is no other to ask.
    assert shares("xxxx").keys() == {NAMED, *WORDS}


def test_where_nobody_is_left_it_searches_or_answers() -> None:
    rng = random.Random(0)
    assert {drawn(rng, (), strongest=0.5, search=True) for _ in range(9)} == {SEARCH}
    assert {drawn(rng, (), strongest=0.5, search=False) for _ in range(9)} == {ANSWER}
    assert {drawn(rng, (), strongest=0.5, search=True, answer=0.1) for _ in range(9)} == {ANSWER}
    assert all(carried_out(choice, ()) is None for choice in CHOICES)


@pytest.mark.parametrize("mark", ["like", "not"])
def test_a_wish_that_names_somebody_changes_neither_how_often_it_is_asked_nor_by_which_words(mark: Mark) -> None:
    rng = random.Random(1)
    uses = {"": 0, mark: 0}
    for _ in range(12_000):
        chosen = rng.randrange(len(FOUR))
        for said in uses:
            left = [Candidate(e.spec, e.grade, said if i == chosen else "") for i, e in enumerate(FOUR)]
            asked = carried_out(drawn(rng, left, strongest=0.0, search=False), left)
            uses[said] += asked is not None and asked.spec.name == FOUR[chosen].spec.name
    assert 0.6 < uses[mark] / uses[""] < 1.1


def test_grades_are_ranked_once() -> None:
    assert len(set(ORDER)) == len(ORDER)
