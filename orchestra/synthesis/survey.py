"""Every row of the generated files, flattened in chunks over processes; the same for any number of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import ServiceError
from orchestra.jsonl import Chunk, chunks
from orchestra.processes import die_with_parent
from orchestra.synthesis.flatten import COUNTS, HELDOUT, NUMBERS, PROBLEMS, TEXTS, Flattener, Part

if TYPE_CHECKING:
    import pyarrow as pa

    Packed = tuple[pa.RecordBatch, Part]
    """The rows as columns, and the rest of the part: what one process sends another."""

LINES = 500
"""Of one chunk: a worker holds no more at a time."""


@dataclass
class Uses:
    """How many rows of a split offer each tool, and how many need it."""

    offered: Counter[str] = field(default_factory=Counter)
    needed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Survey:
    """What the files hold."""

    table: "pa.Table"
    """A row for each line, in the order of splits and lines: the columns of `flatten.COLUMNS`."""
    uses: dict[str, Uses]
    """By split."""


def survey(
    files: Mapping[str, Path],
    flattener: Flattener,
    *,
    workers: int = 1,
    fix: str = "run the stage that writes it",
    on_progress: Callable[[int], None] | None = None,
) -> Survey:
    """Flatten the file of each split, the held-out one first: the others must have nothing of it.

    `workers` processes share what `flattener` holds, so load its data before. Raises `DataError` for a missing file.
    """
    import pyarrow as pa

    found: dict[str, list[Any]] = {}
    uses = {split: Uses() for split in files}
    # Cut before any work is done: a missing file is told at once.
    cut = {split: list(chunks(path, LINES, fix=fix)) for split, path in files.items()}
    marks: set[str] = set()
    for split in sorted(files, key=lambda name: name != HELDOUT):
        ready = flattener if split == HELDOUT else replace(flattener, kept_apart=frozenset(marks))
        found[split] = []
        for batch, part in _parts(split, cut[split], ready, workers):
            found[split].append(batch)
            marks |= part.marks
            uses[split].offered += part.offered
            uses[split].needed += part.needed
            if on_progress is not None:
                on_progress(batch.num_rows)
    return Survey(pa.Table.from_batches([batch for split in files for batch in found[split]], _schema()), uses)


def _schema() -> "pa.Schema":
    import pyarrow as pa

    kinds = [(TEXTS, pa.string()), (COUNTS, pa.int32()), (NUMBERS, pa.float64()), (PROBLEMS, pa.string())]
    return pa.schema([(name, kind) for names, kind in kinds for name in names])


def _parts(split: str, cut: Sequence[Chunk], flattener: Flattener, workers: int) -> "Iterator[Packed]":
    """What each chunk gave, in order. One chunk, or one worker, needs no process."""
    workers = min(workers, len(cut))
    if workers <= 1:
        yield from (_flatten(flattener, split, chunk) for chunk in cut)
        return
    # Forked, so that domains, answers and the index are shared and not loaded again.
    pool = ProcessPoolExecutor(workers, get_context("fork"), initializer=_begin, initargs=(flattener,))
    with pool:
        try:
            yield from pool.map(partial(_work, split), cut)
        except BrokenProcessPool:
            fix = "free memory, or set fewer workers"
            raise ServiceError("a worker process was killed", where=str(cut[0].path), fix=fix) from None


_shared: Flattener | None = None
"""Of a worker process."""


def _begin(flattener: Flattener) -> None:
    global _shared
    die_with_parent()
    _shared = flattener


def _work(split: str, chunk: Chunk) -> "Packed":
    assert _shared is not None
    return _flatten(_shared, split, chunk)


def _flatten(flattener: Flattener, split: str, chunk: Chunk) -> "Packed":
    import pyarrow as pa

    part = flattener.part(split, chunk.first, chunk.read())
    return pa.RecordBatch.from_pylist(part.rows, schema=_schema()), replace(part, rows=[])
