"""How fast local search is: `python -m benchmarks.tools_search --passages 100000 400000`."""

from __future__ import annotations

import json
import random
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from benchmarks.clock import Spent, timed
from benchmarks.command import Row, measured, run_benchmark, usage
from orchestra.system.environment import quiet

T = TypeVar("T")
PASSAGES = 100_000
BAR = 1000
"""Queries a second on two cores for 100,000 passages."""
VOCABULARY = 100_000
QUERIES = 2_000
BATCH = 500
TOP = 3


@dataclass(frozen=True)
class Figures:
    passages: int
    build: Spent
    build_mb: float
    """Peak memory of the process that built it, beyond what it had with the libraries loaded."""
    index_mb: float
    source_mb: float
    load: Spent
    """With every file's hash."""
    map: Spent
    """With sizes only."""
    search_mb: float
    """Memory of the process that searched, the mapped pages it touched among it, beyond the libraries'."""
    single: Spent
    batched: Spent
    queries: int

    def idle_rate(self, spent: Spent, threads: int) -> float:
        """Queries a second that the CPU seconds give on as many idle cores."""
        return threads * self.queries / spent.cpu_s

    def rate(self, spent: Spent, threads: int) -> str:
        """Queries a second, as it went and on idle cores."""
        return f"{self.queries / spent.wall_s:,.0f}/s ({self.idle_rate(spent, threads):,.0f}/s idle)"


def passages(count: int) -> Iterator[dict[str, str]]:
    """Passages of 30 to 90 made-up words; how often each occurs follows Zipf's law, as in a language."""
    draw, names = random.Random(0), _names()
    weights = list(accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
    for number in range(count):
        said = draw.choices(names, cum_weights=weights, k=draw.randint(30, 90))
        yield {"id": str(number), "title": " ".join(said[:3]), "text": " ".join(said)}


def questions(rows: Sequence[dict[str, str]], seed: int = 1) -> list[str]:
    """Six words each of a passage's own, common ones among them as they come."""
    draw = random.Random(seed)
    return [" ".join(draw.sample(draw.choice(rows)["text"].split(), 6)) for _ in range(QUERIES)]


def _names() -> list[str]:
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    return [
        syllables[n % 70] + syllables[n // 70 % 70] + (syllables[n // 4900] if n >= 4900 else "")
        for n in range(VOCABULARY)
    ]


def measure(count: int, folder: Path) -> Figures:
    """Build, load and ask an index over `count` passages, each in a process of its own, so that peaks are its own."""
    source, index = folder / f"{count}.jsonl", folder / f"index-{count}"
    asked: list[dict[str, str]] = []
    with source.open("w", encoding="utf-8") as file:
        for number, row in enumerate(passages(count)):
            file.write(json.dumps(row) + "\n")
            if number % max(1, count // 5000) == 0:
                asked.append(row)
    build, build_mb = _apart(_build, source, index)
    load, mapped, search_mb, single, batched = _apart(_ask, index, questions(asked))
    size = sum(file.stat().st_size for file in index.iterdir()) / 1e6
    return Figures(
        count, build, build_mb, size, source.stat().st_size / 1e6, load, mapped, search_mb, single, batched, QUERIES
    )


def _apart(work: Callable[..., T], *arguments: object) -> T:
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        return apart.submit(work, *arguments).result()


def _build(source: Path, index: Path) -> tuple[Spent, float]:
    import bm25s  # noqa: F401 - its memory is not the index's

    from orchestra.tools.search.index.build import build, settings_of

    before = _peak_mb()
    _, spent = timed(lambda: build([source], index, settings_of(index, model=None)))
    return spent, _peak_mb() - before


def _ask(folder: Path, queries: list[str]) -> tuple[Spent, Spent, float, Spent, Spent]:
    import bm25s  # noqa: F401

    from orchestra.tools.search.index.local import LocalIndex

    before = _peak_mb()
    _, mapped = timed(lambda: LocalIndex.open(folder, contents=False))
    index, load = timed(lambda: LocalIndex.open(folder))
    for query in queries[:50]:
        index.search(query, TOP)
    _, single = timed(lambda: [index.search(query, TOP) for query in queries])
    batches = [queries[at : at + BATCH] for at in range(0, len(queries), BATCH)]
    _, batched = timed(lambda: [index.search_many(batch, TOP, threads=2) for batch in batches])
    return load, mapped, _peak_mb() - before, single, batched


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(figures: Figures) -> list[Row]:
    """The bar is set for `PASSAGES`, on idle cores."""
    name = f"search, {figures.passages:,} passages"

    def asked(how: str, spent: Spent, threads: int) -> Row:
        row = Row(f"{name}: BM25 {how}", figures.rate(spent, threads))
        barred = figures.passages == PASSAGES
        return row._replace(bar=f"≥ {BAR:,}/s", met=figures.idle_rate(spent, threads) >= BAR) if barred else row

    return [
        asked("one by one", figures.single, 1),
        asked("in batches, two threads", figures.batched, 2),
        Row(f"{name}: index", f"{figures.index_mb:.0f} MB (source {figures.source_mb:.0f} MB)"),
        Row(f"{name}: build", f"{figures.build.wall_s:.1f} s ({figures.build.cpu_s:.1f} CPU s)"),
        Row(f"{name}: build, memory", f"{figures.build_mb:.0f} MB"),
        Row(
            f"{name}: open",
            f"{figures.load.wall_s:.2f} s ({figures.load.cpu_s:.2f} CPU s), "
            f"sizes only {figures.map.wall_s:.2f} s ({figures.map.cpu_s:.2f} CPU s)",
        ),
        Row(f"{name}: memory of a process that searches", f"{figures.search_mb:.0f} MB"),
    ]


def rows(counts: Sequence[int] = (PASSAGES,), folder: Path | None = None) -> list[Row]:
    """What `benchmarks.tools` prints of search."""
    quiet()
    found = []
    for count in counts:
        with tempfile.TemporaryDirectory(dir=folder) as made:
            found += report(measure(count, Path(made)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--passages", type=int, nargs="*", default=[PASSAGES])
    parser.add_argument("--folder", type=Path, help="where to put the data, about 1 KB a passage (default: temporary)")
    chosen = parser.parse_args(arguments)
    return measured(partial(rows, chosen.passages, chosen.folder))


if __name__ == "__main__":
    run_benchmark(main)
