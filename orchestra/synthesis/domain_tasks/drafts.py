"""Lookups and changes in the domains, as drafts."""

from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Literal, TypeVar

from orchestra.errors import DataError
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.types import Category, Split

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain
    from orchestra.synthesis.domain_tasks.tasks import DomainTask

T = TypeVar("T")

DOMAIN_CATEGORIES: dict[Category, Literal["lookup", "change"]] = {
    Category.LOOKUP: "lookup",
    Category.CHANGE: "change",
}


def domain_drafts(
    domains: list["Domain"], seed: int, split: Split, category: Category, count: int, share: SetPart = WHOLE
) -> Iterator[Draft]:
    """Drafts of a domain category, from the domains that have intents in turn, at most `count` of each.

    Raises `DataError` when a domain has not that many; nothing is drawn before it is asked for.
    """
    domains = [domain for domain in domains if domain.intents]
    if not domains:
        raise DataError("lookups and changes need a domain", where="params.yaml", fix="name one in world.domains")
    streams = [_of(domain, seed, split, category, count, share) for domain in domains]
    for stream in cycle(streams):
        draft = next(stream, None)
        if draft is None:
            return
        yield draft


def in_turn(streams: list[Iterator[T]]) -> Iterator[T]:
    """From the streams in turn, each until it raises `DataError`; what the last of them raises is raised."""
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                return
            except DataError:
                streams.remove(stream)
                if not streams:
                    raise


def _of(domain: "Domain", seed: int, split: Split, category: Category, count: int, share: SetPart) -> Iterator[Draft]:
    from orchestra.synthesis.domain_tasks.tasks import domain_tasks

    for task in domain_tasks(domain, seed, count, split, DOMAIN_CATEGORIES[category], share):
        yield draft_of(domain, task)


def draft_of(domain: "Domain", task: "DomainTask") -> Draft:
    """A task as a draft, whichever generator wrote it."""
    kinds = tuple(f"{domain.name}/{kind}:" for kind in domain.split_by)
    return Draft(
        category=Category(task.category),
        instruction=task.instruction,
        answer=task.answer,
        verifier="database",
        # The others, such as products that anyone may order, are on both sides by design.
        entities=tuple(entity for entity in task.entities if entity.startswith(kinds)),
        golden_calls=task.golden_calls,
        communicate=task.communicate,
        tools_needed=task.tools_needed,
        domain=domain.name,
        user=task.user,
    )
