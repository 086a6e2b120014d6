"""The sum within a request: without greetings, thanks and the words that only ask for it.

What may be left out is listed, save first clauses and a last sentence without a number: `My boss wants to know this:
3 + 4`. Any other word may change the sum (`7 / 3, rounded down`), so that a request with one stays unread.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from orchestra.tools.arithmetic.words import BELOW_TWENTY, PARTS, SCALES, TENS, VOCABULARY, nearest

_ASKING = """
    a again all also always am and answer any anybody anyone are ask asked asking be boss bother bro but calculate can
    cheers come comes compute could dear did do does dude dunno equal equals er evaluate evening excuse figure final
    find finding for forget forgot friend get gimme girl give go gonna good got guess had has have hello help hey hi
    hmm homework how hun hurry i i'd i'll i'm i've idea if im in is it it's just keep kindly know later lazy let let's
    lets like listen lol lot love makes many mate may maybe me mind morning much my need needed next no now number of
    oh ok okay once one's our out pal please pls plz problem question quick quickly real really remember reply result
    right say school see show simple sir so solve some somebody someone sorry sure tell thank thanks that that's the
    then there these they think this till time to today too u uh um us value wait wanna want wanted was we well were
    what what's whats when which who will with wonder wondering work works would y'all yes yo you your
"""
_ENDING = "advance appreciated back brief exactly kind last making mean owe pay thx ty yours"
ASKING = frozenset(_ASKING.split())
"""Words that ask for a sum and are no part of it."""
ENDING = ASKING | frozenset(_ENDING.split())
"""Words that may stand after it."""
MOST = 10
"""Words that may be left out at either end."""

_CLAUSE, _LAST = re.compile(r"[.?!:;,]+\s+"), re.compile(r"(?:[,.?!]|\.\.\.)\s+(?=[^,.?!]+[.?!]*\s*$)")
_NAMED = sorted({*BELOW_TWENTY, *TENS, *SCALES, *PARTS, "hundred", "dozen"} - {"one"})
_NUMBER = re.compile(rf"\d|[√∛½¼¾⅓⅔]|\b(?:{'|'.join(_NAMED)})s?\b", re.IGNORECASE)
"""`One` is left out: `one question: …`."""
_ONE = re.compile(r"\ban? [a-z]", re.IGNORECASE)
_CHANGES = re.compile(
    r"\b(?:add\w*|absolute|average|base|binary|cubed?|decimals?|divid\w*|doubled?|each|except|factorial|floor\w*"
    r"|fractions?|halved?|hex|if|ignor\w*|instead|integer|left|log\w*|mean|minus|"
    r"multipl\w*|nearest|negat\w*|not|opposite|over|per|percent\w*|plus|positive|"
    r"reciprocal|remain\w*|rest|revers\w*|round\w*|root|squared?|start|subtract\w*|sum|take|"
    r"taken|then|times|tripled?|trunc\w*|twice|unless|when|whole|without)\b",
    re.IGNORECASE,
)
"""Words of a first clause or a last sentence that may change the sum beside it."""
_JOINED = re.compile(r"[-+]|(?:plus|minus|less|increased|decreased|reduced)\b", re.IGNORECASE)
"""How a core begins that is joined to what stands before it."""
_REFERS = frozenset(["answer", "figure", "final", "it", "number", "result", "that", "this", "these", "they"])
"""Words before it that stand for a number: `that plus 5` is no `+5`."""
_PART = re.compile(r"\b(?:just|only)\b", re.IGNORECASE)
"""Words after a sum that ask for a part of it: `25 plus 16% tip, just the tip`."""
_EDGES = " \t\n.?!:;,"


def cores(text: str) -> Iterator[str]:
    """What a request may ask for, itself not among them: with its whole end, then without, and less and less of its
    start; nothing where it holds no number, and no `a day` either."""
    if not (numbered(text) or _ONE.search(text)):
        return
    rest = _without_last_sentence(_without_first_clauses(text))
    if rest != text:
        yield rest
    words = rest.split()
    first = next((at for at, word in enumerate(words) if not _only(word, ASKING)), len(words))
    last = next((at for at, word in enumerate(reversed(words)) if not _only(word, ENDING)), len(words))
    # Words such as `the` may belong to the sum at its start; at its end hardly any does, and each try takes time.
    for end in dict.fromkeys((0, min(last, MOST))):
        for start in range(min(first, MOST) + 1):
            core = " ".join(words[start : len(words) - end]).strip(_EDGES)
            if start + end and core and not (start and _JOINED.match(core) and _refers(words[start - 1])):
                yield core


def numbered(text: str) -> bool:
    """Whether it holds a number, in digits or in words."""
    return bool(_NUMBER.search(text))


def _refers(word: str) -> bool:
    """Whether it may stand for a number: by what it says, or as it is misspelt; `the answer:` names what follows."""
    bare = word.lower()
    return bare in _REFERS or (bare.isalpha() and bare not in ASKING)


def _only(word: str, words: frozenset[str]) -> bool:
    """Whether it is one of the words, or nearly; signs are, and `sum:`, which names what follows."""
    bare = word.lower().replace("’", "'").strip(_EDGES + "…")  # noqa: RUF001
    return not bare or bare in words or word.lower() == "sum:" or _misspelt(bare.removesuffix("'s"), words)


@lru_cache(maxsize=1000)
def _misspelt(word: str, words: frozenset[str]) -> bool:
    known = word in VOCABULARY or _CHANGES.fullmatch(word) or len(word) < 4 or not word.isalpha()
    return not known and nearest(word, words, 0.8) is not None


def _without_first_clauses(text: str) -> str:
    """From the first clause on that holds a number, or a word that may change the sum."""
    position = 0
    for found in _CLAUSE.finditer(text):
        clause = text[position : found.start()]
        if _counts(clause):
            break
        position = found.end()
    return text[position:]


def _without_last_sentence(text: str) -> str:
    """Nor the last clause: where it holds no number, and no word that may change the sum."""
    found = _LAST.search(text)
    if found is None or _counts(last := text[found.end() :]) or _PART.search(last):
        return text
    return text[: found.start()]


def _counts(part: str) -> bool:
    return bool(numbered(part) or _CHANGES.search(part))
