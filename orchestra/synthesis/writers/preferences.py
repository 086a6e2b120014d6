"""Preferences written by a model: kept when a second reading, blind to the meaning, finds the same in them."""

import random
import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from pydantic import Field

from orchestra.errors import BudgetError, DataError, ToolError
from orchestra.synthesis.preferences.grammar import HELDOUT_EVERY
from orchestra.synthesis.preferences.templates import SLOTS, Kind, PreferenceTemplate, fixed, key, meant, other, parts
from orchestra.synthesis.writers.generator import Dropped
from orchestra.synthesis.writers.prompts import PREFERENCE, PREFERENCE_READ, REPAIR, SHORTER, SYSTEM
from orchestra.synthesis.writers.structured import Writer, as_json
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.types import Provenance, Record, Split, ToolKind, ToolSpec

KINDS: tuple[Kind, ...] = ("cheap", "fast", "accurate", "prefer", "avoid")
UNITS = {"cents": "cent", "seconds": "second"}
EXPERTS = (3, 5)
"""Of a toolbox that a preference is written for."""


# The docstrings of these two classes are a part of the schema that the writing model reads.
class Read(Record):
    """What a wish asks for, as a reader finds it."""

    kind: Kind
    tools: tuple[str, ...] = ()


class Proposed(Read):
    """A wish as a model writes it."""

    words: Annotated[str, Field(min_length=3, max_length=160)]


async def written(
    writer: Writer, catalogue: Catalogue, count: int, seed: int, licence: str, price_spread: float
) -> AsyncIterator[PreferenceTemplate | Dropped]:
    """`count` tries, every fifth held out, the kinds in turn.

    Raises `BudgetError` or `ToolError` when the endpoint ends the run.
    """
    taken: dict[Split, set[str]] = {"train": set(fixed("train")), "heldout": set(fixed("heldout"))}
    prompts = tuple(one.sha256 for one in (SYSTEM, PREFERENCE, PREFERENCE_READ, REPAIR, SHORTER))
    origin = Provenance(
        source="written by a model",
        licence=licence,
        generator=f"model:{writer.chat.chat.model}",
        seed=seed,
        prompts=prompts,
    )
    for number in range(count):
        rng = random.Random(f"{seed}:{PREFERENCE.sha256}:{number}")
        split: Split = "heldout" if number % HELDOUT_EVERY == HELDOUT_EVERY - 1 else "train"
        before = number // HELDOUT_EVERY  # held-out ones
        kind = KINDS[(before if split == "heldout" else number - before) % len(KINDS)]
        experts = _experts(catalogue, rng, price_spread)
        try:
            words = await _one(writer, kind, split, experts, catalogue.topics, taken, rng)
        except DataError as error:
            yield Dropped.by(f"{split} {number}", error)
            continue
        taken[split].add(key(words))
        yield PreferenceTemplate(split=split, kind=kind, words=words, provenance=origin)


async def collected(
    writer: Writer, catalogue: Catalogue, count: int, seed: int, licence: str, price_spread: float
) -> tuple[list[PreferenceTemplate], list[str]]:
    """The preferences, and lines for the user: each dropped one with its reason, and why a run ended early."""
    made: list[PreferenceTemplate] = []
    lines: list[str] = []
    try:
        async for one in written(writer, catalogue, count, seed, licence, price_spread):
            if isinstance(one, PreferenceTemplate):
                made.append(one)
            else:
                lines.append(f"dropped: {one.what}: {one.why}")
    except (BudgetError, ToolError) as error:
        lines.append(f"ended early: {error}")
    finally:
        await writer.chat.aclose()
    return made, lines


async def _one(
    writer: Writer,
    kind: Kind,
    split: Split,
    experts: Sequence[ToolSpec],
    topics: Sequence[str],
    taken: dict[Split, set[str]],
    rng: random.Random,
) -> str:
    """The pattern of one preference; raises `DataError` when it is refused, or read as another."""
    shown = as_json([_shown(spec) for spec in experts])

    def check(made: Proposed) -> None:
        if made.kind != kind:
            raise DataError(f"kind is {made.kind}, {kind} was asked for")
        found = key(pattern(made, experts, topics))
        if found in taken[other(split)] or found in taken[split]:
            raise DataError("the wish was said in these words before; use others")

    def is_offered(made: Read) -> None:
        if strange := set(made.tools) - {spec.name for spec in experts}:
            raise DataError(f"{min(strange)} is not among the tools")

    values = {"tools": shown, "kind": kind}
    made = await writer.write(Proposed, PREFERENCE, values, seed=rng.randrange(2**31), check=check)
    values = {"tools": shown, "words": made.words}
    read = await writer.write(Read, PREFERENCE_READ, values, seed=rng.randrange(2**31), check=is_offered)
    if (read.kind, set(read.tools)) != (made.kind, set(made.tools)):
        found = f"{read.kind} {', '.join(read.tools)}".strip()
        raise DataError(f"{made.words!r} was meant as {kind} and is read as {found}")
    return pattern(made, experts, topics)


def pattern(made: Proposed, experts: Sequence[ToolSpec], topics: Sequence[str]) -> str:
    """The words with a slot where they speak of these experts.

    Raises `DataError` unless the tools that were named follow from the words by exactly one rule: the vector P is then
    what that rule gives (`PreferenceTemplate.fill`), over these experts and over any others.
    """
    names = [spec.name for spec in experts]
    if strange := set(made.tools) - set(names):
        raise DataError(f"{min(strange)} is not among the tools")
    if re.search("[{}]", made.words):
        raise DataError("the words hold braces")
    named = [name for name in names if _found(name, made.words)]
    found: list[str] = []
    for slot, kinds in SLOTS.items():
        if made.kind not in kinds:
            continue
        if not slot:
            found += [made.words] if not made.tools and not named else []
            continue
        for value in _values(slot, made.words, named, topics):
            same = set(meant(slot, value, experts)) == set(made.tools) and parts(slot, value, experts)
            # Whatever else the words name would stay, and be about another toolbox's tools.
            if same and named == ([value] if slot == "x" else []) and len(_found(value, made.words)) == 1:
                found.append(f"{{{slot}}}".join(re.split(_whole(value), made.words)))
    if len(found) != 1:
        raise DataError(
            "the tools do not follow from the words: name one tool, or the most cents or seconds of a call, or a "
            "subject that some descriptions name; cheap, fast and accurate name none"
        )
    return found[0]


def _values(slot: str, words: str, named: Sequence[str], topics: Sequence[str]) -> Sequence[str]:
    if slot == "x":
        return named
    if slot == "subject":
        return [topic for topic in topics if _found(topic, words)]
    return list(dict.fromkeys(re.findall(r"\d+(?:\.\d+)?", words))) if UNITS[slot] in words.casefold() else []


def _whole(value: str) -> str:
    return rf"(?<![\w-])(?<!\d\.){re.escape(value)}(?![\w-])(?!\.\d)"


def _found(value: str, words: str) -> list[str]:
    return re.findall(_whole(value), words)


def _experts(catalogue: Catalogue, rng: random.Random, spread: float) -> list[ToolSpec]:
    """Some experts at random prices."""
    names = rng.sample(catalogue.names(ToolKind.EXPERT), rng.randint(*EXPERTS))
    return [catalogue.spec(name, price_factor=spread ** rng.uniform(-1, 1)) for name in names]


def _shown(spec: ToolSpec) -> dict[str, str | float]:
    return {
        "name": spec.name,
        "good_at": spec.description,
        "cents_a_call": round(100 * float(spec.call_usd), 4),
        "seconds": spec.latency_s,
    }
