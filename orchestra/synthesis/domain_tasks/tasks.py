"""Tasks in a domain: intents filled from its database, split by entity, and kept only when execution proves them.

DomainTask("how much does Brin owe?", "lookup", (get_reader(reader=Brin),), ("7",), "7", ("mock/reader:Brin",), ...)
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pydantic import JsonValue

from orchestra.domains.compare import judge, mentions, run_calls
from orchestra.domains.session import Domain, short
from orchestra.domains.spec import SLOT, Intent, Scalar
from orchestra.errors import DataError, ToolError
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.tools.experts.simulated import question_key
from orchestra.types import Split, ToolCall, User, asked

Slots = dict[str, Scalar]
Drawn = tuple[Intent, Slots, str]
"""An intent, what fills it, and one of its wordings."""

HELDOUT_SHARE = 0.25
"""Share of the entities that no training task is about."""
MAX_SLOT_ROWS = 50_000
MAX_WORDS = 20
MAX_MISSES = 2_000
"""Draws in a row that may be known already or not verified before the tasks are said to have run out."""


@dataclass(frozen=True)
class DomainTask:
    """A request to a domain with its known solution."""

    instruction: str
    category: Literal["lookup", "change"]
    golden_calls: tuple[ToolCall, ...]
    communicate: tuple[str, ...]
    """What the answer must mention."""
    answer: str
    """A right answer, as short as can be."""
    entities: tuple[str, ...]
    """What it is about, e.g. `ecommerce/order:4821`; none is both in training and held out."""
    tools_needed: tuple[str, ...]
    """Names of the domain tools of the known solution."""
    intent: str = ""
    user: User | None = None
    """Who tells what the instruction leaves out."""
    parent: str | None = None
    """Ids of the examples that it was evolved from, joined by `+`."""
    prompts: tuple[str, ...] = ()
    """sha256 of the prompts that a model wrote it from."""

    @property
    def asked(self) -> str:
        """As `Example.asked`."""
        return asked(self.instruction, self.user)


@lru_cache(maxsize=100_000)
def entity_split(entity: str) -> Split:
    """The side of an entity such as `ecommerce/customer:Borvane`, by its hash: the same for ever and for every seed."""
    share = int.from_bytes(hashlib.sha256(entity.encode()).digest()[:8], "big") / 2**64
    return "heldout" if share < HELDOUT_SHARE else "train"


def domain_tasks(
    domain: Domain,
    seed: int,
    count: int,
    split: Split,
    category: Literal["lookup", "change"] | None = None,
    share: SetPart = WHOLE,
) -> Iterator[DomainTask]:
    """`count` distinct verified tasks of a split (of one category, if given), the same ones for the same seed. No two
    shares have a task in common.

    Memory does not grow but for 8 bytes a task. Raises `DataError` when the domain has not that many.
    """
    rng = random.Random(f"{domain.name}/{split}/{category}/{share.seed(seed)}")
    draws = _draws(domain, split, category, rng) if share.whole else _owned(domain, split, category, rng, share)
    seen: set[int] = set()
    misses = 0
    while len(seen) < count:
        drawn = next(draws, None) if misses <= MAX_MISSES else None
        if drawn is None:
            raise DataError(
                f"only {len(seen)} different {split} tasks found, {count} asked for",
                where=f"domain {domain.name}",
                fix="ask for fewer, name more domains, or give it more entries, intents or wordings",
            )
        task = _task(domain, *drawn)
        mark = _mark(task.instruction)
        if mark in seen or not verified(domain, task):
            misses += 1
            continue
        seen.add(mark)
        misses = 0
        yield task


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _draws(domain: Domain, split: Split, category: str | None, rng: random.Random) -> Iterator[Drawn]:
    """Endless, with repetitions; nothing where the domain has no task of the kind."""
    pools = _pools(domain, split, category)
    while pools:
        intent, rows = pools[rng.randrange(len(pools))]
        yield intent, rows[rng.randrange(len(rows))], rng.choice(intent.wordings)


def _owned(domain: Domain, split: Split, category: str | None, rng: random.Random, share: SetPart) -> Iterator[Drawn]:
    """What a share owns, to within one an equal part of every intent's tasks, each once."""
    pools: list[list[Drawn]] = []
    number = 0
    for every in _different(domain, split, category):
        mine = list(every[(share.index - number) % share.count :: share.count])
        number += len(every)
        rng.shuffle(mine)
        pools += [mine] if mine else []
    while pools:
        at = rng.randrange(len(pools))
        yield pools[at].pop()
        if not pools[at]:
            del pools[at]


