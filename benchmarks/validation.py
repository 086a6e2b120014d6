"""How fast the validate stage is, and how much memory it takes: `python -m benchmarks.validation --rows 20000`."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.command import judge, run_benchmark, usage
from orchestra.files.jsonl import stream_lines
from orchestra.system.environment import cores, quiet
from orchestra.system.processes import descendants
from orchestra.system.workspace import locked
from orchestra.types import SPLITS
from tasks import synthesize, validate
from tasks.platform.stage import Stage

ROOT = Path(__file__).parents[1]
BARS = {"wall_s": 60.0, "memory_mb": 2000.0}
"""Most seconds and MiB that 200,000 rows may take."""
BARRED_ROWS = 200_000
CONTENTS = ("corpus.jsonl", "card.json")


@dataclass(frozen=True)
class Figures:
    rows: int
    refused: int
    workers: int
    wall_s: float
    cpu_s: float
    """Of all processes: on a machine that is busy otherwise, the figure to trust."""
    memory_mb: float
    """Peak of all processes together; a page that several share counts once (its PSS, looked at every second)."""

    @property
    def line(self) -> str:
        rate = f"{self.rows / self.wall_s:,.0f} rows/s, {1000 * self.cpu_s / self.rows:.2f} CPU ms a row"
        return (
            f"{self.rows:,} rows, {self.refused} refused, {self.workers} workers: {self.wall_s:.1f} s, "
            f"{self.cpu_s:.1f} CPU s ({rate}), peak memory {self.memory_mb:,.0f} MB"
        )


def bars(found: Figures) -> dict[str, bool]:
    """By name, whether each is met; they are set for `BARRED_ROWS` rows."""
    return {name: getattr(found, name) <= bar for name, bar in BARS.items()} if found.rows == BARRED_ROWS else {}


def grow(made: Path, folder: Path, rows: int) -> None:
    """A data set of `rows` rows from the generated one: as many copies as it takes, each of other requests.

    Ids, entities, instructions and the experts' knowledge of them differ from copy to copy; known solutions are as they
    were and are executed all the same.
    """
    folder.mkdir(parents=True)
    for name in CONTENTS:
        shutil.copy(made / name, folder / name)
    sizes = {split: sum(1 for _ in stream_lines(made / f"{split}.jsonl")) for split in SPLITS}
    total = sum(sizes.values())
    copies = -(-rows // total)
    counts = {split: rows * size // total for split, size in sizes.items()}
    counts["train"] += rows - sum(counts.values())
    for split in sizes:
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(_copies(made / f"{split}.jsonl", copies + 1, counts[split]))
    with (folder / "answers.jsonl").open("w", encoding="utf-8") as file:
        for copy in range(copies + 1):
            for _, line in stream_lines(made / "answers.jsonl"):
                answer = json.loads(line)
                file.write(json.dumps(answer | {"question": _asked(answer["question"], copy)}) + "\n")


def _copies(path: Path, copies: int, rows: int) -> Iterator[str]:
    left = rows
    for copy in range(copies):
        for _, line in stream_lines(path):
            if not left:
                return
            example: dict[str, Any] = json.loads(line)
            example["id"] += f"-{copy}"
            example["entities"] = [f"{entity}#{copy}" for entity in example["entities"]]
            example["instruction"] = _asked(example["instruction"], copy)
            left -= 1
            yield json.dumps(example, separators=(",", ":")) + "\n"


def _asked(instruction: str, copy: int) -> str:
    return f"request {copy}: {instruction}"


def measure(root: Path, workers: int) -> Figures:
    """Run the stage in the project `root`, in this process."""
    stage = Stage.open("validate", root)
    began, cpu = time.perf_counter(), _cpu_s()
    with _watching() as seen_mb:
        validate.main(stage, workers)
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
    report = json.loads((root / "reports/validate.json").read_text(encoding="utf-8"))
    return Figures(report["rows"], report["quarantined"], workers, wall_s, cpu_s, max(seen_mb))


@contextmanager
def _watching() -> Iterator[list[float]]:
    """Megabytes of this process and all that it started, every second of the block."""
    seen, over = [_pss_mb()], threading.Event()

    def watch() -> None:
        while not over.wait(1):
            seen.append(_pss_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _pss_mb() -> float:
    total_kb = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):  # It has ended.
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total_kb += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total_kb / 1024


def _cpu_s() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _project(folder: Path, rows: int) -> Path:
    """A project with the repository's parameters, catalogue and domains, and `rows` rows to validate."""
    made = ROOT / validate.INPUT
    if not (made / "train.jsonl").is_file():
        with locked(ROOT):
            synthesize.main(Stage.open("synthesize", ROOT))
    root = folder / str(rows)
    root.mkdir()
    shutil.copy(ROOT / "params.yaml", root)
    (root / "data").mkdir(exist_ok=True)
    shutil.copy(ROOT / "data/licences.yaml", root / "data")
    grow(made, root / validate.INPUT, rows)
    for name in ("catalogue", "domains"):
        (root / "data" / name).symlink_to(ROOT / "data" / name)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[20_000, 200_000])
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--folder", type=Path, help="where to put the data, about 3 KB a row (default: temporary)")
    chosen = parser.parse_args(arguments)
    print(f"{platform.machine()} CPU, {cores()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    met: dict[str, bool] = {}
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            project = _project(Path(folder), rows)
            # A process of its own, so that one size's peak is not another's.
            with ProcessPoolExecutor(1, get_context("spawn")) as apart:
                found = apart.submit(measure, project, chosen.workers).result()
        print(found.line, flush=True)
        met |= bars(found)
    if met:
        print(f"bars: {', '.join(f'{name} ≤ {bar:g}' for name, bar in BARS.items())}")
    return judge(met)


if __name__ == "__main__":
    run_benchmark(main)
