"""Whether two answers say the same: words without what does not decide, and numbers by their value."""

import re
import unicodedata
from fractions import Fraction

from orchestra.errors import JudgeError
from orchestra.text import HYPHENS, number

WRAPPED = (
    re.compile(r"\\boxed\{(.*)\}", re.DOTALL),
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\$\$(.*)\$\$", re.DOTALL),
    re.compile(r"\$([^$]*)\$"),
    re.compile(r"\*\*(.*)\*\*"),
)
"""What mathematics and emphasis are written in; it is no part of the answer."""
STATED = re.compile(r"(?im)^[ \t>#*_-]*(?:(?:the|exact|final)[ \t]+)*answer[ \t]*(?:[*_]+[ \t]*)?:[*_]*\s*(\S.*)$")
"""The line that states an answer after its explanation, also with Markdown's emphasis."""
BOXED = "\\boxed{"
POWER = re.compile("(?<=[0-9)])(?=[⁺⁻]?[⁰¹²³⁴-⁹])")
"""Between a number and its power: compatible characters of 2⁵ are 25."""
MIXED = re.compile("(?<=[0-9])(?=[¼-¾⅐-⅞])")
"""Between a whole number and a fraction: those of 1½ are 11/2."""
ALONE = re.compile(r"(?<!\S)(?<!\[ )(?:\[ )+([^\s\[\]]+)(?: \])+(?!\S)")
"""One word in square brackets, such as option [B]."""
SPELT = (
    ("!=", "≠"), ("<=", "≤"), (">=", "≥"), ("==", "="),
)  # fmt: skip
"""Comparisons of programs, as signs."""
TIMES = re.compile(r"(?<=[\w)])(?: \* |\*)(?=[\w(])")
"""A star between two numbers or names; elsewhere it is emphasis."""
RATIO = re.compile(r"(?<=\d)\s*:\s*(?=\d)")
NOUN = re.compile(r"\w\w|\d")
"""How a word begins that an article may stand before: the A of an option, of "vitamin A" or of a set is none."""
WORD = re.compile(r"[^\W\d_]'?[^\W\d_]")
"""Beside one, `!` is a mark of wonder; elsewhere 5! is a product."""
MARKS = str.maketrans("", "", "$€£`\\")
"""What a number is often written with, and is no part of it: $18, `18`, \\$18."""
KEPT = "._+/-#!"
"""Signs that count within a word, and some of them at its end: and/or, C++, C#, 5!."""


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


def stated(text: str) -> str:
    r"""What a reply gives as its answer after an explanation: its last line `Answer: X`, or else its last `\boxed{X}`;
    all of it where it has neither."""
    if lines := STATED.findall(text):
        return str(lines[-1]).strip("*_ \t")
    begin = text.rfind(BOXED)
    depth = 0
    for at in range(begin + len(BOXED) - 1, len(text)) if begin >= 0 else ():
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[begin + len(BOXED) : at]
    return text


def same_text(answer: str, expected: str) -> bool:
    """Whether the answer that a reply states is the expected one, but for what `normalise_text` leaves out."""
    told, wanted = normalise_text(stated(answer)), normalise_text(stated(expected))
    if not {*"()[]"} & {*expected}:  # A program prints a list in brackets.
        told = " ".join(word for word in told.split() if word not in "[]")
    return told == wanted


def normalise_text(text: str) -> str:
    """Case, spaces, articles, emphasis and punctuation do not decide whether an answer is right.

    A sign, a comparison and an operator do; so do square brackets around several words: (0, 1) is not [0, 1].
    """
    while (again := _normalised(text)) != text:
        text = again
    return text


def same_number(answer: str, expected: str, tolerance: float) -> bool:
    """Whether the answer that a reply states is one number within `tolerance` (absolute) of the
    expected one.

    Raises `JudgeError` when the expected answer is no number.
    """
    wanted, told = number(expected.strip()), number(bare(stated(answer)).translate(MARKS).strip().rstrip("."))
    if wanted is None:
        raise JudgeError(f"the expected answer {expected!r:.40} is not a number", fix="fix the example")
    return told is not None and abs(told - wanted) <= Fraction(tolerance) + Fraction(1, 10**9)


def _normalised(text: str) -> str:
    apart = MIXED.sub(" ", POWER.sub("^", bare(text)))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", apart).casefold()).translate(HYPHENS)
    for program, sign in SPELT:
        folded = folded.replace(program, sign)
    folded = RATIO.sub("\N{RATIO}", TIMES.sub(" \N{MULTIPLICATION SIGN} ", folded))
    parts, sentence = "".join(map(_sign, folded)).split(), WORD.search(folded) is not None
    words = [word for part in parts if (word := _trimmed(part, sentence=sentence))]
    kept: list[str] = []
    for word in reversed(words):
        article = word == "the" or (word == "an" and kept) or (word == "a" and kept and NOUN.match(kept[-1]))
        if not article:
            kept.append(word)
    return ALONE.sub(r"\1", " ".join(reversed(kept)) or " ".join(words))


def _sign(one: str) -> str:
    """A character as it counts: within a word, as a word of its own, or as a space."""
    kind = unicodedata.category(one)
    if kind[0] in "LMN" or one in KEPT:
        return one
    return f" {one} " if one in "^[]" or (kind == "Sm" and one != "~") else " "


def _trimmed(word: str, *, sentence: bool) -> str:
    """The word without punctuation at its ends; the sign of C#, of 5! and of .5 stays."""
    core = word.strip(".!#")
    head, _, tail = word.partition(core) if core else ("", "", "")
    if head == "." and core[0].isdecimal():
        core = f".{core}"
    if tail[:1] == "!" and not sentence:
        return f"{core}!"
    return f"{core}#" if tail[:1] == "#" and core[-1].isalpha() else core
