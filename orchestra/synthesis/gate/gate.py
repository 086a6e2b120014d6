"""The contamination and licence gate: refuses rows, and reports what was refused by reason and source."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from orchestra.synthesis.gate.licences import Licences
from orchestra.synthesis.gate.overlap import Overlap, hashed, words
from orchestra.synthesis.gate.protected import protected_files, questions
from orchestra.types import Example

LICENCES, PROTECTED = Path("data/licences.yaml"), Path("data/protected")
"""Where a workspace has the list of licences and the files of the benchmarks."""
NOTHING = "contamination was checked against nothing: data/protected holds no questions"


@dataclass(frozen=True)
class Gate:
    """What decides; build it once."""

    licences: Licences
    protected: dict[str, Overlap]
    """By set, such as hle."""

    @classmethod
    def open(cls, root: Path, licences: Path = LICENCES, protected: Path = PROTECTED) -> Self:
        """The gate of a workspace. Raises `ConfigError` for a bad list of licences and `DataError` for a protected file
        that cannot be read: a gate that cannot check does not open."""
        sets = protected_files(root / protected)
        indexed = {
            name: Overlap.build(text for file in files for text in questions(file)) for name, files in sets.items()
        }
        return cls(Licences.load(root / licences), indexed)

    @property
    def checked_against(self) -> dict[str, int]:
        """Questions by protected set; empty: nothing."""
        return {name: overlap.texts for name, overlap in self.protected.items()}

    @property
    def note(self) -> str:
        """What the overlap was checked against, in a line."""
        if not sum(self.checked_against.values()):
            return NOTHING
        return "checked against " + ", ".join(
            f"{name} ({count} questions)" for name, count in self.checked_against.items()
        )

    def refuse(self, example: Example) -> str | None:
        """Why the example must not be used; None when it may."""
        provenance = example.provenance
        reason = self.licences.refuse(provenance.licence, provenance.source)
        if reason is not None or not self.protected:
            return reason
        hashes = hashed(words(example.instruction))
        found = next((name for name, overlap in self.protected.items() if overlap.found(hashes)), None)
        return f"it overlaps {found}" if found is not None else None


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
    for key, example in examples:
        if (reason := gate.refuse(example)) is not None:
            reasons[key] = reason
            refusals.count(reason, example.provenance.source)
            ids.setdefault(reason, []).append(example.id)
    report = {"checked_against": gate.checked_against, "note": gate.note, "refused": refusals.counts, "ids": ids}
    return Screened(reasons, report)
