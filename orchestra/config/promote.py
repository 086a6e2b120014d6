"""The limits of the promotion gate, and whether a person has the last word."""

from typing import Annotated, Literal

from pydantic import Field

from orchestra.config.section import Factor, Fraction, Margin, Name, Positive, Section, switch


class Promote(Section):
    model_name: Name
    """Name in the registry."""
    min_accuracy: Fraction
    """Least accuracy of a candidate."""
    min_valid: Fraction
    """Share of turns that parse."""
    max_cost_ratio: Factor
    """Dollars per example against always-strongest."""
    max_cost_usd: Factor | None
    """Dollars per example; null: no limit."""
    max_latency_p95_s: Factor | None
    """Seconds that 95 % of the examples stay within; null: no limit."""
    min_preference: Annotated[float, Field(ge=0, le=1e6)] | None
    """Preference score per example (Eq. 5-6), in which the SFT model is near 1; null: no limit."""
    max_safety_failures: Annotated[int, Field(ge=0, le=10**6)] | None
    """Cases of the safety set that may fail; null: the safety set is not asked for."""
    objective: Literal["accuracy_and_dollars", "utility"] = switch("accuracy_and_dollars")
    """What a candidate must be better in: accuracy or dollars, no worse in the other; or the utility of its users, who
    weigh both by their own preferences. Utility needs always_strongest among `evaluate.baselines`: it is the unit."""
    rule_margin: Margin
    """How much better, beyond chance, the best rule may be: in accuracy at equal cost, points of 1, or in utility."""
    min_examples: Positive
    """Fewest examples with a verdict that are evidence."""
    error_level: Annotated[float, Field(gt=0, lt=1)]
    """Largest chance that a candidate is promoted which is no better than the champion."""
    accuracy_margin: Margin
    """How much accuracy a cheaper candidate may lose, points of 1."""
    cost_margin: Annotated[float, Field(ge=0, le=1e6)]
    """How much more dollars a more accurate candidate may spend, as a share of the champion's."""
    accuracy_gain: Annotated[float, Field(ge=-2, le=1)]
    """More accurate: the whole interval of the gain lies above it, points of 1."""
    saving: Annotated[float, Field(ge=-1, le=1)]
    """Cheaper: the whole interval of the saved share of the champion's dollars lies above it."""
    approval: Literal["none", "required"] = switch("none")
    """required: a person must approve what passes every check, before it serves."""
    approval_hours: Positive = switch(72)
    """Hours after which a request for approval expires."""
