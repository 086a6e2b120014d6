"""What an episode's own copy of a domain costs, and the verdict on it: `python -m benchmarks.domains`.

The mock domain with as many books as make it 1 MB; the largest shipped one beside it. Every figure is a median.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.bench import ROOT
from benchmarks.command import Row, run_benchmark, show
from orchestra.domains.compare import _golden, judge
from orchestra.domains.engine import Domain, Session, load_domain
from orchestra.types import ToolCall

BYTES = 1_000_000
BARS_MS = {"copy": 2.0, "verdict": 5.0}
"""For a domain of `BYTES`."""
REPEATS = 200
DOMAINS = ROOT / "data" / "domains"
GOLDEN = (ToolCall(name="return_book", arguments={"book": 13}), ToolCall(name="pay_fine", arguments={"reader": "Brin"}))
WRITTEN = (20, 200)
"""Rows that the session judged has written beside those it should have: about what a call may write, and many."""


def grown(folder: Path, size: int = BYTES) -> Domain:
    """The mock domain with more books, until it takes `size` bytes."""
    shutil.copytree(DOMAINS / "mock", folder)
    file = folder / "entries" / "books.csv"
    while len((domain := load_domain(folder)).image) < size:
        first = 1_000 + 1_000 * (file.stat().st_size // 60_000)
        rows = "".join(f"{book},{f'Book {book} ':-<60},,,1\n" for book in range(first, first + 1_000))
        file.write_text(file.read_text(encoding="utf-8") + rows, encoding="utf-8")
    return domain


def copy_ms(domain: Domain) -> tuple[float, float]:
    """Milliseconds of one episode's own copy, opened and closed, as the clock and as the CPU count."""
    return _median(lambda: None, lambda _: domain.open().close())


def verdict_ms(domain: Domain, written: int) -> tuple[float, float]:
    """Milliseconds of a verdict from nothing: the golden calls replayed on a copy of their own, every touched row
    compared, those that should not have been touched with what they were."""

    def prepare() -> Session:
        _golden.cache_clear()
        session = domain.open()
        for call in GOLDEN:
            session.call(call.name, call.arguments)
        with session._guard.trust():  # no tool of the mock writes so much
            session._db.execute("update books set copies = copies where book >= 1000 and book < ?", (1_000 + written,))
        return session

    def work(session: Session) -> None:
        assert judge(domain, session, GOLDEN, ("14",), "Brin paid 14.").solved

    return _median(prepare, work)


def _median(prepare: Callable[[], object], work: Callable[..., None]) -> tuple[float, float]:
    wall, cpu = [], []
    for _ in range(REPEATS):
        given = prepare()
        began_wall, began_cpu = time.perf_counter(), time.thread_time()
        work(given)
        cpu.append(time.thread_time() - began_cpu)
        wall.append(time.perf_counter() - began_wall)
        if isinstance(given, Session):
            given.close()
    return 1000 * statistics.median(wall), 1000 * statistics.median(cpu)


def rows() -> list[Row]:
    """The bars are of processor time: other work on the machine does not count."""
    with tempfile.TemporaryDirectory() as folder:
        domain = grown(Path(folder) / "mock")
    size = f"{len(domain.image) / 1e6:.2f} MB"
    shipped = max((load_domain(path) for path in DOMAINS.iterdir()), key=lambda one: len(one.image))
    verdict = f"verdict, {len(GOLDEN)} golden calls replayed, {{}} more rows written, {size}"
    few, many = WRITTEN
    name = f"an episode's own copy, {shipped.name}, {len(shipped.image) / 1e6:.2f} MB"
    return [
        timed_row(f"an episode's own copy, {size}", copy_ms(domain), BARS_MS["copy"]),
        timed_row(verdict.format(few), verdict_ms(domain, few), BARS_MS["verdict"]),
        timed_row(verdict.format(many), verdict_ms(domain, many)),
        timed_row(name, copy_ms(shipped)),
    ]


def timed_row(what: str, found: tuple[float, float], bar_ms: float | None = None) -> Row:
    """A row of medians of `REPEATS`, in milliseconds by the clock and of the processor."""
    row = Row(what, f"{found[0]:.2f} ms, of CPU {found[1]:.2f}")
    return row if bar_ms is None else row._replace(bar=f"≤ {bar_ms:g} ms", met=found[1] <= bar_ms)


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
