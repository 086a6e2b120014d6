"""The gate promotes what passes every check, and answers anything else with reasons."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.schema import Promote
from orchestra.evaluation.decision_page import summary
from orchestra.evaluation.promotion_gate import Evidence, gate

THRESHOLDS = Promote(
    model_name="orchestrator",
    min_accuracy=0.6,
    min_valid=0.9,
    max_cost_ratio=0.8,
    min_accuracy_gain=0.0,
    accuracy_gain_margin=0.01,
    champion_accuracy_margin=0.01,
    champion_cost_ratio=1.1,
)
GOOD = {
    "accuracy": 0.8,
    "valid": 0.97,
    "cost_usd": 0.01,
    "cost_ratio": 0.3,
    "accuracy_gain": 0.05,
    "accuracy_gain_high": 0.08,
    "failed_share": 0.0,
}


def evidence(metrics: Mapping[str, float | None] | None = None, data_hash: str = "d") -> Evidence:
    return Evidence(checkpoint_hash="c", data_hash=data_hash, metrics={**GOOD, **(metrics or {})})


def failed(candidate: Evidence, champion: Evidence | None = None) -> set[str]:
    decision = gate(candidate, THRESHOLDS, champion)
    assert decision.promoted == (not decision.failed)
    assert decision.name == ("Promoted" if decision.promoted else "Rejected")
    return {check.name for check in decision.failed}


def test_the_first_promotion_needs_no_champion() -> None:
    decision = gate(evidence(), THRESHOLDS)
    assert decision.promoted and decision.reasons[-1].reason == "there is no champion to compare with"


@pytest.mark.parametrize(
    ("metric", "value", "check"),
    [
        ("accuracy", 0.59, "accuracy"),
        ("valid", 0.89, "valid turns"),
        ("cost_ratio", 0.81, "cost"),
        ("accuracy_gain", -0.011, "gain over SFT"),
        ("accuracy_gain_high", -0.001, "gain over SFT, interval"),
        ("failed_share", 0.06, "infrastructure failures"),
    ],
)
def test_each_threshold_refuses_alone(metric: str, value: float, check: str) -> None:
    assert failed(evidence({metric: value})) == {check}


@pytest.mark.parametrize(
    "metric", ["accuracy", "valid", "cost_ratio", "accuracy_gain", "accuracy_gain_high", "failed_share"]
)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_refused_with_a_reason(metric: str, value: float | None) -> None:
    found = gate(evidence({metric: value}), THRESHOLDS)
    assert [check.measured for check in found.failed] == [None]
    assert metric in found.failed[0].reason and metric in summary(found)


def test_no_metrics_at_all_is_refused() -> None:
    assert len(failed(Evidence(checkpoint_hash="", data_hash="", metrics={}))) == 6


def test_bars_are_met_by_equality() -> None:
    at_the_bar = {"accuracy": 0.6, "valid": 0.9, "cost_ratio": 0.8, "failed_share": 0.05}
    assert not failed(evidence({**at_the_bar, "accuracy_gain": -0.01, "accuracy_gain_high": 0.0}))


@pytest.mark.parametrize(
    ("gain", "high", "wanted", "refused"),
    [
        (-0.004, 0.017, 0.0, set()),
        (-0.004, -0.001, 0.0, {"gain over SFT, interval"}),
        (-0.03, 0.02, 0.0, {"gain over SFT"}),
        (-0.03, -0.02, 0.0, {"gain over SFT", "gain over SFT, interval"}),
        (0.045, 0.07, 0.05, set()),
        (0.03, 0.07, 0.05, {"gain over SFT"}),
        (0.045, 0.049, 0.05, {"gain over SFT, interval"}),
    ],
)
def test_a_fall_is_refused_when_chance_or_the_margin_do_not_cover_it(
    gain: float, high: float, wanted: float, refused: set[str]
) -> None:
    found = evidence({"accuracy_gain": gain, "accuracy_gain_high": high})
    decision = gate(found, THRESHOLDS.model_copy(update={"min_accuracy_gain": wanted}))
    assert {check.name for check in decision.failed} == refused


@pytest.mark.parametrize(
    ("champion", "checks"),
    [
        ({"accuracy": 0.80, "cost_usd": 0.01}, set()),
        ({"accuracy": 0.82, "cost_usd": 0.01}, {"accuracy against champion"}),
        ({"accuracy": 0.7, "cost_usd": 0.009}, {"cost against champion"}),
        ({"accuracy": None, "cost_usd": math.nan}, {"accuracy against champion", "cost against champion"}),
    ],
)
def test_the_champion_must_be_matched(champion: dict[str, float | None], checks: set[str]) -> None:
    assert failed(evidence(), evidence(champion)) == checks


def test_a_champion_on_other_data_is_compared_with_and_that_is_said() -> None:
    decision = gate(evidence(), THRESHOLDS, evidence({"accuracy": 0.99}, "other"))
    assert [check.name for check in decision.failed] == ["accuracy against champion"]
    assert all("other data" in check.reason for check in decision.reasons[-2:])


metrics = st.floats(allow_nan=True, allow_infinity=True) | st.none()


@given(st.fixed_dictionaries({name: metrics for name in GOOD}), st.fixed_dictionaries({name: metrics for name in GOOD}))
def test_any_numbers_make_a_decision_and_only_finite_ones_a_promotion(
    ours: dict[str, float | None], theirs: dict[str, float | None]
) -> None:
    decision = gate(evidence(ours), THRESHOLDS, evidence(theirs))
    assert summary(decision)
    if decision.promoted:
        assert all(value is not None and math.isfinite(value) for name, value in ours.items())


@given(st.floats(0, 1), st.floats(0, 0.5))
def test_more_accuracy_never_turns_a_promotion_into_a_refusal(accuracy: float, more: float) -> None:
    champion = evidence({"accuracy": 0.75})
    before, after = (
        gate(evidence({"accuracy": a}), THRESHOLDS, champion).promoted for a in (accuracy, accuracy + more)
    )
    assert after or not before
