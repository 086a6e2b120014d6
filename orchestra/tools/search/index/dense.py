"""Search by meaning: vectors of passages in one flat file, compared exactly by faiss."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VECTORS = "vectors.f32"
FILES = (VECTORS,)
BATCH = 256
"""Passages embedded at once."""
ALIKE = 0.999
"""Cosine from which two vectors of the same passage are those of one model: batches and machines round differently."""


def _missing(library: str) -> ConfigError:
    return ConfigError(
        f"{library} is not installed", where="dense search", fix=".venv/bin/uv pip install -e '.[dense]'"
    )


class Embedder:
    """Any sentence-transformers model (Qwen3-Embedding too), loaded at its first use.

    Where the model has a prompt for queries or for documents, it is used.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._lock = threading.Lock()

    @cached_property
    def _loaded(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise _missing("sentence-transformers") from None
        try:
            return SentenceTransformer(self.model)
        except (OSError, ValueError, RuntimeError) as error:
            what = f"no embedding model {self.model}: {str(error).splitlines()[0][:200]}"
            raise ConfigError(what, where="dense search", fix="name its folder, or download it first") from None

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors: (texts, dimension)."""
        return self._embed("encode_document", texts)

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors: (texts, dimension)."""
        return self._embed("encode_query", texts)

    def _embed(self, method: str, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        with self._lock:
            embed = getattr(self._loaded, method)
            made = embed(list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return np.ascontiguousarray(made, dtype=np.float32)


class DenseWriter:
    """Embeds texts as they come and appends their vectors to the file."""

    def __init__(self, folder: Path, embedder: Embedder) -> None:
        self._embedder, self._file = embedder, (folder / VECTORS).open("wb")
        self._waiting: list[str] = []
        self.dimension = 0

    def add(self, text: str) -> None:
        self._waiting.append(text)
        if len(self._waiting) == BATCH:
            self._write()

    def finish(self) -> None:
        if self._waiting:
            self._write()
        self.close()

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        vectors = self._embedder.passages(self._waiting)
        self.dimension = vectors.shape[1]
        vectors.tofile(self._file)
        self._waiting.clear()


class Dense:
    """The vectors of a folder, memory-mapped, and the model that made them."""

    def __init__(self, folder: Path, model: str, passages: int, dimension: int, first: str) -> None:
        import numpy as np

        self._folder, self._first, self._proven = folder, first, False
        self._embedder = Embedder(model)
        self._vectors = np.memmap(folder / VECTORS, np.float32, "r", shape=(passages, dimension))

    def top(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
        """(passage, cosine) of the `count` nearest passages of each query, the nearest first.

        Raises `DataError` where the model is not the one that the index was built with.
        """
        try:
            import faiss
        except ImportError:
            raise _missing("faiss") from None
        self._prove()
        asked = self._embedder.queries(queries)
        scores, numbers = faiss.knn(asked, self._vectors, min(count, len(self._vectors)), faiss.METRIC_INNER_PRODUCT)
        return [list(zip(*row, strict=True)) for row in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def _prove(self) -> None:
        """Once: the first passage's vector must be what the model makes of it now, whatever the model's name."""
        if self._proven:
            return
        import numpy as np

        vector = self._embedder.passages([self._first])[0]
        if vector.shape != self._vectors[0].shape or float(np.dot(vector, self._vectors[0])) < ALIKE:
            what = f"stale: {self._embedder.model} gives other vectors than those of the index"
            raise DataError(what, where=str(self._folder), fix="build it again: orchestra index build")
        self._proven = True
