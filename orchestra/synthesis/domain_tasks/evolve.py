"""Harder examples from proven ones, by rule: two in one, a condition, an entity to be looked up, or to be asked for.

"who holds book 11?" + "what is the fine of Ovel?" -> "what is the fine of that reader? it is the answer to: who holds
book 11?"
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestra.domains.compare import mentions
from orchestra.domains.session import Domain
from orchestra.errors import DataError
from orchestra.synthesis.domain_tasks.tasks import DomainTask, refuted
from orchestra.types import Category, Example, ToolCall, User

MAX_WORDS = 60
"""Words of an evolved instruction."""
MISSES = 2_000
"""Proposals refuted in a row before the parents are said to give no more."""
SAME_ENTITY = 0.5
"""How often two tasks that are composed must share an entity, where any do."""
Kind = Literal["compose", "condition", "indirect", "ask"]
KINDS: tuple[Kind, ...] = ("compose", "condition", "indirect", "ask")

COMPOSED = (
    "{a}; then {b}",
    "first {a}; after that, {b}",
    "two things: {a} and then {b}",
    "{a}; when that is done: {b}",
)
ONLY_IF = (
    "find out: {l}; only if it is {v}, {c}; otherwise change nothing; tell me what you found",
    "{l}; tell me, and if it is {v} then {c}; if it is not, leave all as it is",
)
UNLESS = (
    "find out: {l}; unless it is {v}, {c}; tell me what you found too",
    "{l}; tell me, and if it is anything but {v} then {c}",
)
INDIRECT = (
    "{t}; which {k} that is answers: {l}",
    "first find out: {l}; then, for that {k}: {t}",
    "look up {l}; that is the {k} I mean here: {t}",
)
THAT, UNNAMED = "that {k}", "a {k} (ask me which)"


def evolved(
    domain: Domain,
    parents: Sequence[Example],
    seed: int | str,
    count: int,
    category: Literal["lookup", "change"] | None = None,
) -> Iterator[DomainTask]:
    """`count` distinct tasks (of one category, if given) proven by execution, the same for the same seed and parents.

    The parents must be of the domain and of one split; those with a user are not used. Raises `DataError` when they
    do not give that many.
    """
    plain = [parent for parent in parents if parent.domain == domain.name and parent.user is None]
    parts = [domain.name, "evolved", *([category] if category else []), str(seed)]
    rng, pool = random.Random("/".join(parts)), _Pool(plain)
    seen: set[str] = set()
    misses = 0
    while len(seen) < count:
        task = pool.propose(rng.choice(KINDS), rng) if plain and misses <= MISSES else None
        if not plain or misses > MISSES:
            raise DataError(
                f"only {len(seen)} evolved tasks found, {count} asked for",
                where=f"domain {domain.name}",
                fix="ask for fewer, or give more examples to evolve",
            )
        wanted = task is not None and category in (None, task.category) and task.asked not in seen
        if task is None or not wanted or refuted(domain, task, MAX_WORDS) is not None:
            misses += 1
            continue
        seen.add(task.asked)
        misses = 0
        yield task


@dataclass
class _Pool:
    """Parents, found by what they are about and by what they answer."""

    parents: Sequence[Example]

    def __post_init__(self) -> None:
        self.lookups = [parent for parent in self.parents if parent.category is Category.LOOKUP]
        self.changes = [parent for parent in self.parents if parent.category is Category.CHANGE]
        self.about: dict[str, list[Example]] = {}
        self.naming: dict[str, list[Example]] = {}
        """Lookups whose answer is the entity."""
        self.alike: dict[str, list[Example]] = {}
        """Lookups that differ in what they are about only."""
        for parent in self.parents:
            for entity in parent.entities:
                self.about.setdefault(entity, []).append(parent)
        for lookup in self.lookups:
            self.alike.setdefault(_mask(lookup), []).append(lookup)
            for entity in lookup.entities:
                name = _name(entity)
                if lookup.verifier.answer == name and not mentions(lookup.instruction, name):
                    self.naming.setdefault(entity, []).append(lookup)

    def propose(self, kind: Kind, rng: random.Random) -> DomainTask | None:
        """A task of that kind from random parents; None when those drawn do not fit."""
        match kind:
            case "compose":
                return self._compose(rng)
            case "condition":
                return self._condition(rng)
            case "indirect":
                return self._indirect(rng)
            case "ask":
                return self._ask(rng)

    def _compose(self, rng: random.Random) -> DomainTask | None:
        first = rng.choice(self.parents)
        near = [one for entity in first.entities for one in self.about[entity]] if rng.random() < SAME_ENTITY else []
        second = rng.choice(near or self.parents)
        if second.verifier.golden_calls == first.verifier.golden_calls:
            return None
        words = rng.choice(COMPOSED).format(a=_clause(first), b=_clause(second))
        return _joined(words, first, second)

    def _condition(self, rng: random.Random) -> DomainTask | None:
        if not self.lookups or not self.changes:
            return None
        lookup, change = rng.choice(self.lookups), rng.choice(self.changes)
        if lookup.verifier.answer is None:
            return None
        other = rng.choice(self.alike[_mask(lookup)]).verifier.answer
        met, unless = (other == lookup.verifier.answer), rng.random() < 0.5
        if met and unless:
            return None  # it would say the answer and ask for nothing
        frame = rng.choice(UNLESS if unless else ONLY_IF)
        words = frame.format(l=_clause(lookup), c=_clause(change), v=other)
        if met or unless:
            return _joined(words, lookup, change)
        alone = _joined(words, lookup)
        entities = tuple(sorted({*lookup.entities, *change.entities}))
        # Offered although it must not be called: else the toolbox would say what to do.
        needed = tuple(dict.fromkeys([*alone.tools_needed, *(call.name for call in change.verifier.golden_calls)]))
        return replace(alone, entities=entities, tools_needed=needed, parent=f"{lookup.id}+{change.id}")

    def _indirect(self, rng: random.Random) -> DomainTask | None:
        if not self.naming:
            return None
        entity = rng.choice(list(self.naming))
        lookup, target = rng.choice(self.naming[entity]), rng.choice(self.about[entity])
        if entity not in _hidable(target):
            return None
        kind = _kind(entity)
        told = _without(target, entity, THAT.format(k=kind))
        words = rng.choice(INDIRECT).format(t=told, k=kind, l=_clause(lookup))
        if all(mentions(words, text) for text in target.verifier.communicate):
            return None  # the lookup's words say the answer
        task = _joined(words, lookup, target)
        return replace(task, answer=_answer(target), communicate=target.verifier.communicate)

    def _ask(self, rng: random.Random) -> DomainTask | None:
        target = rng.choice(self.parents)
        named = _hidable(target)
        if not named:
            return None
        entity = rng.choice(named)
        kind = _kind(entity)
        task = _joined(_without(target, entity, UNNAMED.format(k=kind)), target)
        return replace(task, user=User(facts={kind: _name(entity)}))


def _joined(instruction: str, *parents: Example) -> DomainTask:
    """The parents' solutions one after the other, under a new instruction."""
    calls: tuple[ToolCall, ...] = tuple(call for parent in parents for call in parent.verifier.golden_calls)
    told = (text for parent in parents for text in parent.verifier.communicate)
    return DomainTask(
        instruction=instruction,
        category="change" if any(parent.category is Category.CHANGE for parent in parents) else "lookup",
        golden_calls=calls,
        communicate=tuple(dict.fromkeys(told)),
        answer=", ".join(dict.fromkeys(_answer(parent) for parent in parents)),
        entities=tuple(sorted({entity for parent in parents for entity in parent.entities})),
        tools_needed=tuple(dict.fromkeys(call.name for call in calls)),
        parent="+".join(parent.id for parent in parents),
    )


