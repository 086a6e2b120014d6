"""`python -m flows.status`: what failed and the command to type, what runs, stages, registry and servers.

Nothing is waited for beyond a deadline: each part is asked in a thread that a late answer cannot hold the process in.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from flows._summary import RunSummary, places
from orchestra.cli.operations.runs import moment, summary, took
from orchestra.config.deploy import Deploy
from orchestra.config.overrides import left_in_force
from orchestra.config.schema import load_params
from orchestra.errors import OrchestraError
from orchestra.files.yaml import load_yaml
from orchestra.serving.releases.control_channel import live_channels, started_by_hand
from orchestra.serving.releases.state import SERVING, gateway_code, read
from orchestra.system.ending import told
from orchestra.system.environment import quiet
from orchestra.system.processes import all_remembered
from orchestra.system.retraining import unanswered
from orchestra.system.runs import RUNNING, RunRecord, StageRecord, in_short, newest_by_flow, runs
from orchestra.system.servers import state
from orchestra.system.workspace import locked_elsewhere
from tasks.platform import dvc
from tasks.platform.aliases import aliases

ALIASES = ("champion", "candidate", "previous")
AFTER = ("promote", "deploy")
"""What the flow does when every stage is current."""
ANSWER = "answer"
"""The flow of a person's answer, and its first stage."""
BY_HAND = "where it was started"
"""The log of a gateway that no release started."""
SERVERS_S, REGISTRY_S, STAGES_S = 2.0, 3.0, 10.0
"""Seconds that each part may take; idle cores need a fraction of a second, and a second for DVC."""
T = TypeVar("T")


def begun(work: Callable[[], T]) -> Future[T]:
    """The work in a thread of its own, which ends with the process, whatever it waits for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def failure_lines(records: list[RunRecord]) -> list[str]:
    """Each flow whose newest run failed: stage, cause, and the command to type."""
    lines = []
    for one in newest_by_flow(records).values():
        if one.failure is None:
            continue
        where = f" in {one.failure.stage}" if one.failure.stage else ""
        lines += [
            f"  {one.flow} {one.name} {one.state.lower()}{where}, {moment(one.ended or one.began)}",
            f"    cause  {one.failure.kind}: {one.failure.line}",
            f"    type   orchestra why {one.name}    then: orchestra rerun {one.name}",
        ]
    return lines


def running_lines(root: Path, records: list[RunRecord]) -> list[str]:
    """The runs that are under way, the stage they are at, and what that said last."""
    return [
        f"  {one.flow} {one.name} for {took(one)}, pid {one.pid}: {_last_line(root, one.stage) or summary(one)}"
        for one in records
        if one.lives
    ]


def stage_lines(root: Path, records: list[RunRecord]) -> Iterator[str]:
    """One line a stage, in order; beside a run what that did so far, since DVC is busy with it."""
    under_way = next((one for one in records if one.lives and one.flow == "retrain"), None)
    if under_way is not None:
        for name in load_yaml(root / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"]:
            done = under_way.stages.get(name)
            words = "not reached yet" if done is None else "runs now" if done.state == RUNNING else done.state
            yield f"  {name:<12}{words}"
        return
    try:
        found = begun(lambda: dvc.stages(root)).result(STAGES_S)
    except TimeoutError:
        yield f"  not known within {STAGES_S:g} s: the machine is busy, or DVC reads large files; orchestra plan waits"
        return
    except OrchestraError as error:
        yield f"  not known now: {error}"
        return
    for name, why in found.items():
        yield f"  {name:<12}{'stale: ' + in_short(why, 2) if why else 'current'}"


def leftover_lines(root: Path) -> list[str]:
    """The values that a killed run left in params.yaml."""
    names = left_in_force(root)
    if not names or locked_elsewhere(root):
        return []
    return [f"  params.yaml has values of a run that was killed ({in_short(names)}): orchestra plan takes them out"]


def request_lines(root: Path) -> list[str]:
    """What asks for a retraining and was not answered yet."""
    return [f"  {one.id}  {one.line}" + (f": {one.needs}" if one.needs else "") for one in unanswered(root)]


def _done(record: RunRecord, name: str) -> StageRecord | None:
    """That stage of a run; as promote's, a person's answer that was carried out."""
    given = record.stages.get(ANSWER) if name == "promote" and record.flow == ANSWER else None
    return record.stages.get(name) if given is None or given.unfinished else given


def release_lines(root: Path, records: list[RunRecord]) -> list[str]:
    """What promote, or a person's answer after it, and deploy last did."""
    lines = []
    for name in AFTER:
        last = next((found for one in records if (found := _done(one, name)) is not None), None)
        lines.append(f"  {name:<12}{'did not run yet' if last is None else f'{last.state}, {moment(last.began)}'}")
    return lines


