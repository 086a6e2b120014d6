"""Eq. 5-6: what a solved episode is worth against the reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.evaluation.preference import preference_score
from orchestra.types import Preference
from tests.support.worlds import NEUTRAL, episode

CHEAP = Preference(kind="cheap", words="", outcome=0, compute=1, latency=0)


def test_worked_example() -> None:
    wish = Preference(kind="prefer", words="", outcome=1, compute=0.5, latency=0.25, tools={"gpt-5": 0.1, "search": 1})
    ours = episode(cost_usd="0.002", latency_s=10, calls={"gpt-5": 1, "search": 3})
    reference = episode(cost_usd="0.004", latency_s=40, calls={"gpt-5": 2})
    # gpt-5: 0.1 * 1/2; search: 1 * 3/1; outcome 1; cost 0.5 * 40/20; latency 0.25 * 40/10.
    assert preference_score(ours, reference, wish) == pytest.approx(0.05 + 3 + 1 + 1 + 1)


def test_unsolved_is_zero_and_unknown_is_unknown() -> None:
    assert preference_score(episode(solved=False), episode(), NEUTRAL) == 0
    assert preference_score(episode(solved=None), episode(), NEUTRAL) is None
    assert preference_score(episode(), episode(solved=None), NEUTRAL) is None


def test_a_free_episode_divides_by_one_unit() -> None:
    assert preference_score(episode(cost_usd=0), episode(cost_usd="0.001"), CHEAP) == pytest.approx(10)


money = st.floats(0, 10).map(lambda value: round(value, 6))


@given(money, money, money)
def test_dearer_is_never_better(cost: float, more: float, reference: float) -> None:
    base = episode(cost_usd=reference)
    cheap, dear = (preference_score(episode(cost_usd=c), base, CHEAP) for c in (cost, cost + more))
    assert cheap is not None and dear is not None and dear <= cheap + 1e-12


@given(money, money, st.booleans())
def test_never_negative_and_the_reference_scores_its_weights(cost: float, latency: float, solved: bool) -> None:
    ours = episode(cost_usd=cost, latency_s=latency, solved=solved)
    score = preference_score(ours, ours, NEUTRAL)
    assert score is not None and 0 <= score <= NEUTRAL.outcome + NEUTRAL.compute + NEUTRAL.latency + 1e-9


@given(money, money, money)
def test_slower_is_never_better(seconds: float, more: float, reference: float) -> None:
    fast = Preference(kind="fast", words="", outcome=0, compute=0, latency=1)
    base = episode(latency_s=reference)
    quick, slow = (preference_score(episode(latency_s=s), base, fast) for s in (seconds, seconds + more))
    assert quick is not None and slow is not None and slow <= quick + 1e-12


@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5))
def test_a_tool_that_is_liked_counts_by_its_calls_against_the_reference(calls: int, more: int, before: int) -> None:
    """M / max(1, M0): a reference without a call divides by one, not by nothing."""
    wish = Preference(kind="prefer", words="", outcome=0, compute=0, latency=0, tools={"gpt-5": 0.4})
    base = episode(calls={"gpt-5": before, "search": 3})
    few, many = (preference_score(episode(calls={"gpt-5": n, "search": 1}), base, wish) for n in (calls, calls + more))
    assert few == pytest.approx(0.4 * calls / max(1, before))
    assert many is not None and few is not None and many > few


@given(money, money, st.booleans())
def test_solved_is_worth_at_least_its_outcome_weight(cost: float, latency: float, solved_before: bool) -> None:
    base = episode(cost_usd=cost, latency_s=latency, solved=solved_before)
    score = preference_score(episode(cost_usd=latency, latency_s=cost), base, NEUTRAL)
    assert score is not None and score >= NEUTRAL.outcome - 1e-12