def _answer(parent: Example) -> str:
    return parent.verifier.answer or " ".join(parent.verifier.communicate)


def _clause(parent: Example) -> str:
    """The instruction as part of a longer one."""
    return parent.instruction.rstrip(".;, ")


def _mask(parent: Example) -> str:
    """The instruction without its arguments: the same for two requests of one wording."""
    text = parent.instruction
    values = sorted({str(v) for call in parent.verifier.golden_calls for v in call.arguments.values()}, key=len)
    for value in reversed(values):
        text = text.replace(value, "_")
    return text


def _hidable(parent: Example) -> list[str]:
    """The entities that the instruction names exactly once and a golden call needs."""
    needed = {str(value) for call in parent.verifier.golden_calls for value in call.arguments.values()}
    words = parent.instruction.replace(",", " ").replace("?", " ").replace(";", " ").split()
    return [entity for entity in parent.entities if _name(entity) in needed and words.count(_name(entity)) == 1]


def _without(parent: Example, entity: str, phrase: str) -> str:
    """The instruction with a phrase in the entity's place; "product 12" becomes "that product", not "product that"."""
    name, kind = _name(entity), _kind(entity)
    text = _clause(parent)
    return text.replace(f"{kind} {name}" if f"{kind} {name}" in text else name, phrase, 1)


def _kind(entity: str) -> str:
    return entity.partition(":")[0].partition("/")[2].replace("_", " ")


def _name(entity: str) -> str:
    return entity.partition(":")[2]