@lru_cache(maxsize=64)
def _different(domain: Domain, split: Split, category: str | None) -> tuple[tuple[Drawn, ...], ...]:
    """Every task of each intent, in an order that says nothing; of those that ask the same only the first. Kept, since
    a process makes many shards.
    """
    seen: set[int] = set()
    found = []
    for intent, rows in _pools(domain, split, category):
        every = []
        for row in rows:
            for wording in intent.wordings:
                mark = _mark(question_key(_fill(wording, row)))
                if mark not in seen:
                    seen.add(mark)
                    every.append((intent, row, wording))
        random.Random(f"{domain.name}/{split}/{intent.name}").shuffle(every)
        found.append(tuple(every))
    return tuple(found)


def verified(domain: Domain, task: DomainTask) -> bool:
    """Whether execution proves the task (see `refuted`)."""
    return refuted(domain, task) is None


def refuted(domain: Domain, task: DomainTask, max_words: int | None = MAX_WORDS) -> str | None:
    """Why execution does not prove the task, whose words must not be more than that; None when it does.

    The golden calls must run, write if it is a change, and solve it; doing nothing, even with the right answer, must
    not; and every argument and answer must be known from the instruction, the user or an observation. A user whom
    nobody needs to ask is refused as well.
    """
    solution, words = task.golden_calls, task.communicate
    if max_words is not None and len(task.instruction.split()) > max_words:
        return f"the instruction has more than {max_words} words"
    session = domain.open()
    try:
        if judge(domain, session, solution, words, task.answer).solved:
            return "no action solves it too"
        known, asked = task.instruction, task.user is None
        facts = " ; ".join(task.user.facts.values()) if task.user is not None else ""
        for call in solution:
            for value in map(str, call.arguments.values()):
                if mentions(known, value):
                    continue
                if not mentions(facts, value):
                    return f"nothing tells {value} before {call.name} needs it"
                asked = True
            known += " ; " + run_calls(session, (call,))[0]
        if task.category == "change" and not session.touched:
            return "the golden calls change nothing"
        if not asked:
            return "the user need not be asked"
        for text in words:
            if not mentions(known, text):
                return f"no observation shows {text}, which the answer must mention"
        verdict = judge(domain, session, solution, words, task.answer)
        return None if verdict.solved else f"the golden calls do not solve it: {verdict.why}"
    except (DataError, ToolError) as error:  # a golden call is refused for these slots: not a task
        return f"{error.where}: {error.what}"
    finally:
        session.close()


def intent_tasks(domain: Domain, intent: Intent, rows: int) -> Iterator[DomainTask]:
    """The tasks of the first `rows` rows of one intent, of either split, not verified yet; raises `DataError`."""
    session = domain.open()
    try:
        columns, found = session.select(intent.slots, rows)
    finally:
        session.close()
    for number, row in enumerate(found):
        wording = intent.wordings[number % len(intent.wordings)]
        yield _task(domain, intent, dict(zip(columns, row, strict=True)), wording)


