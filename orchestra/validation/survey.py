"""Every row of the generated files, flattened in chunks over processes; the same for any number of them."""

import gc
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
from orchestra.files.jsonl import Chunk, chunks
from orchestra.system.processes import die_with_parent
from orchestra.validation.rows import COUNTS, HELDOUT, NUMBERS, PROBLEMS, TEXTS, Flattener, SurveyPart

if TYPE_CHECKING:
    import pyarrow as pa

    Packed = tuple[pa.RecordBatch, SurveyPart]
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


def cut(files: Mapping[str, Path], *, fix: str, lines: int = LINES) -> dict[str, list[Chunk]]:
    """The file of each split in chunks of `lines` lines; raises `DataError` for a missing one."""
    return {split: list(chunks(path, lines, fix=fix)) for split, path in files.items()}


def survey(
    pieces: Mapping[str, Sequence[Chunk]],
    flattener: Flattener,
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Survey:
    """Flatten the chunks of each split, the held-out one's first: the others must have nothing of it.

    `workers` processes share what `flattener` holds, so load its data before.
    """
    import pyarrow as pa

    found: dict[str, list[Any]] = {}
    uses = {split: Uses() for split in pieces}
    marks: set[str] = set()
    for split in sorted(pieces, key=lambda name: name != HELDOUT):
        ready = flattener if split == HELDOUT else replace(flattener, kept_apart=frozenset(marks))
        found[split] = []
        for batch, part in _parts(split, pieces[split], ready, workers):
            found[split].append(batch)
            marks |= part.marks
            uses[split].offered += part.offered
            uses[split].needed += part.needed
            if on_progress is not None:
                on_progress(batch.num_rows)
    return Survey(pa.Table.from_batches([batch for split in pieces for batch in found[split]], _schema()), uses)


def _schema() -> "pa.Schema":
    import pyarrow as pa

    kinds = [(TEXTS, pa.string()), (COUNTS, pa.int32()), (NUMBERS, pa.float64()), (PROBLEMS, pa.string())]
    return pa.schema([(name, kind) for names, kind in kinds for name in names])


def _parts(split: str, pieces: Sequence[Chunk], flattener: Flattener, workers: int) -> "Iterator[Packed]":
    """What each chunk gave, in order."""
    # The first one here: it loads all that the others need, and forked processes have that already.
    alone = 1 if workers > 1 else len(pieces)
    yield from (_flatten(flattener, split, chunk) for chunk in pieces[:alone])
    rest = pieces[alone:]
    if not rest:
        return
    workers = min(workers, len(rest))
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=_begin, initargs=(flattener,)) as pool:
        try:
            yield from pool.map(partial(_work, split), rest)
        except BrokenProcessPool:
            fix = "free memory, or use fewer workers"
            raise ServiceError("a worker process was killed", where=str(rest[0].path), fix=fix) from None


_shared: Flattener | None = None
"""Of a worker process."""


def _begin(flattener: Flattener) -> None:
    global _shared
    die_with_parent()
    # What is shared never becomes garbage, and looking for it copied its pages. Looking while a chunk is read took a
    # third of the time, and found nothing: `_work` looks once, after it.
    gc.freeze()
    gc.disable()
    _shared = flattener


def _work(split: str, chunk: Chunk) -> "Packed":
    assert _shared is not None
    packed = _flatten(_shared, split, chunk)
    gc.collect()
    return packed


def _flatten(flattener: Flattener, split: str, chunk: Chunk) -> "Packed":
    import pyarrow as pa

    part = flattener.part(split, chunk.first, chunk.read())
    return pa.RecordBatch.from_pylist(part.rows, schema=_schema()), replace(part, rows=[])
