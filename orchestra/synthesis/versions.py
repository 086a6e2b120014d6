"""Data-set versions: examples of a domain from a generator, filtered, with what was refused and what was spent."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.config import Synthesize
from orchestra.errors import BudgetError, DataError, ToolError
from orchestra.jsonl import read_jsonl, write_jsonl
from orchestra.ledger import total
from orchestra.synthesis.domain_examples import Split
from orchestra.synthesis.dress import dress
from orchestra.synthesis.filters import Duplicates, Refused, Solver, kept
from orchestra.synthesis.generator import Dropped, Generator
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Charge, Example

CASSETTE, LEDGER = "cassette.jsonl", "ledger.jsonl"


@dataclass
class Version:
    """A folder: `<domain>-<split>.jsonl`, the same with `-evolved`, each with `.refused.jsonl` and `.card.json`; one
    ledger and one cassette for all."""

    folder: Path

    def examples(self, domain: str, split: Split) -> Path:
        return self.folder / f"{domain}-{split}.jsonl"

    def evolved(self, domain: str, split: Split) -> Path:
        return self.folder / f"{domain}-{split}-evolved.jsonl"

    @property
    def spent_usd(self) -> Decimal:
        """Dollars in the ledger."""
        path = self.folder / LEDGER
        return total(read_jsonl(path, Charge)) if path.exists() else Decimal(0)


@dataclass
class Made:
    """What one run wrote."""

    kept: list[Example] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    ended: str | None = None
    """Why it ended before all were made: a cap, or an endpoint that failed."""

    def lines(self) -> list[str]:
        """What a person reads."""
        reasons = Counter(one.why for one in self.refused)
        return [
            f"{len(self.kept)} kept, {len(self.refused)} refused",
            *(f"  {count} x {why}" for why, count in reasons.most_common(5)),
            *([f"ended early: {self.ended}"] if self.ended else []),
        ]


@dataclass
class Maker:
    """Writes the examples of one domain and split into a version."""

    version: Version
    generator: Generator
    toolkit: Toolkit
    config: Synthesize
    solver: Solver | None = None

    def examples(self, domain: str, split: Split, count: int) -> Made:
        """New examples: as many of `count` as pass the filters."""
        tasks = self.generator.tasks(self.toolkit.domain(domain), split, count)
        return self._make(tasks, domain, split, self.version.examples(domain, split), Duplicates())

    def evolved(self, domain: str, split: Split, count: int) -> Made:
        """Harder ones from the version's examples; raises `DataError` where there are none."""
        parents = read_jsonl(self.version.examples(domain, split), Example, fix="write examples first")
        duplicates = Duplicates()
        for parent in parents:
            duplicates.why(parent)
        tasks = self.generator.evolved(self.toolkit.domain(domain), split, parents, count)
        return self._make(tasks, domain, split, self.version.evolved(domain, split), duplicates)

    def _make(self, tasks: Iterator[Any], domain: str, split: Split, path: Path, duplicates: Duplicates) -> Made:
        made = Made()
        stream = self._dressed(tasks, domain, split, path.stem, made)
        made.kept = list(kept(stream, self.toolkit, self.solver, made.refused.append, duplicates))
        self.version.folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, made.kept)
        write_jsonl(path.with_suffix(".refused.jsonl"), made.refused)
        card = json.dumps(self._card(made), indent=2) + "\n"
        path.with_suffix(".card.json").write_text(card, encoding="utf-8")
        return made

    def _dressed(self, tasks: Iterator[Any], domain: str, split: Split, stem: str, made: Made) -> Iterator[Example]:
        """Examples until the tasks end, for whatever reason: what was made before is good."""
        number = 0
        while True:
            name = f"{stem}-{number:06d}"
            try:
                task = next(tasks, None)
            except (BudgetError, ToolError, DataError) as error:
                made.ended = str(error)
                return
            if task is None:
                return
            if isinstance(task, Dropped):
                made.refused.append(Refused(example=name, instruction=task.what, why=task.why))
            else:
                yield dress(task, name, domain, self.toolkit, self.config, split, self.generator.origin)
            number += 1

    def _card(self, made: Made) -> dict[str, Any]:
        origin = self.generator.origin
        tries = Counter(str(one.difficulty) for one in made.kept if one.difficulty is not None)
        return {
            "generator": origin.generator,
            "source": origin.source,
            "licence": origin.licence,
            "seed": origin.seed,
            "kept": len(made.kept),
            "refused": dict(Counter(one.why for one in made.refused).most_common()),
            "solver": None if self.solver is None else self.solver.policy.name,
            "difficulty": dict(sorted(tries.items())),
            "version_spent_usd": str(self.version.spent_usd),
            "ended": made.ended,
        }
