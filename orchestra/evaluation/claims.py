"""The claims table: what the method promises, measured over training seeds."""

from collections.abc import Sequence

from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes import ProbeResults
from orchestra.types import Example, Record


class SeedResult(Record):
    """What one training seed reached; every seed on the same held-out examples. Save it as JSON, one file a seed."""

    seed: int
    minutes: float
    """Training, from the shipped base to the trained checkpoint (sft and grpo), wall clock."""
    dollars: float
    """Spent by training's rollouts, the policy's own tokens included (simulated experts at their prices)."""
    outcomes: dict[str, tuple[Outcome, ...]]
    """`outcomes.outcomes(episodes, examples)` by policy: grpo, sft, every rule of `baselines.RIVALS`."""
    probes: ProbeResults


class Claim(Record):
    """One row of the table."""

    name: str
    bar: str
    """E.g. "≥ 5 points"."""
    value: float | None
    """Mean over the seeds; None when it could not be measured."""
    low: float | None
    high: float | None
    """95 % interval over seeds and examples."""
    holds: bool
    """Whether the mean meets the bar."""
    per_seed: tuple[float | None, ...]


def claims(
    results: Sequence[SeedResult], examples: Sequence[Example], *, bootstrap: int = 1000, seed: int = 0
) -> list[Claim]:
    """Every row of the table, in its order; `examples` are the held-out ones that all seeds were measured on."""
    raise NotImplementedError


def markdown(found: Sequence[Claim]) -> str:
    """The table."""
    raise NotImplementedError
