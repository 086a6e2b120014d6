"""Whether a text overlaps protected ones: an index of hashed n-grams of normalised words.

The rule is that of GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix C), which lm-evaluation-harness also follows
(docs/reference/data.md): lower-cased words without punctuation overlap when any 13 in a row are shared, or fewer where
the texts are shorter, but never below 8. What is shorter than 8 words counts only as a whole.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

LONGEST, SHORTEST = 13, 8
"""Words of an n-gram: 13, or all words of a shorter text, down to 8."""
MARKS = "".join(mark for mark in map(chr, range(0x300, 0xAC00)) if unicodedata.category(mark) in ("Mn", "Mc"))
"""Combining marks, such as the vowel signs of Hindi."""
WORD = re.compile(rf"[\u3040-\u30ff\u3400-\u9fff]|(?:[^\W_\u3040-\u30ff\u3400-\u9fff]+[{MARKS}]*)+")
"""Letters and digits in a row, with their marks; scripts without spaces give a word for each character."""
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


def hashed(told: Iterable[str]) -> Hashes:
    """64-bit hashes of words: (words,)."""
    return np.fromiter(map(_hash, told), dtype=np.uint64)


def rolling(hashes: Hashes) -> Iterator[tuple[int, Hashes]]:
    """(n, hashes of the n words from each place on) for n from 1 to 13: (words,); void in the last n - 1."""
    count = len(hashes)
    padded = np.concatenate([hashes, np.zeros(LONGEST, dtype=np.uint64)])
    rolled = hashes.copy()
    yield 1, rolled
    for size in range(2, LONGEST + 1):
        rolled *= BASE
        rolled += padded[size - 1 : size - 1 + count]
        yield size, rolled


@dataclass(frozen=True)
class Grams:
    """N-grams of one length."""

    hashes: Hashes
    """Sorted: (grams,)."""
    owners: NDArray[np.uint8]
    """Number of the set that each is from: (grams,)."""

    @classmethod
    def of(cls, parts: list[bytearray]) -> Self:
        """Of each set's hashes, in the order of the sets; what is in several is the first one's."""
        held = np.concatenate([np.frombuffer(part, dtype=np.uint64) for part in parts])
        owners = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part) // held.itemsize for part in parts])
        hashes, first = np.unique(held, return_index=True)
        return cls(hashes, owners[first])

    def find(self, wanted: Hashes) -> NDArray[np.int16]:
        """The owner of each wanted one, -1 where it is none of these: (wanted,)."""
        places = np.minimum(np.searchsorted(self.hashes, wanted), len(self.hashes) - 1)
        return np.where(self.hashes[places] == wanted, self.owners[places], np.int16(-1)).astype(np.int16)


@dataclass(frozen=True)
class Overlap:
    """The index of protected texts. It holds hashes only, at most 54 bytes a protected word, and no text."""

    texts: dict[str, int]
    """How many texts, by set."""
    alone: dict[int, Grams]
    """What a row of n words must not be, by n from 1 to 12: a whole text, or from 8 words on a part of one."""
    within: dict[int, Grams]
    """What a row must not contain, by n from 8 to 13: a whole text of n words; any 13 words of a longer one."""

    @classmethod
    def build(cls, sets: Mapping[str, Iterable[str]]) -> Self:
        """Index the texts of each set, one at a time; 255 sets at most."""
        alone = {size: [bytearray() for _ in sets] for size in range(1, LONGEST)}
        within = {size: [bytearray() for _ in sets] for size in range(SHORTEST, LONGEST + 1)}
        texts = dict.fromkeys(sets, 0)
        for number, (name, told) in enumerate(sets.items()):
            for text in told:
                texts[name] += 1
                hashes = hashed(words(text))
                count = len(hashes)
                for size, rolled in rolling(hashes):
                    grams = rolled[: max(0, count - size + 1)].tobytes()
                    if size in alone and (size == count or size >= SHORTEST):
                        alone[size][number] += grams
                    if size in within and size in (count, LONGEST):
                        within[size][number] += grams
        return cls(texts, *({size: Grams.of(p) for size, p in held.items() if any(p)} for held in (alone, within)))

    def found(self, rows: Sequence[Sequence[str]]) -> list[str | None]:
        """For each row, as its normalised words, the name of a set that it overlaps; None where there is none.

        Many rows at once cost a twentieth of one at a time.
        """
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        owner = np.full(len(rows), -1, dtype=np.int16)
        hashes = hashed(word for row in rows for word in row)
        row_of = np.repeat(np.arange(len(rows)), lengths)
        ends = np.cumsum(lengths)
        # Words from each place to the end of its row.
        left = ends[row_of] - np.arange(len(hashes))
        first = left == lengths[row_of]
        for size, rolled in rolling(hashes):
            for held, places in ((self.alone.get(size), first & (left == size)), (self.within.get(size), left >= size)):
                if held is not None:
                    spots = np.flatnonzero(places)
                    owners = held.find(rolled[spots])
                    owner[row_of[spots[owners >= 0]]] = owners[owners >= 0]
        names = list(self.texts)
        return [names[number] if number >= 0 else None for number in owner.tolist()]
