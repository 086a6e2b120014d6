"""What a generator hands over: an example without its toolbox and preference."""

from dataclasses import dataclass
from typing import Literal

from orchestra.types import Category, ToolCall


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
