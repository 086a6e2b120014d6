"""Faults committed for real against whole runs of the micro pipeline, and what became of each: `make faults`.

Each run is a clone of its own. A fault strikes, the command that the documentation names is typed, and the end is held
against that of a run without faults: the same checkpoints and figures, one promotion, no process left over. Each row
goes to docs/explanation/faults.md as soon as its case ended. With the defaults it takes about 90 minutes on two cores.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.command import run_benchmark, usage
from benchmarks.fault_cases import (
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
    strays,
    two_operators,
)
from benchmarks.fault_page import Case, Page, stamp
from benchmarks.fault_states import (
    JUMP_DAYS,
    clock_jump,
    compiler,
    dead_model_server,
    dead_rank,
    dead_server,
    read_only,
    spoiled_cassette,
)
from benchmarks.fault_store import STORE_FAULTS, faulty_store, retried_push
from orchestra.serving.releases import vllm
from orchestra.system.processes import kill_tree, stop_services
from orchestra.system.runs import runs
from tests.flows.workspace import ROOT, make

KILLS = {
    "flow": ("synthesize", "validate", "sft", "grpo", "evaluate", "promote", "deploy"),
    "stage": ("synthesize", "validate", "sft", "grpo", "evaluate"),
    "DVC": ("validate", "sft", "grpo", "evaluate"),
    "Prefect's API": ("synthesize", "grpo", "promote", "deploy"),
}
"""During which stages each process is killed, once each, at a random moment."""


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


def cases(seed: int) -> Iterator[Case]:
    """Every fault; the seed decides the moments of the kills."""
    rng = random.Random(seed)
    for what, stages in KILLS.items():
        short = what.lower().removesuffix("'s api")
        for stage in stages:
            yield Case(f"kill-{short}-{stage}", partial(killed, what, stage, rng.uniform(0.2, 0.95)))
    yield Case("two-operators", two_operators)
    yield Case("kill-gateway", dead_gateway)
    no_vllm = "" if vllm.interpreter(ROOT) else "vLLM is not installed (make setup-vllm)"
    yield Case("kill-vllm", dead_model_server, no_vllm)
    yield Case("busy-port", busy_port)
    for path, damage in DAMAGES:
        yield Case(f"damaged-{Path(path).name}", partial(damaged, path, damage))
    for mode in STORE_FAULTS:
        yield Case(f"store-{mode}", partial(faulty_store, mode))
    yield Case("store-retried", retried_push)
    for name in ("prefect", "mlflow"):
        yield Case(f"kill-{name}-server", partial(dead_server, name))
    yield Case("damaged-cassette", spoiled_cassette)
    yield Case("kill-rank", dead_rank)
    for way in JUMP_DAYS:
        missing = "" if compiler() else "no C compiler (cc) is installed"
        yield Case(f"clock-{way}", partial(clock_jump, way), missing)
    user = "" if os.geteuid() == 0 else "only root mounts disks"
    for fault in ("full", "read-only"):
        yield Case(f"disk-{fault}", partial(disk, f"{fault} disk"), user)
    for place in ("models", ".state"):
        yield Case(f"read-only-{place}", partial(read_only, place), user)


def commit(case: Case, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """One case; whatever it leaves running counts against it, and is ended."""
    try:
        outcome = case.commit(template, folder, reference)
    except Exception as error:
        outcome = FaultOutcome(case.name, "", problems=[f"{type(error).__name__}: {error}"[:200]])
    left = strays(folder)
    outcome.problems += [f"left running: {line}" for line in left.values()]
    for pid in left:
        kill_tree(pid)
    return outcome


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which processes are killed")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once; the first run is alone")
    parser.add_argument("--only", default="", help="cases whose name contains one of these, a comma between two")
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    options = parser.parse_args(given)
    every = list(cases(options.seed))
    wanted = [case for case in every if any(part in case.name for part in options.only.split(","))]
    if options.list or not wanted:
        print("\n".join(f"{case.name} {case.missing}".rstrip() for case in wanted or every))
        return 0 if wanted else 2
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        folder, run = Path(made), stamp()
        template = make(folder / "template").root
        workspace, began = copied(template, folder / "reference"), time.monotonic()
        problems = finish(workspace, "run")
        if problems:
            print(problems[0], file=sys.stderr)
            return 1
        seconds = time.monotonic() - began
        stages = {
            name: (one.ended - one.began).total_seconds()
            for name, one in runs(workspace.root)[0].stages.items()
            if one.ended is not None
        }
        reference = Reference(seconds, outputs(workspace), metrics(workspace), workspace.root, stages)
        stop_services(workspace.root)
        print(f"a run without faults: {seconds:.0f} s; {stages}", flush=True)
        page = Page(every, seconds, run)

        def tried(numbered: tuple[int, Case]) -> bool:
            number, case = numbered
            if case.missing:
                print(f"{number + 1}/{len(wanted)} {case.name}: not run: {case.missing}", flush=True)
                return True
            began = time.monotonic()
            outcome = commit(case, template, folder / f"case-{case.name}", reference)
            page.add(case, outcome)
            end = outcome.problems or "ok"
            took = f"{time.monotonic() - began:.0f} s"
            print(f"{number + 1}/{len(wanted)} {case.name} ({outcome.moment}) {took}: {end}", flush=True)
            return not outcome.problems

        with ThreadPoolExecutor(options.jobs) as pool:
            well = list(pool.map(tried, enumerate(wanted)))
    return 0 if all(well) else 1


if __name__ == "__main__":
    run_benchmark(main)
