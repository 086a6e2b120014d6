"""Faults committed for real against whole runs of the micro pipeline, and what became of each: `make faults`.

Each run is a clone of its own. A fault strikes, the command that the documentation names is typed, and the end is held
against that of a run without faults: the same checkpoints and figures, one promotion, no process left over. The table
goes to docs/explanation/faults.md. With the defaults it takes about 40 minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orchestra.system.processes import alive, descendants, services, started_at, stop_services
from tests.flows.workspace import Workspace, make

PAGE = Path(__file__).parents[1] / "docs/explanation/faults.md"
STAGES = ("synthesize", "validate", "sft", "grpo", "evaluate")
COMPARED = {"sft": "models/sft", "grpo": "models/grpo", "validate": "data/validated"}
"""Outputs that must be those of a run without faults, by stage."""
PROCESSES = {
    "flow": None,
    "stage": rb"\0tasks\.",
    "DVC": rb"\0dvc\0|dvc\.cli|tasks/platform/dvc",
    "Prefect's API": rb"prefect",
}
"""What is killed, and how its command line is known; the flow is the process that was started."""
PAGE_TEXT = """\
# Faults

`make faults` commits each of these against a whole run of the micro pipeline, in a clone of its own, and writes this
page. The end must be that of a run without faults: the same data, checkpoints and figures, one promotion, no process
left over, no file half-written, at most one error line, no traceback.

{well} of {count} ended as they should. A run without faults took {seconds:.0f} seconds.

| fault | when | what the command said | recovery | end |
| --- | --- | --- | --- | --- |
{rows}

Tested elsewhere: one rank of several (`test_ranks.py` in tests/integration), vLLM (`test_engine.py`, `test_trials.py`),
an S3 server that fails (tests/unit/tasks/records). A jump of the clock is not tried.
"""
ORPHANS_S, RUN_S = 20.0, 1200.0


@dataclass
class FaultOutcome:
    """One fault and what became of it."""

    fault: str
    moment: str
    told: str = ""
    """The last line that the struck command printed."""
    recovery: str = "none needed"
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A run without faults."""

    seconds: float
    outputs: dict[str, str]
    metrics: dict[str, float]

    def differences(self, workspace: Workspace) -> list[str]:
        """How the end of another workspace differs."""
        found = outputs(workspace)
        wrong = [f"{path} differs" for path, digest in self.outputs.items() if found.get(path) != digest]
        if not wrong and metrics(workspace) != self.metrics:
            wrong.append("reports/evaluate.json differs")
        promoted = [run for run in workspace.runs() if run.data.tags.get("decision") == "Promoted"]
        if len(promoted) != 1:
            wrong.append(f"{len(promoted)} promotions")
        partial_files = [path.name for path in workspace.root.rglob(".*.partial") if ".dvc" not in path.parts]
        return wrong + [f"half-written: {name}" for name in partial_files[:2]]


def outputs(workspace: Workspace) -> dict[str, str]:
    """Hashes of the outputs that are compared; empty before a run has made them."""
    try:
        return {path: workspace.lock(stage)[path] for stage, path in COMPARED.items()}
    except (OSError, KeyError):
        return {}


