"""The words of arithmetic, and how a text becomes tokens: numbers as fractions, all else as one word or sign each.

Number words are read here and not by a library: whether `and` belongs to a number (`two hundred and five`) or parts two
(`the sum of two hundred and five`) only the grammar can say."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from fractions import Fraction

from orchestra.errors import CallError
from orchestra.tools.arithmetic.bounded import NoResultError, bounded

Token = Fraction | str

_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINALS = ["second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
BELOW_TWENTY = {word: value for value, word in enumerate([*_ONES, *_TEENS])}
TENS = {word: 10 * value for value, word in enumerate(_TENS, 2)}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
ORDINALS = {word: value for value, word in enumerate(_ORDINALS, 2)}
PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4} | {
    word + plural: value for word, value in ORDINALS.items() if value > 2 for plural in ("", "s")
}
"""Words for one part of so many."""
VULGAR = dict(zip("½¼¾⅓⅔", map(Fraction, ("1/2", "1/4", "3/4", "1/3", "2/3")), strict=True))

_PHRASES = {
    "+": "plus|increased by",
    "-": "minus|less|take away|decreased by|reduced by",
    "*": "x|times|multiply by|multiplied by|multiplied with|lots of|groups of",
    "/": "divide by|divided by|is divided by|over|split by|shared by",
    "mod": "modulo",
    "**": "^|to power of|to power|raised to power of|raised to power|raised to",
    "percent": "per cent|pct",
    "sqrt": "√|square root of|square root|sqrt of|root of",
    "cbrt": "∛|cube root of|cube root|cbrt of",
    "square": "square of",
    "cube": "cube of",
    "double": "double of|twice",
    "triple": "triple of",
    "sum": "sum of|total of|total for",
    "product": "product of",
    "difference": "difference of",
    "factorial": "factorial of",
    "gap": "difference between|gap between",
    "quotient": "quotient of",
    "average": "average of|average between|mean of|mean",
    "remainder": "remainder of|remainder when",
    "added to": "more than",
    "taken from": "less than|subtracted from|taken away from|deducted from",
    "percentage of": "as percentage of|as percent of|in percent of",
    "subtract": "deduct|take",
    "from": "away from",
}
_PHRASE = {tuple(text.split()): sign for sign, texts in _PHRASES.items() for text in [sign, *texts.split("|")]}
_LONGEST = max(map(len, _PHRASE))
_NUMBERS = "hundred dozen point then power root squared cubed"
VOCABULARY = frozenset(
    " ".join([*map(" ".join, _PHRASE), *BELOW_TWENTY, *TENS, *SCALES, *ORDINALS, *PARTS, _NUMBERS]).split()
)
"""Every word that the grammar knows."""
_ARTICLES = ("the", "a", "an")

_HYPHEN = re.compile(
    rf"\b({'|'.join(TENS)})-({'|'.join(_ONES[1:])})\b|\b({'|'.join(BELOW_TWENTY)})-({'|'.join(PARTS)})\b"
)
_OPENING = re.compile(
    r"(?:[\s=,]+|(?:please|pls|plz|hi|hello|ok|so|i need|(?:i would|i'd) like(?: you)? to|if you can)\b"
    r"|wh?at(?:'?s| is| are| does| do you get for)?\b|how (?:much|many) (?:is|are|does)\b"
    r"|(?:can|could|would) y?o?u(?: do)?\b|(?:tell|give|show) me\b|(?:calculate|compute|evaluate|solve|find|work out)\b"
    r"|(?:the )?(?:value|result) of\b)+"
)
_CLOSING = re.compile(
    r"(?:[\s.=?!,;:]|\b(?:equals?|makes?|is|are)(?: what| how much)?\b"
    r"|\b(?:please|pls|plz|exactly|for me|come to|if you can|if you'd be so kind|thanks|thank you)\b"
    r"|\b(?:ways|people|persons|children|kids|friends|parts)\b|,? what (?:do (?:you|i|we) get|is (?:it|that|left))\b)+$"
)
_TAIL = re.compile(
    r"(?:(?:,| and|,? but)? (?:give me|tell me|show me|whats|what's|what is|what will be) "
    r"(?:the (?:total|final price|final amount|sum|result|answer)|a decimal|what(?: is|'s|s)? left)"
    r"|, (?:the )?(?:total|final (?:price|figure))|(?:,? and)? don't round(?: it)?|,? how much total"
    r"|,? how much (?:each|per person|does (?:each|everyone) (?:get|pay)|it becomes)"
    r"|,? each (?:one |person )?(?:pays?|gets?) how much"
    r"|,? (?:as a decimal|(?:the )?exact (?:value|number)|not rounded|with all the decimals|whole numbers only))$"
)
"""What may follow a sum and leaves it as it is."""
_ONLY = re.compile(
    r"(?!.*\b(?:plus|with|add|total)\b)(.+?),? (?:just|only) the (?:tip|tax|vat|fee)(?: amount| part| itself)?"
)
_CURRENCY = re.compile(r"(?<=[\da-z])\s*\b(?:dollars?|euros?|bucks|usd|eur|gbp)\b|(?<=\d)(?:usd|eur|gbp)\b")
_SHORT = {"u": "you", "wat": "what", "wot": "what"}
_BOTH = re.compile(r"\bcents?\b|\bdollars?\b.*\beuros?\b|\beuros?\b.*\bdollars?\b")
"""Two currencies, or dollars and cents: their numbers are not added as they stand."""
_FACTORIAL = re.compile(r"(?<=\d)!(?!\s*$)|(?<=^\d)!$|(?<=^\d\d)!$")
"""`!` after a number within an expression, or where nothing else is said; at the end of more it is a mark of wonder."""
_MARKS = "_',\u00a0\u2009\u202f"
"""What parts thousands: a plain space does not, since it also stands between two numbers."""
_SPELLINGS = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "’": "'", "²": " squared ", "³": " cubed "}  # noqa: RUF001
    | dict.fromkeys("$€£", " ")
)
_DIGITS = rf"(?:\d{{1,3}}(?P<mark>[{_MARKS}])\d{{3}}(?:(?P=mark)\d{{3}})*(?![\d{_MARKS}]\d)|\d+)"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>(?:{_DIGITS}(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)(?P<nth>(?:st|nd|rd|th)\b)?"
    rf"|(?P<word>[a-z]+)|(?P<sign>\*\*|//|[-+*/%^(),√∛{''.join(VULGAR)}]))"
)


def nearest(word: str, words: frozenset[str], alike: float) -> str | None:
    """The most alike of the words with the same first letter, if it is as alike as that (0 to 1)."""
    near = get_close_matches(word, [one for one in words if one[0] == word[0]], n=1, cutoff=alike)
    return near[0] if near and abs(len(near[0]) - len(word)) < 2 else None


def plain(text: str) -> str:
    """In lower case, without openings such as *what is* and endings such as `=`."""
    text = _HYPHEN.sub(lambda found: " ".join(filter(None, found.groups())), text.lower().translate(_SPELLINGS))
    if not _BOTH.search(text):
        text = _CURRENCY.sub("", text)
    text = re.sub(r"(?<=\d)k\b", " thousand", re.sub(r"\b(?:u|wat|wot)\b", lambda word: _SHORT[word[0]], text))
    if _FACTORIAL.search(text):
        text = re.sub(r"(?<=\d)!", " factorial ", text)
    opening = _OPENING.match(text)
    text = text[opening.end() if opening else 0 :]
    while (shorter := _TAIL.sub("", _CLOSING.sub("", text))) != text:
        text = shorter
    only = _ONLY.fullmatch(text)
    return text if only is None else only[1]


def tokens(text: str) -> list[Token]:
    """Of one expression that is `plain`; raises `CallError`."""
    raw: list[Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise CallError(f"cannot read {text[position:].strip()[:20]!r} in an expression")
        raw.append(_token(found))
        position = found.end()
    return list(_phrases([token for token in raw if token not in _ARTICLES]))


def _token(found: re.Match[str]) -> Token:
    if found["number"] is None:
        return found["word"] or found["sign"]
    digits = re.sub(f"[{_MARKS}]", "", found["number"])
    mantissa, _, exponent = digits.partition("e")
    if len(exponent) > 3:
        raise NoResultError("the result is too large")
    return (
        f"{digits}th" if found["nth"] else bounded(Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0))
    )


def _phrases(raw: list[Token]) -> Iterator[Token]:
    """Every phrase as one token, the longest first."""
    position = 0
    while position < len(raw):
        for length in range(_LONGEST, 0, -1):
            sign = _PHRASE.get(tuple(map(str, raw[position : position + length])))
            if sign is not None:
                break
        yield raw[position] if sign is None else sign
        position += length