def sides(domain: Domain) -> dict[str, Split]:
    """The split of every entity that an intent can be about; one that intents put on both sides is left out."""
    found: dict[str, set[Split]] = {}
    session = domain.open()
    try:
        for intent in domain.intents:
            columns, rows = session.select(intent.slots, MAX_SLOT_ROWS)
            for row in rows:
                slots = dict(zip(columns, row, strict=True))
                owner = _side(domain, intent, slots)
                for kind, slot in intent.about.items():
                    entity = _entity(domain, kind, slots[slot])
                    side = entity_split(entity) if kind in domain.split_by else owner
                    if side is not None:
                        found.setdefault(entity, set()).add(side)
    finally:
        session.close()
    return {entity: next(iter(both)) for entity, both in found.items() if len(both) == 1}


def _pools(domain: Domain, split: Split, category: str | None) -> list[tuple[Intent, list[Slots]]]:
    """Each intent (of a category, if given) with its slot rows of the split; intents without any are left out."""
    return [
        (intent, rows[split]) for intent, rows in filled(domain) if rows[split] and category in (None, intent.category)
    ]


@lru_cache(maxsize=16)
def filled(domain: Domain) -> tuple[tuple[Intent, dict[Split, list[Slots]]], ...]:
    """Each intent with its slot rows by split. Raises `DataError` when an entity whose own hash does not decide (an
    order) goes with deciding ones (customers) of both sides. Kept, since every category of both splits draws from it.
    """
    session = domain.open()
    sides: dict[str, Split] = {}
    filled: list[tuple[Intent, dict[Split, list[Slots]]]] = []
    try:
        for intent in domain.intents:
            columns, found = session.select(intent.slots, MAX_SLOT_ROWS)
            rows: dict[Split, list[Slots]] = {"train": [], "heldout": []}
            for slots in (dict(zip(columns, row, strict=True)) for row in found):
                side = _side(domain, intent, slots)
                if side is None:
                    continue
                for entity in _entities(domain, intent, slots):
                    if sides.setdefault(entity, side) != side:
                        raise DataError(
                            f"{entity} would be in training and held out",
                            where=f"domain {domain.name}, intent {intent.name}",
                            fix="add its kind to split_by in intents.yaml",
                        )
                rows[side].append(slots)
            filled.append((intent, rows))
    finally:
        session.close()
    return tuple(filled)


def _side(domain: Domain, intent: Intent, slots: Slots) -> Split | None:
    """The split of a filled intent; None when its entities lie on both sides."""
    sides = {
        entity_split(_entity(domain, kind, slots[slot]))
        for kind, slot in intent.about.items()
        if kind in domain.split_by
    }
    return sides.pop() if len(sides) == 1 else None


def _entity(domain: Domain, kind: str, value: Scalar) -> str:
    return f"{domain.name}/{kind}:{value}"


def _entities(domain: Domain, intent: Intent, slots: Slots) -> tuple[str, ...]:
    return tuple(sorted(_entity(domain, kind, slots[slot]) for kind, slot in intent.about.items()))


def _task(domain: Domain, intent: Intent, slots: Slots, wording: str) -> DomainTask:
    calls = tuple(
        ToolCall(name=call.tool, arguments={name: _value(value, slots) for name, value in call.arguments.items()})
        for call in intent.calls
    )
    return DomainTask(
        instruction=_fill(wording, slots),
        category=intent.category,
        golden_calls=calls,
        communicate=tuple(_fill(text, slots) for text in intent.communicate),
        answer=_fill(intent.answer, slots),
        entities=_entities(domain, intent, slots),
        tools_needed=tuple(dict.fromkeys(call.name for call in calls)),
        intent=intent.name,
    )


def _value(value: str | int, slots: Slots) -> JsonValue:
    """An argument: `{slot}` keeps the slot's type."""
    if isinstance(value, str) and (whole := SLOT.fullmatch(value)):
        return slots[whole.group(1)]
    return _fill(value, slots) if isinstance(value, str) else value


def _fill(template: str, slots: Slots) -> str:
    return re.sub(SLOT, lambda slot: short(slots[slot.group(1)]), template)
