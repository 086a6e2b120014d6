"""Examples on disk: which of them a training may see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.files.examples import split_watched
from tests.support.worlds import example

EXAMPLES = [example(f"e{number}") for number in range(12)]


@given(st.integers(1, 11))
def test_the_watched_examples_are_the_last_and_trained_on_by_nobody(count: int) -> None:
    train, watched = split_watched(EXAMPLES, count, where="train.jsonl")
    assert train + watched == EXAMPLES and len(watched) == count
    assert not {one.id for one in train} & {one.id for one in watched}


@pytest.mark.parametrize("count", [12, 13])
def test_something_must_be_left_to_train_on(count: int) -> None:
    with pytest.raises(DataError, match=f"train.jsonl: 12 examples, {count} of them to watch"):
        split_watched(EXAMPLES, count, where="train.jsonl")
