"""Whether a text overlaps protected ones: an index of hashed n-grams of normalised words.

The rule is that of GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix C), which lm-evaluation-harness also follows
(docs/decontamination.md): lower-cased words without punctuation overlap when any 13 in a row are shared, or fewer where
the texts are shorter, but never below 8. What is shorter than 8 words counts only as a whole.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LONGEST, SHORTEST = 13, 8
"""Words of an n-gram: 13, or all words of a shorter text, down to 8."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
"""Letters and digits in a row; scripts without spaces give a word for each character."""
BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no position of an n-gram loses bits modulo 2**64."""
Hashes = NDArray[np.uint64]


def words(text: str) -> list[str]:
    """Normalised words: compatibility forms, case, punctuation and spaces do not matter."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return WORD.findall(plain)


@lru_cache(maxsize=1 << 17)
def _hash(word: str) -> int:
    # Not hash(): that differs from process to process.
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def hashed(told: list[str]) -> Hashes:
    """64-bit hashes of words: (words,)."""
    return np.fromiter((_hash(word) for word in told), dtype=np.uint64, count=len(told))


def grams(hashes: Hashes, size: int) -> Hashes:
    """Hashes of every `size` words in a row: (words - size + 1,), empty where there are fewer."""
    count = len(hashes) - size + 1
    if count <= 0:
        return hashes[:0]
    rolled = hashes[:count].copy()
    for offset in range(1, size):
        rolled *= BASE
        rolled += hashes[offset : offset + count]
    return rolled


@dataclass(frozen=True)
class Overlap:
    """The index of one protected set. It holds hashes only, at most 48 bytes a protected word, and no text."""

    texts: int
    inside: dict[int, Hashes]
    """Sorted n-grams of the texts, by n from 8 to 13: what a row must not contain (13) or be (fewer)."""
    shorts: dict[int, Hashes]
    """Whole texts of 8 to 12 words, by length: what a row must not contain."""
    wholes: frozenset[tuple[int, int]]
    """(words, hash) of texts below 8 words: what a row must not be."""

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """Index the texts, one at a time."""
        inside = {size: array("Q") for size in range(SHORTEST, LONGEST + 1)}
        shorts = {size: array("Q") for size in range(SHORTEST, LONGEST)}
        wholes: set[tuple[int, int]] = set()
        count = 0
        for text in texts:
            hashes = hashed(words(text))
            size = len(hashes)
            count += 1
            if 0 < size < SHORTEST:
                wholes.add((size, int(grams(hashes, size)[0])))
            elif size in shorts:
                shorts[size].frombytes(grams(hashes, size).tobytes())
            for length, held in inside.items():
                held.frombytes(grams(hashes, length).tobytes())
        return cls(count, _sorted(inside), _sorted(shorts), frozenset(wholes))

    def found(self, hashes: Hashes) -> bool:
        """Whether a text, as `hashed(words(text))`, overlaps one of the set."""
        size = len(hashes)
        if size < SHORTEST:
            return size > 0 and (size, int(grams(hashes, size)[0])) in self.wholes
        if _any_in(grams(hashes, min(size, LONGEST)), self.inside[min(size, LONGEST)]):
            return True
        return any(_any_in(grams(hashes, length), held) for length, held in self.shorts.items() if len(held))


def _sorted(held: dict[int, "array[int]"]) -> dict[int, Hashes]:
    return {size: np.unique(np.frombuffer(values, dtype=np.uint64)) for size, values in held.items()}


def _any_in(wanted: Hashes, held: Hashes) -> bool:
    if not len(wanted) or not len(held):
        return False
    places: Any = np.searchsorted(held, wanted)
    places[places == len(held)] = 0
    return bool((held[places] == wanted).any())
