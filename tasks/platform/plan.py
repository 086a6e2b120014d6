"""`orchestra plan`: the stages that a run would run, the reasons, and their past time and cost; runs nothing."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median

from orchestra.config.overrides import in_force, left_in_force
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, ServiceError
from orchestra.system.runs import RunRecord, StageRecord, in_short, runs
from orchestra.system.workspace import locked
from orchestra.text import aligned
from tasks.platform import dvc
from tasks.platform.commands import run_command
from tasks.platform.named import check_named

RECENT = 5
"""Runs of a stage whose median is the forecast."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan."""

    name: str
    why: tuple[str, ...]
    """Empty: it stays as it is."""
    certain: bool
    """False when it runs only if an input, which a stage before it makes again, comes out different."""
    seconds: float | None
    """Median of its last runs; None when it never ran here."""
    usd: Decimal | None


def plan(
    stale: Mapping[str, Sequence[str]], records: Sequence[RunRecord], begin: str | None = None
) -> list[PlannedStage]:
    """The stages in their order, `begin` as if it were asked for; raises `ConfigError` for a stage that there is not.

    Each stage reads what the one before it makes, so that behind the first that runs, the others may run.
    """
    if begin is not None and begin not in stale:
        raise ConfigError(f"no stage {begin}", where="--from", fix=f"one of: {', '.join(stale)}")
    steps, first = [], ""
    for name, why in stale.items():
        told = tuple(why) or (("it is asked for",) if name == begin else ())
        certain = bool(told)
        if not told and first:
            told = (f"if {first} makes something else",)
        first = first or (name if told else "")
        seconds, usd = _before(name, records) if told else (0.0, Decimal(0))
        steps.append(PlannedStage(name, told, certain, seconds, usd))
    return steps


def _before(name: str, records: Sequence[RunRecord]) -> tuple[float | None, Decimal | None]:
    """Median seconds and dollars of the last runs of a stage."""
    ran = [one.stages[name] for one in records if name in one.stages and one.stages[name].state == "ran"][:RECENT]
    if not ran:
        return None, None
    return median(map(_seconds, ran)), median(one.usd for one in ran)


def _seconds(stage: StageRecord) -> float:
    return 0.0 if stage.ended is None else (stage.ended - stage.began).total_seconds()


def lines(steps: Sequence[PlannedStage], cap_usd: Decimal | None) -> list[str]:
    """The plan as a table, its sums, and what follows it."""
    rows = [("stage", "", "time", "USD", "why")]
    for step in steps:
        runs_it = "runs" if step.certain else "may run" if step.why else "stays"
        rows.append((step.name, runs_it, _time(step.seconds), _usd(step.usd), in_short(step.why)))
    wanted = [step for step in steps if step.why]
    if not wanted:
        return [*aligned(rows), "Nothing would run but promote and deploy, which change nothing that is already right."]
    seconds, usd = [step.seconds for step in wanted], [step.usd for step in wanted]
    known, paid = [one for one in seconds if one is not None], [one for one in usd if one is not None]
    rows.append(("all", "", _time(sum(known)) if known else "?", _usd(sum(paid, Decimal(0))) if paid else "?", ""))
    notes = [f"Time and dollars: median of a stage's last {RECENT} runs; simulated experts cost what the book says."]
    if len(known) < len(wanted):
        notes.append("? = it has not run here yet: `orchestra forecast` measures a sample of sft, grpo or evaluate.")
    notes.append(
        f"The cap of a run is {_usd(cap_usd)} USD." if cap_usd is not None else "A run has no cap: budget.run_usd."
    )
    notes.append("A stage whose inputs are those of an earlier run is restored from DVC's cache in seconds.")
    return [*aligned(rows), *notes]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _usd(usd: Decimal | None) -> str:
    return "?" if usd is None else f"{usd:.2f}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.platform.plan", description=__doc__)
    parser.add_argument("--from", dest="begin", metavar="STAGE")
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[])
    options = parser.parse_args(arguments)
    root = Path.cwd()
    if left_in_force(root):
        # Of a run that was killed: whoever takes the lock takes them out. Beside a run they hold for it.
        with contextlib.suppress(ServiceError), locked(root):
            pass
    if options.overrides:
        # DVC reads params.yaml only, so that the values stand there while it looks.
        with locked(root), in_force(root, options.overrides):
            params, found = load_params(root / "params.yaml"), dvc.stages(root)
    else:
        # In this order: what is wrong in the file is not for DVC to say.
        params, found = load_params(root / "params.yaml"), dvc.stages(root)
    check_named(params, root)
    print("\n".join(lines(plan(found, runs(root), options.begin), params.budget.run_usd)))


if __name__ == "__main__":
    run_command(main)
