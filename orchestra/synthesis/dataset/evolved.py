"""The evolved examples of a shard: harder ones, made of its other domain examples, in the places left to them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from orchestra.config.schema import Params
from orchestra.domains.session import Domain
from orchestra.errors import DataError
from orchestra.provenance import made_by_rule
from orchestra.synthesis.assembly.example import ExampleBuilder
from orchestra.synthesis.assembly.rename import vary
from orchestra.synthesis.domain_tasks.drafts import DOMAIN_CATEGORIES, draft_of, in_turn
from orchestra.synthesis.domain_tasks.evolve import evolved
from orchestra.synthesis.draft import Draft, Refused
from orchestra.synthesis.filters.filters import Duplicates, Solver, kept
from orchestra.synthesis.partition import Shard
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Provenance, Split

SPARE = 50
"""Candidates that the filters may refuse, beyond those needed."""
Places = dict[int, Category]
"""Of a split's evolved examples in a shard, with the category that each must have."""


def evolved_places(order: Sequence[Category], share: float) -> Places:
    """The places of the evolved examples: that share of each domain category, evenly spread."""
    met, places = Counter[Category](), Places()
    for number, category in enumerate(order):
        if category in DOMAIN_CATEGORIES:
            met[category] += 1
            if int(met[category] * share) > int((met[category] - 1) * share):
                places[number] = category
    return places


@dataclass(frozen=True)
class Evolution:
    """Makes one split's evolved examples of a shard; the draws depend on the seed and the shard alone."""

    params: Params
    toolkit: Toolkit
    shard: Shard
    split: Split
    solver: Solver | None
    dropped: Counter[str]
    """Gets what the filters refuse, by reason."""

    def filled(
        self, places: Places, parents: Sequence[Example], on_progress: Callable[[int], None]
    ) -> list[tuple[int, Example]]:
        """Each place with an example made of the parents, in order; they pass the filters beside the parents.

        Raises `DataError` when the parents do not give that many.
        """
        parents, duplicates = [parent for parent in parents if parent.domain is not None], Duplicates()
        for parent in parents:
            duplicates.why(parent)
        found: dict[int, Example] = {}
        for category in DOMAIN_CATEGORIES:
            numbers = [number for number, wanted in places.items() if wanted is category]
            stream = self._candidates(category, parents, len(numbers) + SPARE)
            while numbers:
                for example in kept(self._some(stream, len(numbers)), self.toolkit, self.solver, duplicates):
                    if isinstance(example, Refused):
                        self.dropped[f"evolved: {example.reason}"] += 1
                        continue
                    number = numbers.pop(0)
                    name = f"{self.split}-{self.shard.numbers(self.split).start + number:06d}"
                    found[number] = example.model_copy(update={"id": name})
                    on_progress(1)
        return sorted(found.items())

    def _some(self, stream: Iterator[Example], count: int) -> list[Example]:
        try:
            some, why = list(islice(stream, count)), "the filters refuse too many"
        except DataError as error:
            some, why = [], error.what
        if not some:
            where = f"the {self.split} set"
            raise DataError(f"too few evolved examples: {why}", where=where, fix="lower synthesize.evolved_share")
        return some

    def _candidates(self, category: Category, parents: Sequence[Example], most: int) -> Iterator[Example]:
        config, kind = self.params.synthesize, DOMAIN_CATEGORIES[category]
        builder = ExampleBuilder(self.toolkit.catalogue, config, self.split)
        seed = f"{self.split}/{self.shard.seed(config.seed)}"

        def drafts(domain: Domain) -> Iterator[tuple[Draft, Provenance]]:
            for task in evolved(domain, parents, seed, most, kind):
                yield draft_of(domain, task), made_by_rule(config.seed, task.parent)

        streams = [drafts(self.toolkit.domain(name)) for name in self.params.world.domains]
        for number, (draft, provenance) in enumerate(in_turn(streams)):
            assert draft.domain is not None
            name = f"{seed}/{kind}/{number}"
            rng = random.Random(name)
            # Its own until it has its place: the solver's mistakes depend on it.
            made = builder.build(draft, name, rng, provenance, self.toolkit.domain(draft.domain).tools)
            renamed = self.split == "train" and rng.random() < config.renamed_share
            yield vary(made, self.toolkit.catalogue, rng) if renamed else made
