"""Where a row that this project makes comes from: its generator, its licence, its seed."""

from orchestra.types import Provenance

GENERATOR = "orchestra.synthesis"
"""The generator of the rows that the stage synthesize makes itself, by rule."""
LICENCE = "Apache-2.0"


def made_by_rule(seed: int, parent: str | None = None) -> Provenance:
    """The provenance of a row that the stage synthesize made itself."""
    return Provenance(source="synthetic", licence=LICENCE, generator=GENERATOR, seed=seed, parent=parent)
