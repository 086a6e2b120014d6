"""Preferences as patterns: a way to say one, filled from the names, prices, seconds and subjects of a toolbox.

"nothing above {cents} cents a call." is filled with a limit that parts the experts at hand; those above it are avoided.
"""

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestra.config.schema import Synthesize
from orchestra.errors import DataError
from orchestra.files.jsonl import read_jsonl
from orchestra.synthesis.preferences.sentences import WORDS, preference, sayable, weighed
from orchestra.types import Preference, Provenance, Record, Split, ToolKind, ToolSpec
from orchestra.validation.gate.overlap import words as plain_words

Kind = Literal["cheap", "fast", "accurate", "prefer", "avoid"]
SLOTS: dict[str, tuple[Kind, ...]] = {
    "": ("cheap", "fast", "accurate"),
    "x": ("prefer", "avoid"),
    "cents": ("avoid",),
    "seconds": ("avoid",),
    "subject": ("prefer",),
}
"""What stands in a pattern, and the kinds that it can be: nothing; an expert's name; the most that a call may cost, or
take; what an expert is good at."""
SLOT = re.compile(r"\{([a-z]+)\}")
TRIES = 20
"""Patterns tried on a toolbox before a fixed sentence is taken: some need experts that differ in what they speak of."""


class PreferenceTemplate(Record):
    """One way to say a preference; a row of a file of preferences."""

    split: Split
    kind: Kind
    words: Annotated[str, Field(min_length=3, max_length=160)]
    provenance: Provenance

    @model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        slots = SLOT.findall(self.words)
        if len(slots) > 1 or re.search("[{}]", SLOT.sub("", self.words)):
            raise ValueError("words hold braces that are no single slot")
        if self.kind not in SLOTS.get(self.slot, ()):
            raise ValueError(f"{{{self.slot}}} is no slot of kind {self.kind}")
        return self

    @property
    def slot(self) -> str:
        found = SLOT.search(self.words)
        return found[1] if found is not None else ""

    def fill(self, experts: Sequence[ToolSpec], topics: Iterable[str], rng: random.Random) -> Preference | None:
        """The preference over these experts; None where no value of its slot tells some of them from the others."""
        names = [spec.name for spec in experts]
        if not self.slot:
            return weighed(self.kind, self.words, names, ())
        options = [one for one in values(self.slot, experts, topics) if parts(self.slot, one, experts)]
        if not options:
            return None
        value = rng.choice(options)
        said = self.words.replace(f"{{{self.slot}}}", value)
        return weighed(self.kind, said, names, meant(self.slot, value, experts))


def values(slot: str, experts: Sequence[ToolSpec], topics: Iterable[str]) -> list[str]:
    """What may stand in a slot, for these experts."""
    match slot:
        case "x":
            return [spec.name for spec in experts]
        case "cents":
            return _limits({_cents(spec) for spec in experts})
        case "seconds":
            return _limits({spec.latency_s for spec in experts})
        case _:
            return list(topics)


def meant(slot: str, value: str, experts: Sequence[ToolSpec]) -> tuple[str, ...]:
    """The experts that a filled slot is about: the one named, those over the limit, or those good at the subject."""

    def is_meant(spec: ToolSpec) -> bool:
        match slot:
            case "x":
                return spec.name == value
            case "cents":
                return _cents(spec) > float(value)
            case "seconds":
                return spec.latency_s > float(value)
            case _:
                # "some math" and "easy math" are no specialists.
                return re.search(rf"(?<!some )(?<!easy )\b{re.escape(value)}\b", spec.description) is not None

    return tuple(spec.name for spec in experts if is_meant(spec))


def parts(slot: str, value: str, experts: Sequence[ToolSpec]) -> bool:
    """Whether some are meant and, unless one is named, others are not."""
    return 0 < len(meant(slot, value, experts)) < len(experts) + (slot == "x")


def key(words: str) -> str:
    """What tells two wordings apart: letters and digits, whatever their case, marks and spaces."""
    return " ".join(plain_words(words))


@lru_cache
def fixed(split: Split) -> frozenset[str]:
    """The keys of the sentences that are always there (`orchestra.synthesis.preferences.sentences`)."""
    return frozenset(key(words) for kind in WORDS for words in sayable(kind, split))


def other(split: Split) -> Split:
    return "heldout" if split == "train" else "train"


def load(path: Path) -> dict[Split, dict[Kind, list[PreferenceTemplate]]]:
    """A file of preferences by split and kind; raises `DataError` for a wording of both splits or an empty split."""
    state = path.stat() if path.is_file() else None
    return _load(path, None if state is None else (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=4)
def _load(path: Path, state: tuple[int, int] | None) -> dict[Split, dict[Kind, list[PreferenceTemplate]]]:
    """Kept, since every example draws from it, for as long as the file's `state` is the same."""
    fix = "write it with `orchestra data preferences`"
    found: dict[Split, dict[Kind, list[PreferenceTemplate]]] = {
        "train": defaultdict(list),
        "heldout": defaultdict(list),
    }
    keys: dict[Split, set[str]] = {"train": set(fixed("train")), "heldout": set(fixed("heldout"))}
    for number, wish in enumerate(read_jsonl(path, PreferenceTemplate, fix=fix), start=1):
        if key(wish.words) in keys[other(wish.split)]:
            what = f"{wish.words!r} is worded as one of the other split"
            raise DataError(what, where=f"{path}:{number}", fix="remove one of them")
        keys[wish.split].add(key(wish.words))
        found[wish.split][wish.kind].append(wish)
    for split, kinds in found.items():
        if not set(kinds) & set(SLOTS[""]):
            raise DataError(f"no preference of the split {split} for any example", where=str(path), fix=fix)
    return found


def draw(
    config: Synthesize,
    topics: Collection[str],
    rng: random.Random,
    split: Split,
    toolbox: Iterable[ToolSpec],
    *,
    experts_matter: bool,
) -> Preference:
    """A stated preference: from the file that `synthesize.preferences` names, or of the fixed sentences."""
    experts = [spec for spec in toolbox if spec.kind is ToolKind.EXPERT]
    if config.preferences is not None:
        kinds = load(Path(config.preferences))[split]
        fitting = sorted(kind for kind in kinds if experts_matter or kind in SLOTS[""])
        for _ in range(TRIES):
            filled = rng.choice(kinds[rng.choice(fitting)]).fill(experts, topics, rng)
            if filled is not None:
                return filled
    return preference(rng, split, [spec.name for spec in experts], experts_matter=experts_matter)


def _cents(spec: ToolSpec) -> float:
    return 100 * float(spec.call_usd)


def _limits(found: Collection[float]) -> list[str]:
    """A short number between each two neighbours, as a person would name it."""
    limits = []
    low_to_high = sorted(found)
    for low, high in itertools.pairwise(low_to_high):
        for digits in (1, 2, 3):
            limit = float(f"{(max(low, high / 100) * high) ** 0.5:.{digits}g}")
            if low <= limit < high:
                limits.append(f"{limit:.6f}".rstrip("0").rstrip("."))
                break
    return limits
