"""The best passages for a query, exactly, without adding up what its common words give every passage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUPS = 64
"""Scores are looked at this many in a go, of which the highest counts."""
FEW = 4096
"""Postings of a word that are added without asking whether they matter."""
SLACK = 1e-3
"""More than float32 rounds off a score."""


class Postings:
    """bm25s's arrays: of each term, the passages that hold it in their order, and its score in each."""

    def __init__(
        self, data: NDArray[np.float32], indices: NDArray[np.int32], indptr: NDArray[np.int64], passages: int
    ) -> None:
        self._data, self._indices, self._indptr, self._passages = data, indices, indptr, passages

    def best(self, terms: Sequence[int], count: int) -> list[tuple[int, float]]:
        """(passage, score) of the `count` highest scores above 0, the highest first, of equals the first.

        Rare words come first. Once `count` passages have more than all words that are left can give, no other passage
        can overtake them: what is left is looked up for the few that are near, and their scores are added up in the
        query's order, so that they are bm25s's to the last bit.
        """
        import numpy as np

        scores = np.zeros(self._passages, dtype=np.float32)
        order = sorted(terms, key=self._size)
        rest = sum(self._limit(term) for term in order)
        for term in order:
            if self._size(term) > FEW and floor(scores, count) > rest + SLACK:
                break
            part = self._part(term)
            np.add.at(scores, self._indices[part], self._data[part])
            rest -= self._limit(term)
        else:
            rest = 0
        least = floor(scores, count) - rest - SLACK
        near = np.flatnonzero(scores >= least if least > 0 else scores > 0).astype(np.int32)
        exact = self._exact(terms, near)
        first = np.argsort(-exact, kind="stable")[:count]
        return list(zip(near[first].tolist(), exact[first].tolist(), strict=True))

    def _exact(self, terms: Sequence[int], passages: NDArray[np.int32]) -> NDArray[np.float32]:
        """The scores of some passages: (passages,)."""
        import numpy as np

        scores = np.zeros(len(passages), dtype=np.float32)
        for term in terms:
            part = self._part(term)
            indices = self._indices[part]
            place = np.minimum(np.searchsorted(indices, passages), len(indices) - 1)
            held = indices[place] == passages
            scores[held] += self._data[part][place[held]]
        return scores

    def _part(self, term: int) -> slice:
        return slice(int(self._indptr[term]), int(self._indptr[term + 1]))

    def _size(self, term: int) -> int:
        return int(self._indptr[term + 1] - self._indptr[term])

    def _limit(self, term: int) -> float:
        """What no passage's score for a term reaches: its idf."""
        held = self._size(term)
        return math.log(1 + (self._passages - held + 0.5) / (held + 0.5))


def floor(scores: NDArray[np.float32], count: int) -> Any:
    """What at least `count` scores reach, near the `count`-th highest: that of the groups' highest; 0 where unknown.

    A partition of the scores themselves takes a hundred times as long where most of them are 0.
    """
    import numpy as np

    if len(scores) < GROUPS * count:
        return np.partition(scores, -count)[-count] if len(scores) >= count else np.float32(0)
    tops = scores[: len(scores) // GROUPS * GROUPS].reshape(GROUPS, -1).max(axis=0)
    return np.partition(tops, -count)[-count]
