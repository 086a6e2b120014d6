"""Data-set versions: examples of a domain from a generator, filtered, with what was refused and what was spent."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.accounting.ledger import total
from orchestra.config.schema import Synthesize
from orchestra.errors import BudgetError, DataError, ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.synthesis.assembly.example import ExampleBuilder
from orchestra.synthesis.domain_tasks.drafts import draft_of
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.filters.filters import Duplicates, Solver, kept
from orchestra.synthesis.imports.intake import take
from orchestra.synthesis.writers.generator import Dropped, Generator
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Charge, Example, Split
from orchestra.validation.gate.decontamination import Gate

CASSETTE, LEDGER = "cassette.jsonl", "ledger.jsonl"
SAID = 10
"""Times that a run says how far it is."""


@dataclass
class DatasetVersion:
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


@dataclass(frozen=True)
class Made:
    """What one run wrote."""

    path: Path
    """The examples; what was refused and the card are beside them."""
    card: dict[str, Any]

    @property
    def ended(self) -> str | None:
        """Why it ended before all were made: a cap, or an endpoint that failed."""
        ended: str | None = self.card["ended"]
        return ended

    def lines(self) -> list[str]:
        """What a person reads."""
        reasons = Counter({why: sum(sources.values()) for why, sources in self.card["refused"].items()})
        return [
            f"{self.card['examples']} kept, {reasons.total()} refused",
            *(f"  {count} x {why}" for why, count in reasons.most_common(5)),
            *([f"ended early: {self.ended}"] if self.ended else []),
        ]


@dataclass
class Maker:
    """Writes the examples of one domain and split into a version, one at a time: memory does not grow with them."""

    version: DatasetVersion
    generator: Generator
    toolkit: Toolkit
    config: Synthesize
    gate: Gate
    solver: Solver | None = None
    say: Callable[[str], None] = lambda _: None

    def examples(self, domain: str, split: Split, count: int) -> Made:
        """New examples: as many of `count` as pass the filters and the gate."""
        tasks = self.generator.tasks(self.toolkit.domain(domain), split, count)
        return self._make(tasks, domain, split, count, self.version.examples(domain, split), Duplicates())

    def evolved(self, domain: str, split: Split, count: int) -> Made:
        """Harder ones from the version's examples; raises `DataError` where there are none."""
        parents = read_jsonl(self.version.examples(domain, split), Example, fix="write examples first")
        duplicates = Duplicates()
        for parent in parents:
            duplicates.why(parent)
        tasks = self.generator.evolved(self.toolkit.domain(domain), split, parents, count)
        return self._make(tasks, domain, split, count, self.version.evolved(domain, split), duplicates)

    def _make(
        self, tasks: Iterator[Any], domain: str, split: Split, count: int, path: Path, duplicates: Duplicates
    ) -> Made:
        ended: list[str] = []

        def facts() -> dict[str, Any]:
            return {
                "solver": None if self.solver is None else self.solver.policy.name,
                "cost_usd": str(self.version.spent_usd),
                "ended": ended[0] if ended else None,
            }

        stream = self._built(tasks, domain, split, path.stem, count, ended.append)
        rows = ((domain, row) for row in kept(stream, self.toolkit, self.solver, duplicates))
        return Made(path, take(rows, self.gate, path, facts=facts))

    def _built(
        self,
        tasks: Iterator[Any],
        domain: str,
        split: Split,
        stem: str,
        count: int,
        end: Callable[[str], None],
    ) -> Iterator[Example | Refused]:
        """Examples until the tasks end, for whatever reason: what was made before is good."""
        world, origin = self.toolkit.domain(domain), self.generator.origin
        builder = ExampleBuilder(self.toolkit.catalogue, self.config, split)
        for number in itertools.count():
            name = f"{stem}-{number:06d}"
            try:
                task = next(tasks, None)
            except (BudgetError, ToolError, DataError) as error:
                end(str(error))
                return
            if task is None:
                return
            if isinstance(task, Dropped):
                yield Refused(name, origin.source, task.why, task.what)
            else:
                rng = random.Random(f"{origin.seed}:{name}")
                yield builder.build(draft_of(world, task), name, rng, origin.of(task), world.tools)
            if (number + 1) % max(1, count // SAID) == 0:
                self.say(f"{stem}: {number + 1}/{count} written ({100 * (number + 1) // count}%)")
