"""Rates, intervals and differences, with infrastructure failures left out and counted."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.evaluation.statistics import (
    BLOCK,
    Interval,
    bootstrap_means,
    flat_metrics,
    mean_interval,
    paired_difference,
    paired_ratio,
    summarise,
)
from orchestra.types import Category, Episode
from tests.support.worlds import episode, example


def attempts(solved: Sequence[bool | None], cost_usd: float = 0.01, calls: str = "gpt-5") -> list[Episode]:
    return [
        episode(solved=one, cost_usd=cost_usd, latency_s=2, calls={calls: 1}).model_copy(update={"example_id": f"e{n}"})
        for n, one in enumerate(solved)
    ]


EXAMPLES = [example(f"e{n}", category=Category.TOPIC if n % 2 else Category.FACT) for n in range(10)]


def test_summary_of_two_policies() -> None:
    ours = attempts([True] * 8 + [False, None], cost_usd=0.01)
    strongest = attempts([True] * 5 + [False] * 5, cost_usd=0.04, calls="nonsense")
    found = summarise(
        {"grpo": ours, "strong": strongest}, EXAMPLES, reference="strong", strongest="strong", bootstrap=200, seed=0
    )
    summary = found["grpo"]
    assert (summary.examples, summary.failed) == (9, 1)
    assert summary.accuracy.value == pytest.approx(8 / 9)
    assert summary.accuracy.low is not None and summary.accuracy.low < 8 / 9 <= (summary.accuracy.high or 0)
    assert [summary.cost_usd.value, summary.cost_usd.low, summary.cost_usd.high] == pytest.approx([0.01] * 3)
    assert summary.cost_ratio.value == pytest.approx(0.25)
    # On the nine shared examples the reference solves five.
    assert summary.accuracy_gain.value == pytest.approx(3 / 9)
    # Neutral P of the tests' world: 0.3 a unit of dollars (a quarter spent), 0.1 a unit of seconds (as many).
    assert summary.utility.value == pytest.approx(8 / 9 - 0.3 * 0.25 - 0.1)
    assert summary.valid == 1.0 and summary.turns == 2 and summary.calls == 1
    assert summary.tool_shares == {"gpt-5": 1.0} and found["strong"].tool_shares == {"unknown": 1.0}
    assert summary.stops == {"answered": 9, "tool_failure": 1}
    assert summary.categories[Category.FACT].accuracy == pytest.approx(4 / 5)
    assert summary.categories[Category.TOPIC].examples == 4
    flat = flat_metrics(found)
    assert flat["grpo.accuracy"] == pytest.approx(8 / 9) and flat["grpo.accuracy.fact"] == pytest.approx(0.8)
    assert all(math.isfinite(value) for value in flat.values())


def test_valid_is_the_share_of_turns_that_parse() -> None:
    broken = [episode(parse_error="no", calls={"gpt-5": 3}).model_copy(update={"example_id": "e0"})]
    found = summarise({"a": broken}, EXAMPLES, reference="sft", strongest="b", bootstrap=10, seed=0)["a"]
    assert found.valid == 0.75
    assert found.preference == found.utility == found.cost_ratio == found.accuracy_gain == Interval()


def test_nothing_counted_is_empty_and_not_zero() -> None:
    found = summarise({"a": attempts([None])}, EXAMPLES, reference="a", strongest="a", bootstrap=10, seed=0)["a"]
    assert found.examples == 0 and found.accuracy == Interval() and found.valid is None
    assert flat_metrics({"a": found}) == {"a.examples": 0.0, "a.failed": 1.0}


def test_a_free_strongest_gives_no_ratio() -> None:
    free = attempts([True] * 3, cost_usd=0)
    found = summarise({"s": free}, EXAMPLES, reference="s", strongest="s", bootstrap=10, seed=0)["s"]
    assert found.cost_ratio == Interval() and found.utility == Interval()


def test_bootstrap_covers_a_known_mean() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        sample = (generator.random(150) < 0.7).astype(float)
        interval = mean_interval(sample.tolist(), 400, seed)
        assert interval.low is not None and interval.high is not None
        hits += interval.low <= 0.7 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def test_blocks_do_not_change_the_draws() -> None:
    values = np.arange(20.0).reshape(10, 2)
    resamples = BLOCK // values.size + 7  # one block and a little
    rows = np.random.default_rng(3).integers(0, 10, size=(resamples, 10))
    assert np.array_equal(bootstrap_means(values, resamples, 3), values[rows].mean(axis=1))


def test_paired_difference_is_narrower_than_its_parts() -> None:
    generator = np.random.default_rng(0)
    theirs = {str(n): float(generator.random() < 0.5) for n in range(300)}
    ours = {key: max(value, float(generator.random() < 0.1)) for key, value in theirs.items()}
    difference = paired_difference(ours, {**theirs, "only theirs": 1.0}, 500, 0)
    alone = mean_interval(list(ours.values()), 500, 0)
    assert difference.low is not None and difference.high is not None and difference.low > 0
    assert difference.high - difference.low < (alone.high or 0) - (alone.low or 0)


shared = st.dictionaries(st.text(max_size=3), st.floats(0.001, 100), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(shared, st.floats(0.1, 10))
def test_ratio_of_a_scaled_policy_is_the_scale(theirs: dict[str, float], scale: float) -> None:
    ratio = paired_ratio({key: value * scale for key, value in theirs.items()}, theirs, 20, 0)
    assert ratio.value == pytest.approx(scale) and ratio.low == pytest.approx(scale) == ratio.high


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(0, 5))
def test_intervals_are_ordered_and_repeatable(values: list[float], seed: int) -> None:
    one = mean_interval(values, 50, seed)
    assert one == mean_interval(values, 50, seed)
    assert one.low is not None and one.high is not None
    assert min(values) - 1e-9 <= one.low <= one.high <= max(values) + 1e-9
