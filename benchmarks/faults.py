"""Faults committed for real against whole runs of the micro pipeline, and what became of each: `make faults`.

Each run is a clone of its own. A fault strikes, the command that the documentation names is typed, and the end is held
against that of a run without faults: the same checkpoints and figures, one promotion, no process left over. The table
goes to docs/explanation/faults.md. With the defaults it takes about 90 minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.fault_cases import (
    PROCESSES,
    FaultOutcome,
    Reference,
    busy_port,
    copied,
    damaged,
    dead_gateway,
    disk,
    finish,
    killed,
    metrics,
    outputs,
    two_operators,
)
from benchmarks.fault_states import JUMP_DAYS, clock_jump, dead_rank, dead_server, faketime, read_only, spoiled_cassette
from benchmarks.fault_store import STORE_FAULTS, faulty_store, retried_push
from orchestra.system.processes import stop_services
from tests.flows.workspace import make

PAGE = Path(__file__).parents[1] / "docs/explanation/faults.md"
STAGES = ("synthesize", "validate", "sft", "grpo", "evaluate")
PAGE_TEXT = """\
# Faults

`make faults` commits each of these against a whole run of the micro pipeline, in a clone of its own, and writes this
page. The end must be that of a run without faults: the same data, checkpoints and figures, one promotion, no process
left over, no file half-written, at most one error line, no traceback.

{well} of {count} ended as they should. A run without faults took {seconds:.0f} seconds.

| fault | when | what the command said | recovery | end |
| --- | --- | --- | --- | --- |
{rows}

The jumps of the clock need the package libfaketime of Debian.

Tested elsewhere: vLLM (`test_engine.py` and `test_trials.py` in tests/integration).
"""


def cut(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


def spoiled(content: bytes) -> bytes:
    return b"\xff\x00{[" + content[4:]


DAMAGES: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("dvc.lock", spoiled),
    ("params.yaml", spoiled),
    (".state/mlflow.db", spoiled),
    ("data/validated/train.jsonl", cut),
    ("models/sft/model.safetensors", cut),
    ("models/grpo/manifest.json", spoiled),
    ("data/catalogue/prices.yaml", cut),
)
Case = Callable[[Path, Path, Reference], FaultOutcome]


def cases(points: int, seed: int) -> Iterator[Case]:
    """Every fault; `points` kills at random moments, evenly over the processes."""
    rng = random.Random(seed)
    for number in range(points):
        what = list(PROCESSES)[number % len(PROCESSES)]
        yield partial(killed, what, rng.uniform(0.1, 0.95))
    yield two_operators
    yield dead_gateway
    yield busy_port
    for path, damage in DAMAGES:
        yield partial(damaged, path, damage)
    for mode in STORE_FAULTS:
        yield partial(faulty_store, mode)
    yield retried_push
    for name in ("prefect", "mlflow"):
        yield partial(dead_server, name)
    yield spoiled_cassette
    yield dead_rank
    if faketime() is not None:
        for way in JUMP_DAYS:
            yield partial(clock_jump, way)
    if os.geteuid() == 0:
        yield partial(disk, "full disk")
        yield partial(disk, "read-only disk")
        for place in ("models", ".state"):
            yield partial(read_only, place)


def table(outcomes: Sequence[FaultOutcome], seconds: float) -> str:
    """The page."""
    rows = [
        f"| {one.fault} | {one.moment} | {one.told.replace('|', '/') or '—'} | {one.recovery} | "
        f"{'; '.join(one.problems) or 'as without a fault'} |"
        for one in outcomes
    ]
    well = sum(not one.problems for one in outcomes)
    return PAGE_TEXT.format(well=well, count=len(outcomes), seconds=seconds, rows="\n".join(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20, help="kills at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="faults at once; the first run is alone")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        folder = Path(made)
        template = make(folder / "template").root
        workspace, began = copied(template, folder / "reference"), time.monotonic()
        problems = finish(workspace, "run")
        if problems:
            print(problems[0], file=sys.stderr)
            return 1
        reference = Reference(time.monotonic() - began, outputs(workspace), metrics(workspace), workspace.root)
        stop_services(workspace.root)
        print(f"a run without faults: {reference.seconds:.0f} s", flush=True)
        if faketime() is None:
            print("the clock is not tried: apt-get install libfaketime", flush=True)
        wanted = [case for case in cases(options.points, options.seed) if options.only in str(case)]

        def commit(numbered: tuple[int, Case]) -> FaultOutcome:
            number, case = numbered
            try:
                outcome = case(template, folder / f"case-{number}", reference)
            except Exception as error:
                outcome = FaultOutcome(str(case), "", problems=[f"{type(error).__name__}: {error}"[:200]])
            print(
                f"{number + 1}/{len(wanted)} {outcome.fault} ({outcome.moment}): {outcome.problems or 'ok'}", flush=True
            )
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(commit, enumerate(wanted)))
    if not options.only:
        PAGE.write_text(table(outcomes, reference.seconds), encoding="utf-8")
    return 1 if any(one.problems for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
