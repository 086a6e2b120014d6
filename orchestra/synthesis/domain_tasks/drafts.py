"""Lookups and changes in the domains, as drafts."""

from collections.abc import Iterator
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
    domains: list["Domain"],
    seed: int,
    split: Split,
    category: Category,
    count: int,
    share: SetPart = WHOLE,
    used_up: dict[str, int] | None = None,
) -> Iterator[Draft]:
    """Drafts of a domain category, from the domains that have intents in turn, at most `count` of each.

    A domain that has fewer gives all it has, and the others go on; `used_up` gets its name with how many that were.
    Raises `DataError` when all have run out; nothing is drawn before it is asked for.
    """
    from orchestra.synthesis.domain_tasks.tasks import filled

    domains = [domain for domain in domains if domain.intents]
    if not domains:
        raise DataError("lookups and changes need a domain", where="params.yaml", fix="name one in world.domains")
    for domain in domains:
        filled(domain)  # A domain that is wrong is no small one.
    found = {} if used_up is None else used_up
    try:
        yield from in_turn([_of(domain, seed, split, category, count, share, found) for domain in domains])
    except DataError:
        what = f"only {sum(found.values())} different {split} tasks of the category {category.value}"
        fix = "name more domains, give them more entries, intents or wordings, or lower that share of synthesize.mix"
        raise DataError(what, where=f"domain {', '.join(found)}", fix=fix) from None


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


def _of(
    domain: "Domain", seed: int, split: Split, category: Category, count: int, share: SetPart, used_up: dict[str, int]
) -> Iterator[Draft]:
    from orchestra.synthesis.domain_tasks.tasks import domain_tasks

    given = 0
    try:
        for task in domain_tasks(domain, seed, count, split, DOMAIN_CATEGORIES[category], share):
            given += 1
            yield draft_of(domain, task)
    except DataError:
        used_up[domain.name] = given
        raise


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
