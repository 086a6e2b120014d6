"""The contamination and licence gate: refuses rows, and reports what was refused by reason and source."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypeVar

from orchestra.synthesis.gate.licences import Licences
from orchestra.synthesis.gate.overlap import Overlap, words
from orchestra.synthesis.gate.protected import protected_files, questions
from orchestra.types import Example

LICENCES, PROTECTED = Path("data/licences.yaml"), Path("data/protected")
"""Where a workspace has the list of licences and the files of the benchmarks."""
CHUNK = 1_000
"""Rows asked about at once."""
NOTHING = "contamination was checked against nothing: data/protected holds no questions"

T = TypeVar("T")


@dataclass(frozen=True)
class Gate:
    """What decides; build it once."""

    licences: Licences
    protected: Overlap

    @classmethod
    def open(cls, root: Path, licences: Path = LICENCES, protected: Path = PROTECTED) -> Self:
        """The gate of a workspace. Raises `ConfigError` for a bad list of licences and `DataError` for a protected file
        that cannot be read: a gate that cannot check does not open."""
        sets = {
            name: chain.from_iterable(map(questions, files))
            for name, files in protected_files(root / protected).items()
        }
        return cls(Licences.load(root / licences), Overlap.build(sets))

    @property
    def checked_against(self) -> dict[str, int]:
        """Questions by protected set, such as hle; empty: nothing."""
        return self.protected.texts

    @property
    def note(self) -> str:
        """What the overlap was checked against, in a line."""
        if not sum(self.checked_against.values()):
            return NOTHING
        return "checked against the questions of " + ", ".join(
            f"{name} ({count})" for name, count in self.checked_against.items()
        )

    def refuse(self, examples: Sequence[Example]) -> list[str | None]:
        """For each example why it must not be used; None when it may. Hand over many at once."""
        overlaps = self.protected.found([words(example.instruction) for example in examples])
        return [
            self.licences.refuse(example.provenance.licence, example.provenance.source)
            or (f"it overlaps {name}" if name is not None else None)
            for example, name in zip(examples, overlaps, strict=True)
        ]


@dataclass
class Refusals:
    """How many rows were refused, by reason and source. No text of a benchmark is in it."""

    by_reason: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, reason: str, source: str) -> None:
        self.by_reason.setdefault(reason, Counter())[source] += 1

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {reason: dict(sorted(sources.items())) for reason, sources in sorted(self.by_reason.items())}


@dataclass(frozen=True)
class Screened:
    """What the gate said of a set of examples."""

    reasons: dict[str, str]
    """By key of each refused example."""
    report: dict[str, Any]
    """What it was checked against, and counts and ids of what was refused by reason and source."""


def screen(gate: Gate, examples: Iterable[tuple[str, Example]]) -> Screened:
    """Ask the gate about examples, each under a key of the caller's."""
    reasons, refusals, ids = dict[str, str](), Refusals(), dict[str, list[str]]()
    for some in chunks(examples):
        for (key, example), reason in zip(some, gate.refuse([example for _, example in some]), strict=True):
            if reason is not None:
                reasons[key] = reason
                refusals.count(reason, example.provenance.source)
                ids.setdefault(reason, []).append(example.id)
    report = {"checked_against": gate.checked_against, "note": gate.note, "refused": refusals.counts, "ids": ids}
    return Screened(reasons, report)


def chunks(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows, `CHUNK` at a time."""
    them = iter(rows)
    while some := list(islice(them, CHUNK)):
        yield some
