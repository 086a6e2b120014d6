"""The implementations by name: a decorated class or function of this folder makes the tool of a catalogue entry."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from orchestra.register import Register
from orchestra.tools.base import Tool
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.experts.simulated import AnswerBook
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.resources import Resources
from orchestra.tools.search.corpus import SearchIndex


class ToolSources(Protocol):
    """The catalogue, the data and the shared connections that a tool is made from; a `Toolkit` has them all."""

    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def root(self) -> Path:
        """What paths in an entry are relative to."""
        ...

    @property
    def cassette(self) -> Cassette | None: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def index(self) -> SearchIndex:
        """The pipeline's own corpus."""
        ...

    @property
    def book(self) -> AnswerBook:
        """What simulated experts know."""
        ...


Make = Callable[[str, Entry, ToolSources], Tool]
"""From the entry's name in the catalogue, the entry and the sources to the tool."""
AnyMake = TypeVar("AnyMake", bound=Make)


@dataclass(frozen=True)
class Implementation:
    """One implementation, as registered."""

    make: Make
    taped: bool
    """Whether a cassette records and replays its calls."""
    billed: bool
    """Whether a provider bills its calls, at the list price."""


IMPLEMENTATIONS: Register[Implementation] = Register(
    "implementation", "orchestra.tools.implementations", "the catalogue of tools"
)


def implementation(name: str, *, taped: bool = True, billed: bool = False) -> Callable[[AnyMake], AnyMake]:
    """Register what makes the tools whose entry says `implementation: name`; import slow libraries inside it.

    `taped=False` is for a tool that is the same twice, or that records what it sends itself. `billed=True` is for one
    whose calls a provider bills.
    """

    def register(make: AnyMake) -> AnyMake:
        IMPLEMENTATIONS.add(name, Implementation(make, taped, billed), make.__module__)
        return make

    return register
