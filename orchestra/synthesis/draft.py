"""What a generator hands over: an example without its toolbox and preference."""

from dataclasses import dataclass
from typing import Literal

from orchestra.tools.search.corpus import Document
from orchestra.types import Category, ToolCall, User


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
    record: Document | None = None
    """What a search finds of a topic question; None: nothing."""
    query: str = ""
    """What to search for a topic question."""


@dataclass(frozen=True)
class Refused:
    """An example, or what should have become one, that is not taken."""

    row: str
    """Its id, in its source where it has one there; empty when it could not be read."""
    source: str
    reason: str
    """Where it can be, in words that hold for other rows too, so that reasons can be counted."""
    instruction: str = ""
    """What was asked, where no file has it."""
