"""Faults around a run: servers that are killed, a clock that jumps, folders that cannot be written, a spoiled cassette,
and one rank of two."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.fault_cases import RUN_S, FaultOutcome, Reference, copied, ended, finish, finished, last, orphans, plain
from benchmarks.fault_cases import typed as run_typed
from orchestra.files.checkpoint import hash_dir
from orchestra.serving.releases.state import SERVING, read
from orchestra.system.processes import descendants, remembered, services, started_at
from orchestra.system.runs import RUNS
from orchestra.system.storage import PREFECT, opened
from tests.flows.workspace import ROOT, Workspace, free_ports

CLOCK = Path(__file__).with_name("clock.c")
JUMP_DAYS = {"forward": 40, "backward": -40}
DAY_S = 86400


def compiler() -> str | None:
    """The C compiler that builds the clock, where there is one."""
    return shutil.which("cc")


def clock_jump(way: str, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """The clock of every process of a run jumps by 40 days half-way; the monotonic clock goes on, as the kernel's."""
    workspace = copied(template, folder)
    outcome = FaultOutcome(f"the clock jumps {abs(JUMP_DAYS[way])} days {way}", "half-way")
    offset, library = (folder.with_name(f"{folder.name}.{kind}") for kind in ("clock", "so"))
    offset.write_text("0\n", encoding="ascii")
    subprocess.run([compiler() or "cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK)], check=True)
    lies = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    lied_to = Workspace(folder, lies)
    run = lied_to.start("run")
    family = [(run.pid, started_at(run.pid))]
    time.sleep(reference.seconds / 2)
    family += [(pid, started_at(pid)) for pid in descendants(run.pid)]
    if run.poll() is not None:
        outcome.problems.append("the run ended before the jump")
    offset.write_text(f"{JUMP_DAYS[way] * DAY_S}\n", encoding="ascii")
    said, _ = run.communicate(timeout=RUN_S)
    outcome.told = last(said)
    outcome.problems += orphans(family, workspace) + plain(said)
    if run.returncode != 0:
        outcome.recovery = "`orchestra run`"
        outcome.problems += finish(workspace, "run")
    # The clock is right again: what the jump left on record may not hold anything up, nor be done again.
    outcome.problems += finish(workspace, "run")
    for command in ("status", "runs"):
        shown = run_typed(workspace, command)
        outcome.problems += plain(shown.stdout) + [f"{command}: {text}" for text in negative(shown.stdout)]
    outcome.problems += [
        f"a run of {length:.0f} s" for length in run_times(workspace) if length < 0 and way == "forward"
    ]
    outcome.problems += reference.differences(workspace)
    ended(workspace)
    return outcome


def negative(text: str) -> list[str]:
    """Lengths of time below zero that a person would read."""
    return re.findall(r"(?<![\w.+-])-\d[\d.]* ?(?:s|ms|min|h|d)\b", text)[:2]


def dead_server(name: str, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """kill -9 of a server of `orchestra up`: status says so, the same command brings it back with its history."""
    workspace = finished(reference, folder)
    outcome = FaultOutcome(f"kill -9 of {name}'s server", "idle, after a run", recovery="`orchestra up`")
    ports = free_ports()
    outcome.problems += finish(workspace, "up", *ports)
    before = history(workspace)
    (victim,) = [service.pid for service in services(workspace.root) if service.name == name]
    family = [(pid, started_at(pid)) for pid in (victim, *descendants(victim))]
    os.kill(victim, signal.SIGKILL)
    outcome.problems += orphans(family, workspace)
    status = run_typed(workspace, "status").stdout
    told = next((line.strip() for line in status.splitlines() if "DOWN" in line), "")
    outcome.told = re.sub(r":\d{4,5}|(?<=pid )\d+", lambda found: ":PORT" if ":" in found[0] else "PID", told)
    outcome.problems += plain(status) + ([] if told.startswith(name) else ["`orchestra status` does not name it"])
    outcome.problems += finish(workspace, "up", *ports)
    if "DOWN" in run_typed(workspace, "status").stdout:
        outcome.problems.append("it is still down")
    outcome.problems += [] if history(workspace) == before else ["its history is not what it was"]
    outcome.problems += finish(workspace, "run") + reference.differences(workspace)
    ended(workspace)
    return outcome


def dead_model_server(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """kill -9 of vLLM while users ask: each request fails by name or is answered, and the gateway starts it again."""
    from benchmarks.releases import killed, served

    outcome = FaultOutcome("kill -9 of vLLM", "while users ask")
    with served("vllm", users=2) as (site, url):
        before = read(site.root / SERVING)
        assert before is not None and before.vllm_service is not None
        victim = remembered(site.root, before.vllm_service)
        assert victim is not None
        family = [(pid, started_at(pid)) for pid in (victim.pid, *descendants(victim.pid))]
        row = killed(site, url)
        outcome.told = "; ".join([f"{row.requests} requests, {row.failed} failed, each by name", *row.notes])
        outcome.problems += row.faults + orphans(family, Workspace(site.root))
        outcome.problems += [] if read(site.root / SERVING) == before else ["it serves something else"]
    return outcome


def history(workspace: Workspace) -> tuple[list[str], int]:
    """MLflow's runs, and how many runs Prefect's database holds."""
    with opened(workspace.root / PREFECT, "ro") as database:
        (count,) = database.execute("SELECT count(*) FROM flow_run").fetchone()
    return sorted(str(run.info.run_id) for run in workspace.runs()), int(count)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """The folder as a mount of its own that nobody can write, root included."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only(place: str, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """A folder that the next run has to write cannot be written: it says so, and keeps what there is."""
    workspace = finished(reference, folder)
    outcome = FaultOutcome(f"{place}/ is read-only", "the next run", recovery="make it writable, then `orchestra run`")
    if place == "models":
        shutil.rmtree(workspace.root / "models/grpo")
    with unwritable(workspace.root / place):
        run = run_typed(workspace, "run")
    outcome.told = last(run.stdout)
    outcome.problems += plain(run.stdout)
    if run.returncode == 0 or not outcome.told.startswith("error: "):
        outcome.problems.append(f"it ends with {run.returncode} and no error line")
    outcome.problems += finish(workspace, "run") + reference.differences(workspace)
    ended(workspace)
    return outcome


def run_times(workspace: Workspace) -> list[float]:
    """Seconds of every run on record."""
    told = [json.loads(file.read_text(encoding="utf-8")) for file in (workspace.root / RUNS).glob("*.json")]
    return [
        (datetime.fromisoformat(one["ended"]) - datetime.fromisoformat(one["began"])).total_seconds()
        for one in told
        if one.get("ended")
    ]


def spoiled_cassette(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """A line of a cassette of paid replies is spoiled: no reply is taken for another, and none is paid twice."""
    from tests.integration.test_paid_once import URL_ENV, Provider, make_paid_world, result
    from tests.support.endpoint import running

    outcome = FaultOutcome("damaged cassette", "evaluate", recovery="bring the file back, then the same command")
    provider = Provider()
    with running(provider.double):
        root = make_paid_world(folder)
        cassette = root / "work/run.jsonl"
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", URL_ENV: provider.double.url}
        env |= {"ORCHESTRA_CASSETTE": f"auto:{cassette}"}

        def evaluate() -> subprocess.CompletedProcess[str]:
            shutil.rmtree(root / "work/evaluate", ignore_errors=True)  # Its own record of what was paid.
            return subprocess.run(
                [sys.executable, "-m", "tasks.evaluate"], cwd=root, env=env, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=RUN_S, check=False,
            )  # fmt: skip

        first = evaluate()
        outcome.problems += [] if first.returncode == 0 else [f"the first run: {last(first.stdout)}"]
        paid, made, whole = provider.paid.total(), result(root, "evaluate"), cassette.read_bytes()
        lines = whole.splitlines(keepends=True)
        cassette.write_bytes(b"".join(lines[:1]) + lines[1][:40] + b"\n" + b"".join(lines[2:]))
        struck = evaluate()
        outcome.told = last(struck.stdout)
        outcome.problems += plain(struck.stdout)
        if struck.returncode == 0 or cassette.name not in outcome.told:
            outcome.problems.append(f"it ends with {struck.returncode} and does not name the file")
        cassette.write_bytes(whole)
        again = evaluate()
        outcome.problems += [] if again.returncode == 0 else [f"after the repair: {last(again.stdout)}"]
        outcome.problems += [] if result(root, "evaluate") == made else ["another result"]
        if paid == 0 or provider.paid.total() != paid:
            outcome.problems.append(f"{provider.paid.total()} replies paid, {paid} needed")
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def dead_rank(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """kill -9 of one of two processes of a training: the other ends too, and the same command goes on exactly."""
    from tests.integration.test_ranks import SETUPS, start, world

    outcome = FaultOutcome(
        "kill -9 of one rank of two", "grpo, step 2", recovery="the same stage again, which a run does itself"
    )
    folder.mkdir()
    whole, cut = world(folder / "whole", **SETUPS["ddp"]), world(folder / "cut", **SETUPS["ddp"])
    if start(whole).wait() != 0:
        outcome.problems.append("the training without a fault failed")
    stage = start(cut)
    while stage.poll() is None and not list(cut.glob("work/grpo/*/checkpoints/checkpoint-2/complete")):
        time.sleep(0.02)
    below = descendants(stage.pid)
    family = [(pid, started_at(pid)) for pid in (stage.pid, *below)]
    os.kill(below[-1], signal.SIGKILL)
    code = stage.wait()
    outcome.told = f"(the stage ends with {code})"
    outcome.problems += orphans(family, Workspace(cut)) + ([] if code != 0 else ["the stage says that it succeeded"])
    outcome.problems += ["half a checkpoint is an output"] if (cut / "models/grpo").exists() else []
    if start(cut).wait() != 0:
        outcome.problems.append("it does not go on")
    said = (cut / "screen.log").read_text(encoding="utf-8")
    outcome.problems += plain(said) + ([] if "continued from step" in said else ["it began from nothing"])
    made = [folder / "models/grpo" for folder in (whole, cut)]
    if not all(folder.is_dir() for folder in made) or len({hash_dir(folder) for folder in made}) != 1:
        outcome.problems.append("models/grpo differs")
    shutil.rmtree(folder, ignore_errors=True)
    return outcome
