"""What writes examples: a seeded grammar offline, or a model behind an endpoint; both hand over domain tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestra.domains.session import Domain
from orchestra.errors import DataError
from orchestra.provenance import LICENCE
from orchestra.synthesis.domain_tasks.evolve import evolved
from orchestra.synthesis.domain_tasks.tasks import DomainTask, domain_tasks
from orchestra.types import Example, Provenance, Split

VERSIONS = "orchestra.synthesis.versions"
"""The generator of the rows that a data-set version gets by rule."""


@dataclass(frozen=True)
class Origin:
    """Where a generator's examples come from, for the provenance of each row."""

    source: str
    licence: str
    generator: str
    seed: int

    def of(self, task: DomainTask) -> Provenance:
        """The provenance of a task's example."""
        return Provenance(
            source=self.source,
            licence=self.licence,
            generator=self.generator,
            seed=self.seed,
            parent=task.parent,
            prompts=task.prompts,
        )


@dataclass(frozen=True)
class Dropped:
    """A task that a generator gave up, and why."""

    what: str
    why: str

    @classmethod
    def by(cls, what: str, error: DataError) -> "Dropped":
        """Given up because of an error, with what helps where it says so."""
        return cls(what, " — ".join(filter(None, (error.what, error.fix))))


class Generator(Protocol):
    """Writes tasks for a domain. What it yields is proven by execution already; the other filters come after it.

    A generator may end with an `OrchestraError`, such as a cap of dollars; what it yielded before is good.
    """

    @property
    def origin(self) -> Origin: ...

    def tasks(
        self, domain: Domain, split: Split, count: int, category: Literal["lookup", "change"] | None = None
    ) -> Iterator[DomainTask | Dropped]:
        """`count` tasks of a split, of one category if it is given, less those that are dropped."""
        ...

    def evolved(
        self, domain: Domain, split: Split, parents: Sequence[Example], count: int
    ) -> Iterator[DomainTask | Dropped]:
        """`count` harder tasks made from examples of the domain and split, less those that are dropped."""
        ...


@dataclass(frozen=True)
class OfflineGenerator:
    """The embedded default: intents filled from the domain's database, and examples composed by rule."""

    seed: int

    @property
    def origin(self) -> Origin:
        return Origin("synthetic", LICENCE, VERSIONS, self.seed)

    def tasks(
        self, domain: Domain, split: Split, count: int, category: Literal["lookup", "change"] | None = None
    ) -> Iterator[DomainTask | Dropped]:
        """Drops nothing; raises `DataError` when the domain has not that many."""
        yield from domain_tasks(domain, self.seed, count, split, category)

    def evolved(
        self, domain: Domain, split: Split, parents: Sequence[Example], count: int
    ) -> Iterator[DomainTask | Dropped]:
        """Drops nothing; raises `DataError` when the parents do not give that many."""
        yield from evolved(domain, parents, self.seed, count)
