"""What a generator hands over: an example without its toolbox and preference."""

from dataclasses import dataclass
from typing import Literal

from orchestra.types import Category, Provenance, ToolCall, User

GENERATOR = "orchestra.synthesis"
"""The generator of the rows that the stage synthesize makes itself, by rule."""
LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class Draft:
    """One item to solve, before tools and prices are drawn for it."""

    category: Category
    instruction: str
    answer: str
    verifier: Literal["exact", "numeric", "database"]
    entities: tuple[str, ...]
    golden_calls: tuple[ToolCall, ...] = ()
    communicate: tuple[str, ...] = ()
    tools_needed: tuple[str, ...] = ()
    """Basic or domain tools that the known solution calls."""
    topic: str | None = None
    wrong: tuple[str, ...] = ()
    """Plausible other answers; with them the draft enters the experts' answer book."""
    hard: bool = False
    """Whether small experts often fail at it, and do not notice."""
    domain: str | None = None
    user: User | None = None


def made_by_rule(seed: int, parent: str | None = None) -> Provenance:
    """The provenance of a row that the stage synthesize made itself."""
    return Provenance(source="synthetic", licence=LICENCE, generator=GENERATOR, seed=seed, parent=parent)
