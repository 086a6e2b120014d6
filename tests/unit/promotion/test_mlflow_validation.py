"""The gate beside `mlflow.validate_evaluation_results`: the same floors; and why it cannot compare with a champion."""

import math
from operator import ge, le
from statistics import fmean
from typing import Any

import mlflow
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow import models
from mlflow.models import evaluation as mlflow_evaluation
from mlflow.models.evaluation.validation import ModelValidationFailedException

from orchestra.promotion.gate import gate
from tests.unit.promotion.test_gate import GOOD, THRESHOLDS, champion, evidence, pair

# They have no annotations.
MetricThreshold: Any = models.MetricThreshold
EvaluationResult: Any = mlflow_evaluation.EvaluationResult
FLOORS = {
    "accuracy": (ge, THRESHOLDS.min_accuracy),
    "valid": (ge, THRESHOLDS.min_valid),
    "cost_ratio": (le, THRESHOLDS.max_cost_ratio),
    "cost_usd": (le, THRESHOLDS.max_cost_usd),
    "latency_p95_s": (le, THRESHOLDS.max_latency_p95_s),
    "preference": (ge, THRESHOLDS.min_preference),
    "safety_failed": (le, float(THRESHOLDS.max_safety_failures or 0)),
}
"""Every floor and ceiling of promote.* over a metric."""


def told(metrics: dict[str, Any]) -> Any:
    return EvaluationResult(metrics=metrics, artifacts={})


def passes(thresholds: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any] | None = None) -> bool:
    """What MLflow says."""
    try:
        mlflow.validate_evaluation_results(thresholds, told(ours), None if theirs is None else told(theirs))
    except ModelValidationFailedException:
        return False
    return True


def floors() -> dict[str, Any]:
    return {name: MetricThreshold(threshold=bar, greater_is_better=sign is ge) for name, (sign, bar) in FLOORS.items()}


def near(bar: float | None) -> st.SearchStrategy[float]:
    """Values on either side of a limit, and on it."""
    assert bar is not None
    return st.sampled_from([bar, math.nextafter(bar, math.inf), math.nextafter(bar, -math.inf), bar + 1, bar - 1])


@settings(deadline=None)
@given(st.fixed_dictionaries({name: near(bar) for name, (_, bar) in FLOORS.items()}))
def test_both_say_the_same_of_floors_and_ceilings(metrics: dict[str, float]) -> None:
    ours = gate(evidence(metrics), THRESHOLDS)
    assert ours.promoted == passes(floors(), {**GOOD, **metrics})


def test_what_was_not_measured_is_a_reason_here_and_a_raw_error_there() -> None:
    (missing,) = gate(evidence({"accuracy": None}), THRESHOLDS).failed
    assert "was not measured" in missing.reason
    with pytest.raises(TypeError):
        passes(floors(), {**GOOD, "accuracy": None})
    (odd,) = gate(evidence({"accuracy": math.nan}), THRESHOLDS).failed
    assert "is nan" in odd.reason and not passes(floors(), {**GOOD, "accuracy": math.nan})
    with pytest.raises(mlflow.exceptions.MlflowException, match="must be a positive number"):
        MetricThreshold(min_absolute_change=-0.03, greater_is_better=True)  # A margin of non-inferiority.


def test_against_a_champion_it_lets_chance_promote() -> None:
    """Of candidates that are no better a third or more pass there, and no more than the stated level here."""
    generator, count, limits = np.random.default_rng(0), 200, THRESHOLDS.model_copy(update={"min_examples": 200})
    better = {"accuracy": MetricThreshold(min_absolute_change=1e-9, greater_is_better=True)}
    there = here = 0
    for _ in range(count):
        ours, theirs = pair(generator, 0.0, 1.0)
        means = [{"accuracy": fmean(one.solved for one in side.values())} for side in (ours, theirs)]
        there += passes(better, means[0], means[1])
        here += gate(evidence(found=ours), limits, champion(theirs)).promoted
    assert there / count > 1 / 3 and here / count <= THRESHOLDS.error_level
