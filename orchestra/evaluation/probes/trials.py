"""The trials of a policy in the probes: one for each variant."""

from orchestra.evaluation.outcomes import Outcome
from orchestra.types import Record


class Trial(Record):
    """One variant, attempted once."""

    probe: str
    variant: str
    """As `Variant.name`; and `strongest`: always-strongest on the variant that the probe names for it."""
    example_id: str
    """Of the example that the variant was made from."""
    tool: str | None = None
    outcome: Outcome


class ProbeResults(Record):
    """Every trial of one policy."""

    trials: tuple[Trial, ...]

    def of(self, probe: str, variant: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.probe == probe and trial.variant == variant]
