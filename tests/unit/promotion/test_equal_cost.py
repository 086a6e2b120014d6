"""The best rule at the candidate's cost is measured on the examples that all have."""

import pytest

from orchestra.promotion.equal_cost import at_equal_cost
from orchestra.promotion.evidence import Result, Results


def found(solved: dict[str, float], cost_usd: float) -> Results:
    return {key: Result(solved=one, cost_usd=cost_usd, latency_s=1.0) for key, one in solved.items()}


OURS = found({"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0}, 0.02)


def test_only_examples_that_every_rule_has_count() -> None:
    rules = {
        "cascade": found({"a": 1.0, "b": 0.0, "c": 0.0, "other": 1.0}, 0.01),
        "knn_router": found({"b": 1.0, "c": 1.0, "a": 1.0, "d": 0.0}, 0.03),
    }
    rival = at_equal_cost(OURS, rules)
    assert rival is not None and rival.shares == pytest.approx({"cascade": 0.5, "knn_router": 0.5})
    assert (rival.accuracy, rival.gain.value) == pytest.approx((2 / 3, 0.0)) and rival.cost_usd == pytest.approx(0.02)
    assert at_equal_cost(OURS, rules, 0.8) != rival == at_equal_cost(OURS, rules, 0.95)
    alone = at_equal_cost(OURS, {"knn_router": rules["knn_router"]})
    assert alone is not None and alone.name == "knn router" and alone.accuracy == 0.75


def test_without_a_rule_or_a_shared_example_there_is_nothing_to_compare_with() -> None:
    assert at_equal_cost(OURS, {}) is None
    assert at_equal_cost(OURS, {"cascade": found({"other": 1.0}, 0.01)}) is None
    assert at_equal_cost({}, {"cascade": found({"a": 1.0}, 0.01)}) is None
