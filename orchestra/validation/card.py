"""The data card: what a set of examples holds, counted as they pass by."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from orchestra.types import Example

NO_DOMAIN = "(no domain)"


@dataclass
class Tally:
    """Counts over examples; memory does not grow with their number."""

    count: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    generators: Counter[str] = field(default_factory=Counter)
    """By generator and seed: `orchestra.synthesis, seed 7`."""
    verifiers: Counter[str] = field(default_factory=Counter)
    preferences: Counter[str] = field(default_factory=Counter)
    difficulties: Counter[str] = field(default_factory=Counter)
    """By the share of a solver's tries; only of those that were measured."""

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Self:
        tally = cls()
        for example in examples:
            tally.add(example)
        return tally

    def add(self, example: Example) -> None:
        provenance = example.provenance
        self.count += 1
        self.categories[example.category.value] += 1
        self.domains[example.domain or NO_DOMAIN] += 1
        self.sources[provenance.source] += 1
        self.licences[provenance.licence] += 1
        self.generators[f"{provenance.generator}, seed {provenance.seed}"] += 1
        self.verifiers[example.verifier.kind] += 1
        self.preferences[example.preference.kind] += 1
        if example.difficulty is not None:
            self.difficulties[f"{example.difficulty:.4g}"] += 1

    def counts(self) -> dict[str, Any]:
        """`examples`, and the counts of each thing by name, in order of the names."""
        counters = {name: value for name, value in vars(self).items() if isinstance(value, Counter)}
        return {"examples": self.count} | {name: dict(sorted(value.items())) for name, value in counters.items()}


def lines(card: dict[str, Any]) -> list[str]:
    """A card as a person reads it: one line a count, the parts of a thing below it, largest first."""
    said = []
    for name, value in card.items():
        if isinstance(value, dict) and value:
            said.append(f"{name}:")
            numbers = all(isinstance(part, int) for part in value.values())
            parts = sorted(value.items(), key=lambda part: (-part[1], part[0])) if numbers else value.items()
            said += [f"  {part}: {_short(count)}" for part, count in parts]
        else:
            said.append(f"{name}: {_short(value)}")
    return said


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
