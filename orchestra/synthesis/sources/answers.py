"""Published reference answers as what a rule can check."""

import re

from orchestra.types import Verifier

MAX_WORDS = 8
"""A longer answer has too many right wordings for a comparison of words."""
NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?", re.ASCII)
WRAPPED = (
    re.compile(r"\\boxed\{(.*)\}", re.DOTALL),
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\$\$(.*)\$\$", re.DOTALL),
    re.compile(r"\$([^$]*)\$"),
    re.compile(r"\*\*(.*)\*\*"),
)
"""What mathematics and emphasis are written in; it is no part of the answer."""


def bare(answer: str) -> str:
    r"""The answer without spaces around, a final full stop, `\boxed{}`, dollars or stars: `$\boxed{42}$.` is 42."""
    while True:
        text = answer.strip()
        text = text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
        for form in WRAPPED:
            if (found := form.fullmatch(text)) is not None:
                text = found[1].strip()
        if text == answer:
            return text
        answer = text


def verifier_of(answer: str, *, judged: bool = False) -> Verifier | None:
    """Numeric for a number (1,234.5; right to half a unit of its last decimal), exact for a few words.

    For more, a judge's when `judged`, else None: no rule can check it.
    """
    text = bare(answer)
    if not any(character.isalnum() for character in text):
        return None
    if NUMBER.fullmatch(text):
        decimals = len(text.partition(".")[2])
        return Verifier(
            kind="numeric", answer=text.replace(",", ""), tolerance=0.5 * 10.0**-decimals if decimals else 0
        )
    if len(text.split()) <= MAX_WORDS:
        return Verifier(kind="exact", answer=text)
    return Verifier(kind="judge", answer=text) if judged else None
