"""The probes by name: a decorated generator of this folder is one, with the claims that it is to show."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestra.evaluation.claims.bar import Bar
from orchestra.register import Register
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.types import Example


@dataclass(frozen=True)
class Change:
    """An example with one thing changed; its id is set where it becomes a variant."""

    name: str
    """Of the variant, e.g. `low`; what a measure asks for."""
    example: Example
    tool: str | None = None
    """Catalogue entry of the expert that the change is about."""


@dataclass(frozen=True)
class Variant:
    """A change to be attempted; the example's own id is unique among variants."""

    probe: str
    name: str
    of: str
    """Id of the example that it was made from."""
    example: Example
    tool: str | None = None


@dataclass(frozen=True)
class Setting:
    """What a probe may use besides the example."""

    catalogue: Catalogue
    spread: float
    """The profile's `synthesize.price_spread`."""
    rng: random.Random
    """Of this example and the probe's stream."""
    wording: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Sentences by kind of preference, and forms of questions, from the folder that `evaluate.wording` names."""


Changes = Callable[[Example, Setting], Iterator[Change]]
AnyChanges = TypeVar("AnyChanges", bound=Changes)


@dataclass(frozen=True)
class Probe:
    """One probe, as registered."""

    changes: Changes
    bars: tuple[Bar, ...]
    rival_on: str | None
    """The variant that always-strongest attempts too."""
    stream: str


PROBES: Register[Probe] = Register("probe", "orchestra.evaluation.probes", "the probes")


def probe(
    name: str, *, bars: Sequence[Bar], rival_on: str | None = None, stream: str | None = None
) -> Callable[[AnyChanges], AnyChanges]:
    """Register a generator of changes to an example: `orchestra learn` attempts them and adds `bars` to its table.

    `stream`: probes that name the same one draw from it after each other; by default each has its own, so that a new
    probe changes no other's draws.
    """

    def register(changes: AnyChanges) -> AnyChanges:
        entry = Probe(changes, tuple(bars), rival_on, stream or f"probes:{name}")
        PROBES.add(name, entry, changes.__module__)
        return changes

    return register


def variants(
    examples: Sequence[Example],
    catalogue: Catalogue,
    *,
    spread: float,
    seed: int,
    wording: Mapping[str, Sequence[str]] | None = None,
) -> list[Variant]:
    """Every probe's variants of the examples, each of which must offer an expert."""
    made: list[Variant] = []
    for example in examples:
        streams: dict[str, random.Random] = {}
        for name, entry in PROBES.items():
            if entry.stream not in streams:
                streams[entry.stream] = random.Random(f"{seed}:{entry.stream}:{example.id}")
            setting = Setting(catalogue, spread, streams[entry.stream], wording or {})
            made += [_variant(name, change) for change in entry.changes(example, setting)]
    return made


def _variant(probe: str, change: Change) -> Variant:
    of = change.example.id
    unique = ":".join([of, probe, change.name, change.tool or ""])
    return Variant(probe, change.name, of, change.example.model_copy(update={"id": unique}), change.tool)
