"""The contamination and licence gate: refuses rows, and reports what was refused by reason and source."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypeVar

from orchestra.types import Example
from orchestra.validation.gate.licences import Licences
from orchestra.validation.gate.overlap import Overlap, words
from orchestra.validation.gate.protected import protected_files, questions

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


def report(gate: Gate, refused: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """What was checked against, and what was refused: counts by reason and source, ids by reason.

    `refused` gives reason, source and id of each.
    """
    refusals, ids = Refusals(), dict[str, list[str]]()
    for reason, source, name in refused:
        refusals.count(reason, source)
        ids.setdefault(reason, []).append(name)
    return {"checked_against": gate.checked_against, "note": gate.note, "refused": refusals.counts, "ids": ids}


def chunks(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows, `CHUNK` at a time."""
    them = iter(rows)
    while some := list(islice(them, CHUNK)):
        yield some