def metrics(workspace: Workspace) -> dict[str, float]:
    found: dict[str, float] = json.loads((workspace.root / "reports/evaluate.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if "latency" not in name}


def finish(workspace: Workspace, *command: str) -> list[str]:
    """Type a command that must succeed; what is wrong if it does not."""
    done = typed(workspace, *command)
    return [] if done.returncode == 0 else [f"`orchestra {' '.join(command)}` ends with {last(done.stdout)}"]


def typed(workspace: Workspace, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        workspace.command(*command), cwd=workspace.root, env=workspace.env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip


def last(text: str) -> str:
    """The error of an output, else its last line, without what differs from run to run."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return re.sub(r"/\S*/(?=[\w.]+)", "", (errors or lines or ["nothing"])[-1])[:200]


def plain(text: str) -> list[str]:
    """What a person should not see in an output."""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    found = ["a traceback is printed"] if "Traceback (most recent call last)" in text else []
    return found + ([f"{len(errors)} error lines"] if len(errors) > 1 else [])


def orphans(family: Sequence[tuple[int, str | None]], workspace: Workspace) -> list[str]:
    """Processes of a run that outlive it; what serves on is none."""
    kept = {service.pid for service in services(workspace.root)}
    kept |= {child for pid in kept for child in descendants(pid)}
    deadline = time.monotonic() + ORPHANS_S
    while True:
        left = [pid for pid, start in family if alive(pid) and started_at(pid) == start and pid not in kept]
        if not left or time.monotonic() > deadline:
            return [f"{len(left)} processes left over"] if left else []
        time.sleep(0.1)


def killed(what: str, share: float, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """kill -9 of a part of a run, after that share of the time that an undisturbed run takes."""
    workspace = copied(template, folder)
    run = workspace.start("run")
    time.sleep(share * reference.seconds)
    pattern, victim = PROCESSES[what], None
    while run.poll() is None and victim is None:
        family = [run.pid, *descendants(run.pid)]
        victim = run.pid if pattern is None else next((pid for pid in family if re.search(pattern, line_of(pid))), None)
        time.sleep(0.05)
    family = [run.pid, *descendants(run.pid)]
    known = [(pid, started_at(pid)) for pid in family]
    stage = next(
        (m[1].decode() for pid in family if (m := re.search(rb"\0tasks\.(\w+)", line_of(pid)))), "between stages"
    )
    outcome = FaultOutcome(f"kill -9 of the {what}" if what != "Prefect's API" else f"kill -9 of {what}", stage)
    if victim is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    said, _ = run.communicate(timeout=RUN_S)
    outcome.problems += orphans(known, workspace) + plain(said)
    if run.returncode != 0:
        outcome.told, outcome.recovery = ("" if what == "flow" else last(said)), "`orchestra run`"
        outcome.problems += [] if what == "flow" or "\nerror: " in said else ["no error line"]
        outcome.problems += finish(workspace, "run")
    outcome.problems += reference.differences(workspace)
    ended(workspace)
    return outcome


def line_of(pid: int) -> bytes:
    """A process's command line; empty when it is gone."""
    try:
        return b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def copied(template: Path, folder: Path) -> Workspace:
    """A clone as a user has it after `git clone`."""
    shutil.copytree(template, folder, symlinks=True)
    return Workspace(folder)


def ended(workspace: Workspace) -> None:
    stop_services(workspace.root)
    shutil.rmtree(workspace.root, ignore_errors=True)


def two_operators(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    workspace = copied(template, folder)
    outcome = FaultOutcome("two operators at once", "the second 5 s after the first")
    first = workspace.start("run")
    time.sleep(5)
    second = typed(workspace, "run")
    outcome.told = last(second.stdout)
    outcome.problems += plain(second.stdout)
    if second.returncode != 2:
        outcome.problems.append(f"the second ends with {second.returncode}")
    said, _ = first.communicate(timeout=RUN_S)
    outcome.problems += [] if first.returncode == 0 else [f"the first ends with {last(said)}"]
    outcome.problems += reference.differences(workspace)
    ended(workspace)
    return outcome


def disk(fault: str, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """A disk of its own that runs full, or can only be read, in the middle of a run."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "none", str(folder)], check=True)
    try:
        workspace = copied(template, folder / "w")
        run = workspace.start("run")
        time.sleep(reference.seconds / 2)
        used = shutil.disk_usage(folder).used >> 10
        option = f"size={used + 64}k" if fault == "full disk" else "ro"
        remounted = subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=False).returncode == 0
        if not remounted:  # The kernel makes no disk read-only that is being written to: it runs full instead.
            fault = "full disk, not read-only: it was being written to"
            subprocess.run(["mount", "-o", f"remount,size={used + 64}k", str(folder)], check=True)
        outcome = FaultOutcome(fault, "half-way")
        said, _ = run.communicate(timeout=RUN_S)
        outcome.told = last(said)
        outcome.problems += plain(said) + ([] if run.returncode else ["the run says that it succeeded"])
        subprocess.run(["mount", "-o", "remount,rw,size=2g", str(folder)], check=True)
        outcome.recovery = "free space, then `orchestra run`"
        outcome.problems += finish(workspace, "run") + reference.differences(workspace)
        stop_services(workspace.root)
        return outcome
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def damaged(
    path: str, damage: Callable[[bytes], bytes], template: Path, folder: Path, reference: Reference
) -> FaultOutcome:
    """A file of a finished run is damaged; the next run must say so, or make it again."""
    workspace = copied(template, folder)
    finish(workspace, "run")
    stop_services(workspace.root)
    file = workspace.root / path
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(whole))
    outcome = FaultOutcome(f"damaged {path}", "between two runs")
    done = typed(workspace, "run")
    outcome.told = last(done.stdout)
    outcome.problems += plain(done.stdout)
    if done.returncode != 0:
        if file.name not in done.stdout:
            outcome.problems.append("the line does not name the file")
        file.write_bytes(whole)
        outcome.recovery = "bring the file back, then `orchestra rerun`"
        outcome.problems += finish(workspace, "run")
    outcome.problems += reference.differences(workspace)
    ended(workspace)
    return outcome


def dead_gateway(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    workspace = copied(template, folder)
    outcome = FaultOutcome("kill -9 of the gateway", "while it serves", recovery="`orchestra release`")
    outcome.problems += finish(workspace, "run")
    for service in services(workspace.root):
        if "gateway" in service.name:
            os.kill(service.pid, signal.SIGKILL)
    time.sleep(1)
    status = typed(workspace, "status")
    outcome.told = next((line.strip() for line in status.stdout.splitlines() if "DOWN" in line), "nothing")
    outcome.told = re.sub(r":\d{4,5}", ":PORT", outcome.told)
    outcome.problems += [] if outcome.told != "nothing" else ["`orchestra status` does not say DOWN"]
    outcome.problems += finish(workspace, "release") + finish(workspace, "ask", "What is 37 * 24?")
    outcome.problems += reference.differences(workspace)
    ended(workspace)
    return outcome


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
    for path, damage in DAMAGES:
        yield partial(damaged, path, damage)
    if os.geteuid() == 0:
        yield partial(disk, "full disk")
        yield partial(disk, "read-only disk")


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
        reference = Reference(time.monotonic() - began, outputs(workspace), metrics(workspace))
        ended(workspace)
        print(f"a run without faults: {reference.seconds:.0f} s", flush=True)
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
