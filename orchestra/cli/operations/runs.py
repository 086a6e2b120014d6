"""`orchestra runs`, `why` and `rerun`: what ran, what failed, the runbook's entry, and running it again."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import check_stages, hand_over, workspace
from orchestra.errors import ConfigError
from orchestra.system.runs import RUNNING, RunRecord, find, in_short, runs
from orchestra.text import aligned

RUNBOOK = "monitoring/errors.md"
"""A section for each kind of error."""
FLOWS = ("retrain", "release", "answer", "monitor", "synthesize", "benchmark", "sweep")
"""What can be on record: the folder `flows`, which no library module imports."""
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="Name, or beginning of the id; default: the newest failure in orchestra status."
    ),
]


def list_runs(
    flow: Annotated[str | None, typer.Option(help="Only this flow: retrain, release, monitor …")] = None,
    most: Annotated[int, typer.Option(min=1, help="Number of runs to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """List the runs of this workspace, newest first: state, time, and the cause of a failure."""
    every = runs(workspace())
    there = dict.fromkeys([*FLOWS, *(one.flow for one in every)])
    if flow is not None and flow not in there:
        raise ConfigError(f"no flow {flow!r}", where="--flow", fix=f"one of: {', '.join(there)}")
    found = [one for one in every if flow in (None, one.flow)][:most]
    if as_json:
        print(json.dumps([one.model_dump(mode="json") for one in found], indent=2))
    elif not found:
        print("no run is on record; orchestra run starts one")
    else:
        rows = [("run", "flow", "began", "took", "state", "what")]
        rows += [(one.name, one.flow, moment(one.began), took(one), one.state, summary(one)) for one in found]
        print("\n".join(aligned(rows)))


def why(run: RunArgument = None) -> None:
    """Show why a run ended as it did: its stages, the cause, the runbook's entry and the next command."""
    root = workspace()
    print("\n".join(explain(root, find(runs(root), run))))


def rerun(
    run: RunArgument = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STAGE",
            help="Run this stage again (synthesize … evaluate) and those that it makes stale.",
        ),
    ] = None,
) -> None:
    """Repeat a run with its options: finished stages are skipped; unchanged training continues from its checkpoint."""
    root = workspace()
    record = find(runs(root), run)
    if record.lives:
        end = f"kill {record.pid}" if record.here else f"it is process {record.pid} of the machine {record.host}"
        raise ConfigError("it still runs", where=record.name, fix=f"wait for it, or end it: {end}")
    if from_ is not None and record.flow != "retrain":
        raise ConfigError(f"a run of {record.flow} has no stages to begin at", where="--from", fix="leave it out")
    check_stages(root, [from_])
    print(f"{record.flow}: again, as {record.name} was asked for", flush=True)
    os.environ.update(record.environment)
    hand_over("flows", "again", record.id, from_=from_ or None)


def explain(root: Path, record: RunRecord) -> list[str]:
    """A run in words: options, stages with their reasons, the failure with its runbook entry, where to read on."""
    asked = f", asked for by {record.asked_by}" if record.asked_by else ""
    lines = [f"{record.flow} {record.name}: {record.state}, began {moment(record.began)}, {took(record)}{asked}"]
    if options := {key: value for key, value in record.parameters.items() if value}:
        lines.append(f"  options: {json.dumps(options)}")
    for name, stage in record.stages.items():
        because = f" ({in_short(stage.why)})" if stage.why else ""
        lines.append(f"  {name:<12}{stage.state}{because}")
    if record.mlflow_run:
        lines.append(f"  MLflow run   {record.mlflow_run}")
    if record.failure is None:
        return [*lines, f"  {record.message}"] if record.message else lines
    lines += ["", f"Cause: {record.failure.kind}: {record.failure.line}"]
    if record.failure.stage and (log := root / ".state/logs" / f"{record.failure.stage}.log").is_file():
        lines.append(f"Log: {log.relative_to(root)}")
    return [*lines, "", *entry(root, record.failure.kind), "", f"Next: orchestra rerun {record.name}"]


def entry(root: Path, kind: str) -> list[str]:
    """The runbook's section on a kind of error; where there is none, the page's name."""
    file = root / RUNBOOK
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(rf"^## {re.escape(kind)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip().splitlines() if found else [f"See {RUNBOOK}."]


def summary(record: RunRecord) -> str:
    """The cause of a failure, the stage that runs, or how it ended; at most 100 characters."""
    stage = f"{record.stage}: " if record.stage else ""
    if record.failure is not None:
        text = f"{stage}{record.failure.kind}: {record.failure.what}"
    else:
        text = stage + RUNNING.lower() if record.ended is None else record.message
    return text if len(text) <= 100 else text[:99] + "…"


def moment(when: datetime) -> str:
    """A time in UTC, to the minute, and how long ago it was; what a clock wrote that was set back since is to come."""
    passed = (datetime.now(UTC) - when).total_seconds()
    told = f"{span(passed)} ago" if passed >= 0 else f"in {span(-passed)}"
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC ({told})"


def took(record: RunRecord) -> str:
    """How long a run took, or has taken."""
    end = record.ended or datetime.now(UTC)
    # A clock that was set back ends a run before it began.
    return span(max(0.0, (end - record.began).total_seconds()))


def span(seconds: float) -> str:
    """A length of time in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
