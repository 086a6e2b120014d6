"""pass^k and pass@k are the chances of k fresh trials."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.statistics.trials import pass_all, pass_any, pass_rates


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_they_are_the_shares_of_all_choices_of_k_trials(trials: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(trials)))
    chosen = list(combinations(trials, k))
    assert pass_all(sum(trials), len(trials), k) == pytest.approx(sum(map(all, chosen)) / len(chosen))
    assert pass_any(sum(trials), len(trials), k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


def test_rates_go_up_to_the_fewest_trials_and_meet_at_one() -> None:
    verdicts = {"a": [True, True, False, True], "b": [False, True, False], "left out": []}
    rates = pass_rates(verdicts, 50, 0)
    assert [rate.k for rate in rates] == [1, 2, 3]
    assert rates[0].all.value == pytest.approx((3 / 4 + 1 / 3) / 2) == rates[0].any.value
    assert rates[2].all.value == pytest.approx(1 / 8) and rates[2].any.value == 1.0
    assert pass_rates({"a": [True]}, 50, 0) == () == pass_rates({}, 50, 0)
    assert [rate.k for rate in pass_rates({"a": [True, False]}, 50, 0)] == [1, 2]


@pytest.mark.parametrize("k", [0, 3])
def test_more_trials_than_there_are_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match="of 2 trials"):
        pass_all(1, 2, k)