def registry_lines(root: Path, model_name: str) -> list[str]:
    """The aliases of the registered model; and the way to serve the champion where another version is served."""
    try:
        found = begun(lambda: aliases(root, model_name)).result(REGISTRY_S)
        serving = read(root / SERVING)
    except TimeoutError:
        return [f"  does not answer within {REGISTRY_S:g} s"]
    except OrchestraError as error:
        return [f"  {error}"]
    lines = [f"  {alias:<12}version {found[alias]}" for alias in ALIASES if alias in found]
    if serving is not None:
        behind = found.get("champion") not in (None, int(serving.version)) if serving.version.isdigit() else False
        lines.append(f"  served      version {serving.version}" + (": orchestra release serves the champion" * behind))
    return lines or ["  nothing registered yet"]


def service_lines(root: Path) -> list[str]:
    """Every server that was started and not stopped, and how it is; also gateways that were started by hand."""
    found = [*all_remembered(root), *(replace(one, log=BY_HAND) for one in started_by_hand(root))]
    asked, deadline = [begun(partial(state, one)) for one in found], time.monotonic() + SERVERS_S
    lines = [
        f"  {one.name:<12}{one.url if one.port else '—'}  {_state(future, deadline, one.log)}  "
        f"(pid {one.pid}, log {one.log})"
        for one, future in zip(found, asked, strict=True)
    ]
    return lines or ["  nothing runs"]


def other_code_lines(root: Path, deploy: Deploy) -> list[str]:
    """The gateways that a release would replace, or that want a restart: after an upgrade, or other settings."""
    from orchestra.serving.releases.control import of_other_code  # Loads httpx.

    with contextlib.suppress(TimeoutError):  # The gateway's own line says that it does not answer.
        found = begun(lambda: of_other_code(root, gateway_code(deploy))).result(SERVERS_S)
        by_hand = {one.url for one in started_by_hand(root)}
        return [
            f"  the gateway at {one} runs other code or settings than these: "
            f"{'restart it' if one in by_hand else 'orchestra release'}"
            for one in found
        ]
    return []


def _state(asked: Future[str], deadline: float, log: str) -> str:
    try:
        return asked.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return f"does not answer within {SERVERS_S:g} s: see {log}"


def main() -> None:
    """Print it all, what matters first."""
    quiet()
    root = Path.cwd()
    last = _show(root)
    if last is not None:
        asked = [f"  {last.approval}"] if last.approval else []
        _say("Last finished run", f"  version {last.version} {last.verdict}", *asked)
        _say(*(f"  {what:<14}{where}" for what, where in places(root, last.mlflow_run)))


def _show(root: Path) -> RunSummary | None:
    """Print the parts in turn; returns the last finished run."""
    records = runs(root)
    first = {"Failed": failure_lines(records), "Runs now": running_lines(root, records)}
    for title, lines in {**first, "Asks for a retraining": request_lines(root)}.items():
        if lines:
            _say(title, *lines)
    _say("Servers")  # Before they are asked: who waits sees that it works.
    _say(*service_lines(root))
    params = load_params(root / "params.yaml")
    if live_channels(root):
        _say(*other_code_lines(root, params.deploy))
    _say("Registry", *registry_lines(root, params.promote.model_name))
    _say("Stages", *leftover_lines(root), *stage_lines(root, records), *release_lines(root, records))
    return RunSummary.load(root)


def _say(*lines: str) -> None:
    if lines:
        print(*lines, sep="\n", flush=True)


def _last_line(root: Path, stage: str) -> str:
    """The last line of a stage's own in its log; empty when there is none."""
    with contextlib.suppress(OSError):
        lines = (root / ".state/logs" / f"{stage}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith(f"{stage}: ")), "")
    return ""


if __name__ == "__main__":
    with told(Path.cwd()):
        main()
