"""The choices that a thought can name, and how each is carried out; none of them knows which user it suits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from orchestra.types import ToolSpec

ORDER = ("strong", "good", "expert", "fair", "some", "poor")
"""Grades as `strongest` ranks them: experts for everything come first."""
BY_SUBJECT = ("expert", "strong", "good", "fair", "some", "poor")
"""Grades as `best` ranks them: experts made for the subject come first."""
POOR = ORDER[-1]

Mark = Literal["", "like", "not"]
"""Whether the user would like an expert, or avoid it."""
Word = Literal["cheapest", "priciest", "fastest", "strongest", "best"]
WORDS: tuple[Word, ...] = get_args(Word)
"""Ways to pick an expert. Each has its counterpart, so that trying all of them favours no price."""
OTHER, NAMED, SEARCH, ANSWER = "other", "named", "search", "answer"
"""`other-cheapest` leaves out the expert that the preference names; `named` takes it; then a search, and the answer."""
OTHERS = tuple(f"{OTHER}-{word}" for word in WORDS)
CHOICES = (*WORDS, *OTHERS, NAMED, SEARCH, ANSWER)
"""All of them."""
OTHERS_SHARE, NAMED_SHARE = 0.6, 0.2
"""How often a preference for or against an expert leads to a choice without that expert, and to the expert itself:
together they cancel, so that it is asked about as often as without the preference."""


@dataclass(frozen=True)
class Candidate:
    """An expert of a toolbox."""

    spec: ToolSpec
    grade: str
    """What its description promises in the topic; "poor" where it promises nothing."""
    mark: Mark = ""


def ranked(word: Word) -> Callable[[Candidate], tuple[float, float, str]]:
    """The expert that is least under this key is the one that the word means."""

    def key(one: Candidate) -> tuple[float, float, str]:
        usd, seconds = float(one.spec.call_usd), one.spec.latency_s
        match word:
            case "cheapest":
                first = usd
            case "priciest":
                first = -usd
            case "fastest":
                first = seconds
            case "strongest":
                first = ORDER.index(one.grade)
            case "best":
                first = BY_SUBJECT.index(one.grade)
        return (first, seconds, one.spec.name)

    return key


def carried_out(choice: str, left: Sequence[Candidate]) -> Candidate | None:
    """The expert that a choice such as `other-cheapest` asks of those left; None for a search or the answer."""
    if choice in (SEARCH, ANSWER) or not left:
        return None
    marked = [one for one in left if one.mark]
    if choice == NAMED:
        return marked[0] if marked else None
    first, _, second = choice.partition("-")
    pool = [one for one in left if not one.mark] if first == OTHER else list(left)
    word = next(word for word in WORDS if word == (second or first))
    return min([one for one in pool if one.grade != POOR] or pool, key=ranked(word), default=None)


def drawn(rng: random.Random, left: Sequence[Candidate], *, strongest: float, search: bool, answer: float = 0.0) -> str:
    """A choice, by habit and never by preference, price or subject: to answer, to ask the strongest, or any other.

    `search` says whether a search is on offer. Where a preference names an expert, some choices leave that one out and
    some take it.
    """
    if not left or rng.random() < answer:
        return ANSWER if answer or not search else SEARCH
    prefix = ""
    if any(one.mark for one in left):
        share = rng.random()
        if share < NAMED_SHARE:
            return NAMED
        if share < NAMED_SHARE + OTHERS_SHARE and not all(one.mark for one in left):
            prefix = f"{OTHER}-"
    if rng.random() < strongest:
        return f"{prefix}strongest"
    words = [*(word for word in WORDS if not strongest or word != "strongest"), *([SEARCH] if search else [])]
    word = rng.choice(words)
    return word if word == SEARCH else f"{prefix}{word}"
