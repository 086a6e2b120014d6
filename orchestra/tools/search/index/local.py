"""An index that was built, opened in place: passages by words, by meaning, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Self

from orchestra.errors import ConfigError
from orchestra.tools.search.corpus import Document
from orchestra.tools.search.index.dense import Dense
from orchestra.tools.search.index.lexical import Lexical
from orchestra.tools.search.index.manifest import IndexManifest
from orchestra.tools.search.index.passages import Passages, searched
from orchestra.types import Record

FUSED = 50
"""Passages of each ranking that a hybrid search joins."""
RANK = 60
"""Reciprocal rank fusion's constant (Cormack, Clarke and Büttcher, SIGIR 2009)."""
Ranking = list[tuple[int, float]]


class By(StrEnum):
    """How passages are compared with a query."""

    BM25 = "bm25"
    DENSE = "dense"
    HYBRID = "hybrid"


class Found(Record):
    """A passage, and how well it fits: BM25's score, a cosine, or the sum of reciprocal ranks."""

    passage: Document
    score: float


class LocalIndex:
    """Searches may run in several threads at once; a model is loaded at the first search by meaning."""

    def __init__(self, manifest: IndexManifest, passages: Passages, lexical: Lexical, dense: Dense | None) -> None:
        self.manifest, self._passages, self._lexical, self._dense = manifest, passages, lexical, dense

    @classmethod
    def open(cls, folder: Path, *, contents: bool = True) -> Self:
        """Map the index of a folder; raises `DataError` of one line where it is missing, damaged or stale.

        `contents=False` compares sizes only: opening then takes milliseconds whatever the index's size.
        """
        manifest = IndexManifest.read(folder)
        manifest.check(folder, contents=contents)
        passages, dense = Passages.open(folder), None
        if manifest.settings.model is not None:
            model = manifest.settings.located(folder)
            dense = Dense(folder, model, manifest.passages, manifest.dimension, searched(passages[0]))
        return cls(manifest, passages, Lexical(folder), dense)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, count: int = 3, by: By = By.BM25) -> list[Found]:
        """At most `count` passages, the best first; raises `ConfigError` where the index has no vectors to compare."""
        return self.search_many([query], count, by, threads=1)[0]

    def search_many(
        self, queries: Sequence[str], count: int = 3, by: By = By.BM25, *, threads: int = 2
    ) -> list[list[Found]]:
        """The same for each query, in their order."""
        if by is By.BM25:
            rankings = self._by_words(queries, count, threads)
        elif self._dense is None:
            fix = "build it with --dense MODEL, or search by bm25"
            raise ConfigError(f"it has no vectors to search by {by}", where="the index", fix=fix)
        elif by is By.DENSE:
            rankings = self._dense.top(queries, count)
        else:
            both = zip(self._by_words(queries, FUSED, threads), self._dense.top(queries, FUSED), strict=True)
            rankings = [fused(*pair)[:count] for pair in both]
        return [[Found(passage=self._passages[n], score=score) for n, score in ranking] for ranking in rankings]

    def _by_words(self, queries: Sequence[str], count: int, threads: int) -> list[Ranking]:
        if threads == 1 or len(queries) == 1:
            return [self._lexical.top(query, count) for query in queries]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda query: self._lexical.top(query, count), queries))


def fused(*rankings: Ranking) -> Ranking:
    """One ranking of several by the sum of 1 / (RANK + rank); of equals the first passage."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (number, _) in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (RANK + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
