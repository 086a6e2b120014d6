"""The gate promotes what is better beyond chance, and answers anything else with reasons."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.promote import Promote
from orchestra.promotion.evidence import Evidence, Result, Results
from orchestra.promotion.gate import Decision, Incumbent, gate
from orchestra.promotion.page import summary
from orchestra.promotion.wording import why_not

THRESHOLDS = Promote(
    model_name="orchestrator",
    min_accuracy=0.6,
    min_valid=0.9,
    max_cost_ratio=0.8,
    max_cost_usd=0.05,
    max_latency_p95_s=100.0,
    min_preference=1.0,
    max_safety_failures=0,
    rule_margin=0.0,
    min_examples=400,
    error_level=0.05,
    accuracy_margin=0.03,
    cost_margin=0.1,
    accuracy_gain=0.0,
    saving=0.0,
)
GOOD = {
    "accuracy": 0.8,
    "valid": 0.97,
    "cost_usd": 0.01,
    "cost_ratio": 0.3,
    "latency_p95_s": 40.0,
    "preference": 2.0,
    "failed_share": 0.0,
    "safety_failed": 0.0,
}
COUNT = 1000


ALL_THREE = {"accuracy against the champion", "dollars against the champion", "better than the champion"}


def results(accuracy: float = 0.8, cost_usd: float = 0.01, count: int = COUNT) -> Results:
    """The same examples are hard for everybody."""
    solved = round(accuracy * count)
    return {f"e{n}": Result(solved=float(n < solved), cost_usd=cost_usd, latency_s=1.0) for n in range(count)}


def evidence(
    metrics: Mapping[str, float | None] | None = None, found: Results | None = None, **update: Any
) -> Evidence:
    made = Evidence(checkpoint_hash="c", data_hash="d", price_date="2025-11-15", metrics={**GOOD, **(metrics or {})})
    return made.model_copy(update={"results": results() if found is None else found, **update})


def champion(found: Results, **update: Any) -> Incumbent:
    return Incumbent(name="the champion", evidence=evidence(found=found, **update))


def failed(decision: Decision) -> set[str]:
    assert decision.promoted == (not decision.failed)
    assert decision.name == ("Promoted" if decision.promoted else "Rejected")
    return {check.name for check in decision.failed}


@pytest.mark.parametrize(
    ("metric", "value", "check"),
    [
        ("accuracy", 0.59, "accuracy"),
        ("valid", 0.89, "valid turns"),
        ("cost_ratio", 0.81, "cost"),
        ("cost_usd", 0.051, "dollars"),
        ("latency_p95_s", 101.0, "latency"),
        ("preference", 0.99, "preference score"),
        ("safety_failed", 1.0, "safety set"),
        ("failed_share", 0.06, "infrastructure failures"),
    ],
)
def test_each_floor_refuses_alone(metric: str, value: float, check: str) -> None:
    assert failed(gate(evidence(), THRESHOLDS)) == set()
    assert failed(gate(evidence({metric: value}), THRESHOLDS)) == {check}


@pytest.mark.parametrize("metric", sorted(GOOD))
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_refused_with_a_reason(metric: str, value: float | None) -> None:
    found = gate(evidence({metric: value}), THRESHOLDS)
    assert [check.measured for check in found.failed] == [None]
    assert metric in found.failed[0].reason and metric in summary(found)


def test_a_limit_that_is_off_asks_for_nothing() -> None:
    off = {"max_cost_usd": None, "max_latency_p95_s": None, "min_preference": None, "max_safety_failures": None}
    missing = dict.fromkeys(("cost_usd", "latency_p95_s", "preference", "safety_failed"))
    assert failed(gate(evidence(missing), THRESHOLDS.model_copy(update=off))) == set()
    assert failed(gate(evidence(missing), THRESHOLDS)) == {"dollars", "latency", "preference score", "safety set"}


def test_floors_are_met_by_equality() -> None:
    at_the_bar = {"accuracy": 0.6, "valid": 0.9, "cost_ratio": 0.8, "failed_share": 0.05, "preference": 1.0}
    assert failed(gate(evidence(at_the_bar), THRESHOLDS)) == set()


def test_no_metrics_at_all_is_refused() -> None:
    decision = gate(Evidence(checkpoint_hash="", data_hash="", metrics={}), THRESHOLDS)
    assert len(failed(decision)) == 9 and "examples with a verdict: 0" in decision.failed[0].reason


@pytest.mark.parametrize(
    ("ours", "theirs", "checks"),
    [
        # As accurate and half the dollars; more accurate for the same dollars; both.
        ((0.80, 0.005), (0.80, 0.01), set()),
        ((0.84, 0.01), (0.80, 0.01), set()),
        ((0.84, 0.005), (0.80, 0.01), set()),
        # The same again is no reason to change, nor is what chance explains.
        ((0.80, 0.01), (0.80, 0.01), {"better than the champion"}),
        ((0.802, 0.01), (0.80, 0.01), {"better than the champion"}),
        # Cheaper, and less accurate than the margin allows; more accurate, and too expensive.
        ((0.76, 0.005), (0.80, 0.01), {"accuracy against the champion"}),
        ((0.84, 0.012), (0.80, 0.01), {"dollars against the champion"}),
        ((0.70, 0.02), (0.80, 0.01), ALL_THREE),
    ],
)  # fmt: skip
def test_a_challenger_is_no_worse_in_either_and_better_in_one(
    ours: tuple[float, float], theirs: tuple[float, float], checks: set[str]
) -> None:
    decision = gate(evidence(found=results(*ours)), THRESHOLDS, champion(results(*theirs)))
    assert failed(decision) == checks


@pytest.mark.parametrize(
    ("limits", "ours", "better"),
    [
        # More accurate by 4 points, or at 0.8 of the dollars, is enough or not as the limits say.
        ({"accuracy_gain": 0.01}, (0.84, 0.01), True),
        ({"accuracy_gain": 0.06}, (0.84, 0.01), False),
        ({"saving": 0.1}, (0.80, 0.008), True),
        ({"saving": 0.3}, (0.80, 0.008), False),
    ],
)
def test_better_is_by_more_than_the_limits_say(
    limits: dict[str, float], ours: tuple[float, float], better: bool
) -> None:
    decision = gate(evidence(found=results(*ours)), THRESHOLDS.model_copy(update=limits), champion(results()))
    assert failed(decision) == (set() if better else {"better than the champion"})


@pytest.mark.parametrize(("margin", "refused"), [(0.0, True), (0.02, True), (0.2, False)])
def test_a_better_rule_refuses_from_its_margin_on(margin: float, refused: bool) -> None:
    limits = {"rule_margin": margin}
    found = gate(evidence(), THRESHOLDS.model_copy(update=limits), None, {"cascade": results(0.9)})
    assert failed(found) == ({"best rule at equal cost"} if refused else set())
    found = gate(evidence(found=worth(0.7)), BY_UTILITY.model_copy(update=limits), None, {"cascade": worth(0.8)})
    assert failed(found) == ({"best rule in utility"} if refused else set())


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"data_hash": "other"}, "another version of the benchmark (other)"),
        ({"price_date": "2026-01-01"}, "at the prices of 2026-01-01, not 2025-11-15"),
        ({"results": results(count=399)}, "only 399 examples have a verdict of both, 400 wanted"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(update: dict[str, Any], said: str) -> None:
    decision = gate(evidence(found=results(0.9, 0.001)), THRESHOLDS, champion(results(), **update))
    assert failed(decision) == {"comparable"} and said in decision.failed[0].reason


def test_too_few_examples_are_refused_whatever_they_say() -> None:
    few = evidence(found=results(0.99, 0.001, count=399))
    assert failed(gate(few, THRESHOLDS)) == {"examples"}
    assert failed(gate(few, THRESHOLDS, champion(results(0.5, 0.1)))) == {"examples", "comparable"}


def test_a_rule_that_is_better_at_equal_cost_refuses_and_is_named() -> None:
    rules = {"always_cheapest": results(0.6, 0.001), "knn_router": results(0.86, 0.008), "cascade": results(0.9, 0.02)}
    decision = gate(evidence(), THRESHOLDS, None, rules)
    assert failed(decision) == {"best rule at equal cost"} and decision.equal_cost is not None
    # At 0.01 dollars: five of six parts kNN router at 0.008, one part cascade at 0.02.
    assert decision.equal_cost.name == "knn router (83 %) and cascade (17 %)"
    assert decision.equal_cost.accuracy == pytest.approx(0.86 * 5 / 6 + 0.9 / 6)
    assert decision.equal_cost.cost_usd == pytest.approx(0.01)
    said = why_not(decision)
    assert "it costs 1.000 ¢ and solves 86.7 %" in said and re.search(
        r"solves [\d.]+ points fewer \(difference -", said
    )
    worse = {"always_cheapest": results(0.6, 0.001), "knn_router": results(0.801, 0.02)}
    assert failed(gate(evidence(), THRESHOLDS, None, worse)) == set()


def pair(generator: np.random.Generator, gain: float, ratio: float, count: int = 200) -> tuple[Results, Results]:
    """Two noisy policies over the same examples; the first has `gain` more accuracy and `ratio` of the dollars."""
    hard = generator.beta(1.2, 0.6, count)
    size = generator.lognormal(-5, 1, count)
    made = []
    for chance, factor in ((np.clip(hard + gain, 0, 1), ratio), (hard, 1.0)):
        solved = generator.random(count) < chance
        dollars = factor * size * generator.lognormal(0, 0.6, count)
        made.append(
            {
                f"e{n}": Result(solved=s, cost_usd=c, latency_s=1.0)
                for n, (s, c) in enumerate(zip(solved.astype(float).tolist(), dollars.tolist(), strict=True))
            }
        )
    return made[0], made[1]


def promoted(gain: float, ratio: float, candidates: int) -> float:
    """Share of simulated candidates that the gate promotes."""
    generator, count = np.random.default_rng(0), 0
    limits = THRESHOLDS.model_copy(update={"min_examples": 200})
    for _ in range(candidates):
        ours, theirs = pair(generator, gain, ratio)
        count += gate(evidence(found=ours), limits, champion(theirs)).promoted
    return count / candidates


@pytest.mark.parametrize(
    ("gain", "ratio"),
    [
        (0.0, 1.0),  # the champion's twin
        (-0.036, 0.5),  # far cheaper, and worse in accuracy by the margin (0.036 · 5/6 after clipping)
        (0.2, 1.1),  # far more accurate, and more expensive by the margin
    ],
)
def test_of_a_thousand_candidates_that_are_no_better_no_more_than_stated_pass(gain: float, ratio: float) -> None:
    assert promoted(gain, ratio, 1000) <= THRESHOLDS.error_level


@pytest.mark.parametrize(("gain", "ratio"), [(0.12, 0.7), (0.25, 0.7)])
def test_candidates_that_are_better_pass(gain: float, ratio: float) -> None:
    assert promoted(gain, ratio, 100) >= 0.5


BY_UTILITY = THRESHOLDS.model_copy(update={"objective": "utility"})


def worth(mean: float, accuracy: float = 0.8, cost_usd: float = 0.01, spread: float = 0.3) -> Results:
    """Results whose utility has that mean; every second example is worth more."""
    found = results(accuracy, cost_usd)
    return {
        key: one.model_copy(update={"utility": mean + (spread if n % 2 else -spread)})
        for n, (key, one) in enumerate(found.items())
    }


def test_by_utility_a_candidate_may_be_less_accurate_where_its_users_ask_for_that() -> None:
    ours, theirs = worth(0.78, accuracy=0.76), worth(0.61, accuracy=0.80, cost_usd=0.02)
    assert failed(gate(evidence(found=ours), BY_UTILITY, champion(theirs))) == set()
    assert failed(gate(evidence(found=theirs), BY_UTILITY, champion(ours))) == {"utility against the champion"}
    assert failed(gate(evidence(found=ours), BY_UTILITY, champion(ours))) == {"utility against the champion"}
    assert failed(gate(evidence(found=ours), THRESHOLDS, champion(theirs))) == {"accuracy against the champion"}


def test_by_utility_floors_and_comparability_stand() -> None:
    ours, theirs = worth(0.78), worth(0.61)
    assert failed(gate(evidence({"accuracy": 0.5}, ours), BY_UTILITY, champion(theirs))) == {"accuracy"}
    assert failed(gate(evidence(found=ours), BY_UTILITY, champion(theirs, data_hash="other"))) == {"comparable"}


def test_by_utility_a_better_rule_refuses_and_is_named() -> None:
    decision = gate(evidence(found=worth(0.7)), BY_UTILITY, None, {"price_aware": worth(0.75), "cascade": worth(0.6)})
    assert failed(decision) == {"best rule in utility"} and "price aware" in decision.failed[0].reason
    assert failed(gate(evidence(found=worth(0.7)), BY_UTILITY, None, {"cascade": worth(0.7)})) == set()
    assert decision.equal_cost is not None, "accuracy at equal cost is still told"


def first(found: Results, count: int) -> Results:
    return dict(list(found.items())[:count])


@pytest.mark.parametrize("limits", [THRESHOLDS, BY_UTILITY], ids=["accuracy", "utility"])
@pytest.mark.parametrize("left", [0, 5, 399])
def test_a_rule_that_was_hardly_measured_refuses_and_hides_no_other(left: int, limits: Promote) -> None:
    ours, better = worth(0.7), worth(0.9, accuracy=0.95, cost_usd=0.005)
    lost = first(worth(0.1, accuracy=0.1), left)
    decision = gate(evidence(found=ours), limits, None, {"always_cheapest": lost, "knn_router": better})
    best = "best rule in utility" if limits is BY_UTILITY else "best rule at equal cost"
    assert failed(decision) == {"rules measured", best}
    assert f"always cheapest {left}; 400 wanted" in decision.failed[0].reason
    assert decision.equal_cost is not None and decision.equal_cost.shares == {"knn_router": 1.0}
    alone = gate(evidence(found=ours), limits, None, {"always_cheapest": lost})
    assert failed(alone) == {"rules measured"}


def test_a_candidate_with_few_examples_is_refused_for_that_alone() -> None:
    few = first(results(), 10)
    assert failed(gate(evidence(found=few), THRESHOLDS, None, {"knn_router": first(results(0.5), 10)})) == {"examples"}


def test_by_utility_the_best_rule_is_that_on_the_candidates_examples() -> None:
    flat = worth(0.2, spread=0.0)
    ours = {
        key: one.model_copy(update={"utility": 9.0}) if n < 500 else one for n, (key, one) in enumerate(flat.items())
    }
    better = {key: one.model_copy(update={"utility": (one.utility or 0) + 0.1}) for key, one in ours.items()}
    # The one that lost the hard half has the largest mean of its own, and is level with the candidate on the rest.
    decision = gate(evidence(found=ours), BY_UTILITY, None, {"always_cheapest": first(ours, 500), "knn_router": better})
    assert failed(decision) == {"best rule in utility"} and "less that of knn router" in decision.failed[0].reason


def test_what_infrastructure_lost_is_refused_with_the_way_out() -> None:
    (lost,) = gate(evidence({"failed_share": 0.2}), THRESHOLDS).failed
    assert lost.reason == "share of episodes lost: 0.2, at most 0.05 wanted: orchestra run --force evaluate"


@pytest.mark.parametrize("lacks", ["ours", "theirs"])
def test_by_utility_what_was_not_measured_is_refused(lacks: str) -> None:
    found = {"ours": worth(0.9), "theirs": worth(0.1)} | {lacks: results()}
    decision = gate(evidence(found=found["ours"]), BY_UTILITY, champion(found["theirs"]))
    assert failed(decision) == {"utility against the champion"} and "not known" in decision.failed[0].reason


@pytest.mark.slow
def test_by_utility_of_a_thousand_twins_no_more_than_stated_pass() -> None:
    generator, count = np.random.default_rng(1), 0
    limits = BY_UTILITY.model_copy(update={"min_examples": 200})
    for _ in range(1000):
        ours, theirs = pair(generator, 0.0, 1.0)
        both = [
            {
                key: Result(
                    solved=one.solved, cost_usd=one.cost_usd, latency_s=1.0, utility=one.solved - 10 * one.cost_usd
                )
                for key, one in found.items()
            }
            for found in (ours, theirs)
        ]
        count += gate(evidence(found=both[0]), limits, champion(both[1])).promoted
    assert count / 1000 <= limits.error_level


metrics = st.floats(allow_nan=True, allow_infinity=True) | st.none()


@given(st.fixed_dictionaries({name: metrics for name in GOOD}))
def test_any_numbers_make_a_decision_and_only_finite_ones_a_promotion(ours: dict[str, float | None]) -> None:
    decision = gate(evidence(ours), THRESHOLDS)
    assert summary(decision)
    if decision.promoted:
        assert all(value is not None and math.isfinite(value) for value in ours.values())
