"""Published reference answers as what a rule can check, and plausible wrong ones beside them."""

import random
import re

from orchestra.rewards.answers import bare, normalise_text, stated
from orchestra.synthesis.names import made_up
from orchestra.text import HYPHENS, number
from orchestra.types import Verifier

MAX_WORDS = 8
"""A longer answer has too many right wordings for a comparison of words."""
NUMBER = re.compile(r"[+-]?[\d,]+(?:\.\d+)?", re.ASCII)
CODE = re.compile(r"0\d", re.ASCII)


def verifier_of(answer: str, *, judged: bool = False) -> Verifier | None:
    """Numeric for a number (1,234.5; right to half a unit of its last decimal), exact for a few words and for digits
    that begin with an idle zero, since 02139 and 007 are codes.

    For more, a judge's when `judged`, else None: no rule can check it.
    """
    text = bare(stated(answer))
    if not any(character.isalnum() for character in text):
        return None
    if NUMBER.fullmatch(figure := text.translate(HYPHENS)) and number(figure) is not None and not CODE.match(figure):
        decimals = len(figure.partition(".")[2])
        return Verifier(
            kind="numeric", answer=figure.replace(",", ""), tolerance=0.5 * 10.0**-decimals if decimals else 0
        )
    if len(text.split()) <= MAX_WORDS:
        return Verifier(kind="exact", answer=text)
    return Verifier(kind="judge", answer=text) if judged else None


DIGITS = re.compile(r"\d{1,4000}")
"""Digits in a row, as many as Python converts at once: its limit is 4,300."""
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
WRONG = 3
"""Wrong answers of a question."""


def wrong_answers(answer: str, rng: random.Random) -> tuple[str, ...]:
    """What somebody who does not know might say instead of `answer`, no two alike: other numbers, other options, the
    opposite, or made-up words in its words' places."""
    plain = answer.casefold()
    if plain in OPPOSITES:
        opposite = OPPOSITES[plain]
        return (opposite.upper() if answer.isupper() else opposite.title() if answer[0].isupper() else opposite,)
    if len(answer) == 1 and answer.isascii() and answer.isalpha():
        letters = "ABCDE" if plain in "abcde" else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        others = [letter for letter in letters if letter != answer.upper()]
        return tuple(letter if answer.isupper() else letter.lower() for letter in rng.sample(others, WRONG))
    found: dict[str, str] = {}
    while len(found) < WRONG:
        wrong = DIGITS.sub(lambda digits: _other(digits[0], rng), answer) if DIGITS.search(answer) else " ".join(
            made_up(rng) if word[0].isupper() else made_up(rng).lower() for word in answer.split()
        )  # fmt: skip
        if normalise_text(wrong) != normalise_text(answer):
            found.setdefault(normalise_text(wrong), wrong)
    return tuple(found.values())


def _other(digits: str, rng: random.Random) -> str:
    """Another number of that size: within about a half of it, or a few off."""
    value = int(digits)
    reach = max(5, value // 2)
    other = rng.randint(max(0, value - reach), value + reach)
    return str(other).zfill(len(digits)) if digits.startswith("0") else str(other)
