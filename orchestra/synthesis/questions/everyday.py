"""Questions that need no tool: what everybody knows, such as the day after Monday, and what no tool here can know."""

import hashlib
import random
import re
from collections.abc import Iterator
from functools import cache

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.synthesis.questions.beyond import beyond
from orchestra.synthesis.questions.surface import typed
from orchestra.types import Category, Split

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("old", "new"), ("fast", "slow"), ("high", "low"), ("open", "closed"),
    ("wet", "dry"), ("early", "late"), ("full", "empty"), ("left", "right"), ("up", "down"), ("black", "white"),
    ("day", "night"), ("summer", "winter"), ("north", "south"), ("east", "west"), ("rich", "poor"),
    ("light", "heavy"), ("first", "last"), ("yes", "no"),
)  # fmt: skip
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
COUNTS = (
    ("days", "a week", 7), ("months", "a year", 12), ("hours", "a day", 24), ("minutes", "an hour", 60),
    ("seconds", "a minute", 60), ("legs", "a dog", 4), ("legs", "a spider", 8), ("sides", "a triangle", 3),
    ("sides", "a square", 4), ("wheels", "a car", 4), ("strings", "a violin", 4), ("centimetres", "a metre", 100),
)  # fmt: skip
HELDOUT = 0.25
"""Share of the wordings that no training example has."""
SHORT, WORD = 2, re.compile(r"[^\W_]+")
"""The most words of a request that is never held out."""
BEYOND = 0.7
"""Share of the questions that nobody here can answer; see `beyond`."""


@cache
def known() -> tuple[tuple[tuple[str, str], str], ...]:
    """Every fact: two questions that ask for it, and the answer."""
    found = []
    for sort, names in (("day", DAYS), ("month", MONTHS)):
        for number, name in enumerate(names):
            after, before = names[(number + 1) % len(names)], names[number - 1]
            found.append(((f"Which {sort} comes after {name}?", f"What {sort} follows {name}?"), after))
            found.append(((f"Which {sort} comes before {name}?", f"What {sort} precedes {name}?"), before))
    for pair in OPPOSITES:
        for one, other in (pair, (pair[1], pair[0])):
            found.append(((f"What is the opposite of {one}?", f"Which word means the opposite of {one}?"), other))
    for number, word in enumerate(NUMBERS, start=1):
        found.append(((f"Write {word} as a number.", f"Which number is {word}?"), str(number)))
    for what, of, number in COUNTS:
        asked = (f"How many {what} does {of} have?", f"How many {what} are there in {of}?")
        found.append((asked, str(number)))
    return tuple(found)


def every() -> list[tuple[str, str]]:
    """Every question with its answer."""
    return [(question, answer) for questions, answer in known() for question in questions]


@cache
def _sides() -> dict[str, Split]:
    """Half of the facts have one of their two questions held out: no fact is unknown to training, only a wording."""
    sides: dict[str, Split] = {}
    for questions, _ in known():
        share = _drawn(questions[0])
        sides |= dict.fromkeys(questions, "train")
        if share < 2 * HELDOUT:
            sides[questions[share < HELDOUT]] = "heldout"
    return sides


def _drawn(question: str) -> float:
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") / 2**64


def side(question: str) -> Split:
    """The split of a wording, by the hash of its words: capitals and signs make no other wording.

    Of greetings and the like there are too few to hold any out.
    """
    known_side = _sides().get(question)
    if known_side is not None:
        return known_side
    words = WORD.findall(question.lower())
    return "heldout" if len(words) > SHORT and _drawn(" ".join(words)) < HELDOUT else "train"


def direct(rng: random.Random, split: Split, share: SetPart = WHOLE) -> Iterator[Draft]:
    """Endless questions of a split, in any order; a wording of one split is never in the other."""
    mine = [(question, answer) for question, answer in every() if side(question) == split and share.owns(question)]
    others = beyond(rng)
    while True:
        if mine and rng.random() >= BEYOND:
            asked, answer = rng.choice(mine)
            question = typed(rng, asked)
        else:
            question, answer = asked, _ = next(others)
            if side(question) != split or not share.owns(question):
                continue
        yield Draft(
            category=Category.DIRECT,
            instruction=question,
            answer=answer,
            verifier="exact",
            entities=(f"everyday:{asked}",),
        )
