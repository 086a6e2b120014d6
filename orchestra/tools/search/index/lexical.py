"""BM25 over passages: bm25s's files, written in a stream and searched in place.

bm25s builds an index from every passage's words at once. Here passages come one at a time: what is kept of them is two
numbers each and the vocabulary; the rest waits on disk and is sorted by term a chunk at a time. The files, and the
scores, are those that bm25s itself would write (Lucene's variant, its default).
"""

from __future__ import annotations

import json
import math
import mmap
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.errors import DataError
from orchestra.tools.search.corpus import words
from orchestra.tools.search.index.ranking import Postings

K1, B = 1.5, 0.75
TOKENS = r"\w+ in lower case"
"""What `words` takes for a word: an index whose words were cut in another way is stale."""
DATA, INDICES, INDPTR = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
VOCABULARY, PARAMS = "vocab.index.json", "params.index.json"
FILES = (DATA, INDICES, INDPTR, VOCABULARY, PARAMS)
SPILL = ".postings"
"""Where postings wait until they are sorted."""
CHUNK = 1 << 20
"""Postings (a term, how often it is in a passage) sorted at once: about 60 bytes of memory each."""


class LexicalWriter:
    """Takes passages' texts one by one, then writes the index."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._spill = folder, folder / SPILL
        self._file = self._spill.open("wb")
        self._vocabulary: dict[str, int] = {}
        self._lengths, self._distinct = array("i"), array("i")
        self._terms, self._counts = array("i"), array("i")
        self._chunks: list[tuple[int, int]] = []
        """(passages, postings) of each chunk on disk: first all its terms, then all their counts."""

    def add(self, text: str) -> None:
        known, found = self._vocabulary, words(text)
        counts = Counter(found)
        self._terms.extend([known.setdefault(word, len(known)) for word in counts])
        self._counts.extend(counts.values())
        self._lengths.append(len(found))
        self._distinct.append(len(counts))
        if len(self._terms) >= CHUNK:
            self._write()

    def finish(self) -> None:
        """Sort what was added by term and write bm25s's files."""
        import numpy as np

        self._write()
        self.close()
        lengths = np.frombuffer(self._lengths, dtype=np.int32)
        distinct = np.frombuffer(self._distinct, dtype=np.int32)
        frequency = np.zeros(len(self._vocabulary), dtype=np.int64)
        for _, _, terms, _ in self._read():
            frequency += np.bincount(terms, minlength=len(frequency))
        total = len(lengths)
        idf = np.array([math.log(1 + (total - df + 0.5) / (df + 0.5)) for df in frequency.tolist()], dtype=np.float32)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(frequency)])
        if not starts[-1]:
            raise DataError("no word in any passage", where=str(self._folder), fix="name the field with --text")
        data = np.lib.format.open_memmap(self._folder / DATA, "w+", np.float32, (int(starts[-1]),))
        indices = np.lib.format.open_memmap(self._folder / INDICES, "w+", np.int32, (int(starts[-1]),))
        norms, heads = K1 * ((1 - B) + B * lengths / lengths.mean()), starts[:-1].copy()
        for first, last, terms, counts in self._read():
            passages = np.repeat(np.arange(first, last, dtype=np.int32), distinct[first:last])
            scores = idf[terms] * (counts / (norms[passages] + counts))
            order = np.argsort(terms, kind="stable")
            sizes = np.bincount(terms, minlength=len(heads))
            # Postings of a term that is in this chunk go, in the order of passages, to where its last ones ended.
            place = np.arange(len(terms)) + np.repeat(heads - np.cumsum(sizes) + sizes, sizes)
            data[place], indices[place] = scores[order], passages[order]
            heads += sizes
            for written in (data, indices):
                _let_go(written)
        np.save(self._folder / INDPTR, starts)
        (self._folder / VOCABULARY).write_text(json.dumps(self._vocabulary, ensure_ascii=False), encoding="utf-8")
        (self._folder / PARAMS).write_text(json.dumps(self._params(total), indent=4), encoding="utf-8")

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        self._chunks.append((len(self._lengths) - sum(passages for passages, _ in self._chunks), len(self._terms)))
        self._terms.tofile(self._file)
        self._counts.tofile(self._file)
        self._terms, self._counts = array("i"), array("i")

    def _read(self) -> Any:
        """(first passage, the one after its last, terms, counts) of every chunk."""
        import numpy as np

        first = 0
        with self._spill.open("rb") as file:
            for passages, postings in self._chunks:
                both = np.fromfile(file, dtype=np.int32, count=2 * postings)
                yield first, first + passages, both[:postings], both[postings:].astype(np.float32)
                first += passages

    def _params(self, total: int) -> dict[str, Any]:
        import bm25s

        made = bm25s.BM25(k1=K1, b=B)
        kept = ("k1", "b", "delta", "method", "idf_method", "dtype", "int_dtype", "backend")
        return {name: getattr(made, name) for name in kept} | {"num_docs": total, "version": bm25s.__version__}


def _let_go(written: Any) -> None:
    """Pages that were written belong to the file: without this they would count as this process's memory."""
    written._mmap.madvise(mmap.MADV_DONTNEED)


class Lexical:
    """The BM25 index of a folder; its postings are memory-mapped, its vocabulary is in memory."""

    def __init__(self, folder: Path) -> None:
        import bm25s
        import numpy as np

        self._bm25 = bm25s.BM25.load(folder, mmap=True)
        # As plain arrays over the same pages: numpy's class for maps costs microseconds at every slice.
        data, indices, indptr = (np.asarray(self._bm25.scores[name]) for name in ("data", "indices", "indptr"))
        self._postings = Postings(data, indices, indptr, self._bm25.scores["num_docs"])

    def top(self, query: str, count: int) -> list[tuple[int, float]]:
        """(passage, score) of at most `count` passages that share a word with the query, the best first."""
        terms = self._bm25.get_tokens_ids(words(query))
        return self._postings.best(terms, count) if terms else []
