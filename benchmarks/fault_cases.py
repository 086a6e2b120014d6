"""Single faults against a run of the micro pipeline, each in a clone of its own, and how its end is judged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.serving.releases.state import SERVING, read
from orchestra.system.backup import backup, restore
from orchestra.system.processes import LOCALHOST, alive, descendants, kill_tree, services, started_at, stop_services
from orchestra.system.runs import runs
from tests.flows.workspace import Workspace

COMPARED = {"sft": "models/sft", "grpo": "models/grpo", "validate": "data/validated"}
"""Outputs that must be those of a run without faults, by stage."""
PROCESSES = {
    "flow": None,
    "stage": rb"\0tasks\.",
    "DVC": rb"\0dvc\0|dvc\.cli|tasks/platform/dvc",
    "Prefect's API": rb"prefect",
}
"""What is killed, and how its command line is known; the flow is the process that was started."""
ORPHANS_S, RUN_S = 20.0, 1200.0
TOLD = 400
"""Characters of a line that the page shows; the command that helps stands at its end."""


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
    root: Path = Path()
    """Its workspace, which cases copy where a finished run is where they begin."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""

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
    """Figures of the evaluation without times; empty where there are none, as after a pull that failed."""
    file = workspace.root / "reports/evaluate.json"
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
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
    return placeless((errors or lines or ["nothing"])[-1])[:TOLD]


def placeless(text: str) -> str:
    """A text with the names of files, and without the folders of this machine."""
    return re.sub(r"(?<![\w.:/])/\S*/(?=[\w.]+)", "", text)


def plain(text: str) -> list[str]:
    """What a person should not see in an output."""
    errors = [line for line in text.splitlines() if line.lower().startswith("error: ")]
    _, printed, rest = text.partition("Traceback (most recent call last)")
    cause = next((line for line in rest.splitlines()[1:] if not line.startswith(" ")), "")
    found = [f"a traceback is printed: {cause}"] if printed else []
    return found + ([f"{len(errors)} error lines"] if len(errors) > 1 else [])


def orphans(family: Sequence[tuple[int, str | None]], workspace: Workspace) -> list[str]:
    """Processes of a run that outlive it; what serves on is none. Its first process ended, or was just killed."""
    # The kernel takes a moment to end a large process: until then it would pass for a server that runs.
    deadline = time.monotonic() + ORPHANS_S
    while family and alive(family[0][0]) and started_at(family[0][0]) == family[0][1] and time.monotonic() < deadline:
        time.sleep(0.05)
    kept = {service.pid for service in services(workspace.root)}
    kept |= {child for pid in kept for child in descendants(pid)}
    deadline = time.monotonic() + ORPHANS_S
    while True:
        left = [pid for pid, start in family if alive(pid) and started_at(pid) == start and pid not in kept]
        if not left or time.monotonic() > deadline:
            return [f"{len(left)} processes left over"] if left else []
        time.sleep(0.1)


def strays(folder: Path) -> dict[int, str]:
    """Command lines, by pid, of what still works in a folder whose case is over, however it was started."""
    deadline = time.monotonic() + ORPHANS_S
    while True:
        left = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # The place of a folder that was removed ends in " (deleted)".
                if f"{os.readlink(entry / 'cwd')}/".startswith((f"{folder}/", f"{folder} ", f"{folder}-other")):
                    left[int(entry.name)] = line_of(int(entry.name)).replace(b"\0", b" ").decode(errors="replace")[:80]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def stage_now(workspace: Workspace) -> str:
    """The stage that a run's own record names as running; empty between two."""
    newest = next(iter(runs(workspace.root)), None)
    return newest.stage if newest is not None and newest.lives else ""


def killed(what: str, stage: str, share: float, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """kill -9 of a part of a run in a stage, after that share of the time that the stage takes undisturbed; earlier in
    another run where the stage had ended by then."""
    for moment in (share, share / 2, 0.0):
        workspace = copied(template, folder)
        run = workspace.start("run")
        while run.poll() is None and stage_now(workspace) != stage:
            time.sleep(0.05)
        time.sleep(moment * reference.stages[stage])
        victim = part(what, run, workspace, stage)
        if victim is not None:
            break
        kill_tree(run.pid)
        run.communicate(timeout=RUN_S)
        ended(workspace)
    outcome = FaultOutcome(f"kill -9 of the {what}" if what != "Prefect's API" else f"kill -9 of {what}", stage)
    if victim is None:
        outcome.problems.append(f"{stage} ended before the kill")
        return outcome
    known = [(pid, started_at(pid)) for pid in (run.pid, *descendants(run.pid))]
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    said, _ = run.communicate(timeout=RUN_S)
    outcome.problems += orphans(known, workspace) + plain(said)
    if run.returncode != 0:
        outcome.told, outcome.recovery = ("" if what == "flow" else last(said)), "`orchestra run`"
        outcome.problems += [] if what == "flow" or "\nerror: " in said else ["no error line"]
        outcome.problems += finish(workspace, "run")
    outcome.problems += reference.differences(workspace) + released_once(workspace)
    ended(workspace)
    return outcome


def part(what: str, run: subprocess.Popen[str], workspace: Workspace, stage: str) -> int | None:
    """The process of a run that is to be killed while the stage runs; None once the stage has ended."""
    pattern = PROCESSES[what]
    while run.poll() is None and stage_now(workspace) == stage:
        family = [run.pid, *descendants(run.pid)]
        found = run.pid if pattern is None else next((pid for pid in family if re.search(pattern, line_of(pid))), None)
        if found is not None and stage_now(workspace) == stage:  # Looking takes a moment.
            return found
        time.sleep(0.05)
    return None


def released_once(workspace: Workspace) -> list[str]:
    """What differs from one version that one gateway serves."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{workspace.root}/.state/mlflow.db")
    versions = sorted(one.version for one in client.search_model_versions("name = 'orchestrator'"))
    serving, servers = read(workspace.root / SERVING), [one.name for one in services(workspace.root)]
    found = [] if [str(one) for one in versions] == ["1"] else [f"versions {versions}"]
    found += [] if serving is not None and serving.version == "1" else ["it does not serve version 1"]
    return found + ([] if servers == ["gateway"] else [f"it leaves {servers} serving"])


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


def finished(reference: Reference, folder: Path) -> Workspace:
    """A copy of the run without faults; MLflow's database speaks of the copy's own files."""
    shutil.copytree(reference.root, folder, symlinks=True)
    for name in (".state/serving.json", ".state/deployment.json"):
        (folder / name).unlink(missing_ok=True)
    kept = folder.with_name(f"{folder.name}.tar")
    backup(reference.root, kept)
    restore(folder, kept)
    kept.unlink()
    for left in (folder / ".state").glob("replaced-*"):
        shutil.rmtree(left)
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
    workspace = finished(reference, folder)
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
    workspace = finished(reference, folder)
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


def busy_port(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """Another program has the gateway's port when the run comes to deploy, and ends after the error was read."""
    workspace = finished(reference, folder)
    outcome = FaultOutcome("a busy port", "deploy", recovery="end the other program, then `orchestra run`")
    with socket.create_server((LOCALHOST, 0)) as other:
        port = other.getsockname()[1]
        run = typed(workspace, "run", "--set", f"deploy.gateway_port={port}")
    outcome.told = last(run.stdout).replace(str(port), "PORT")
    outcome.problems += plain(run.stdout)
    if run.returncode != 2 or "PORT" not in outcome.told:
        outcome.problems.append(f"it ends with {run.returncode} and does not name the port")
    outcome.problems += finish(workspace, "run") + reference.differences(workspace)
    ended(workspace)
    return outcome
