"""Lookups and changes in the domains, as drafts."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestra.errors import DataError
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.preferences import Split
from orchestra.types import Category

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain

DOMAIN_CATEGORIES = (Category.LOOKUP, Category.CHANGE)


def domain_drafts(
    domains: list["Domain"], seed: int, counts: dict[Category, int], split: Split
) -> dict[Category, Iterator[Draft]]:
    """A stream of drafts for each domain category, taken from the domains in turn; raises `DataError` when one ends."""
    wanted = sum(counts.get(category, 0) for category in DOMAIN_CATEGORIES)
    if not wanted:
        return {}
    if not domains:
        raise DataError("lookups and changes need a domain", where="params.yaml", fix="name one in world.domains")
    source = _in_turn(domains, seed, 4 * wanted + 32, split)
    waiting: dict[Category, deque[Draft]] = {category: deque() for category in DOMAIN_CATEGORIES}

    def stream(category: Category) -> Iterator[Draft]:
        while True:
            while not waiting[category]:
                draft = next(source, None)
                if draft is None:
                    fix = "lower its share in synthesize.mix, or give the domain more entries"
                    raise DataError(f"the domains give too few {split} {category}s", where="synthesize", fix=fix)
                waiting[draft.category].append(draft)
            yield waiting[category].popleft()

    return {category: stream(category) for category in DOMAIN_CATEGORIES}


def _in_turn(domains: list["Domain"], seed: int, count: int, split: Split) -> Iterator[Draft]:
    live = [_of(domain, seed, count, split) for domain in domains]
    while live:
        for stream in list(live):
            draft = next(stream, None)
            if draft is None:
                live.remove(stream)
            else:
                yield draft


def _of(domain: "Domain", seed: int, count: int, split: Split) -> Iterator[Draft]:
    from orchestra.synthesis.domain_examples import domain_tasks

    for task in domain_tasks(domain, seed, count, split):
        yield Draft(
            category=Category(task.category),
            instruction=task.instruction,
            answer=task.answer,
            verifier="database",
            entities=tuple(f"{domain.name}:{entity}" for entity in task.entities),
            golden_calls=task.golden_calls,
            communicate=task.communicate,
            tools_needed=task.tools_needed,
            domain=domain.name,
        )
