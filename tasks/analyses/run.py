"""Analyses of the method: a table on the screen; data and plot in reports/analyses, and in a run of MLflow.

python -m tasks.analyses.run bias|frontier|unseen-tools|unseen-prices|preferences|judges
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from orchestra.config.schema import load_params
from orchestra.evaluation.analyses import adherence, bias, changes, frontier, judges
from orchestra.evaluation.report import REFERENCE, TRAINED
from orchestra.files import atomic
from orchestra.text import aligned
from orchestra.types import Record
from tasks.analyses.attempts import adherent, unseen
from tasks.analyses.judges import compared
from tasks.analyses.own import over_settings, shares_of_experts
from tasks.analyses.sets import OWN, AnalysedSet, analysed
from tasks.platform.commands import run_command
from tasks.platform.stage import Stage

REPORTS = "reports/analyses"
EXPERIMENT = "orchestra-analyses"


@dataclass(frozen=True)
class AnalysisResult:
    """What an analysis leaves behind."""

    name: str
    data: Record
    table: list[tuple[str, ...]]
    plot: Callable[[Path], None]
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    """Lines below the table."""


def report(root: Path, found: AnalysisResult) -> None:
    """Print the table; write data, table and plot; and keep them in a run of MLflow."""
    text, place = "\n".join([*aligned(found.table), *found.notes]), root / REPORTS / found.name
    place.parent.mkdir(parents=True, exist_ok=True)
    files = [place.with_name(f"{place.name}{suffix}") for suffix in (".json", ".txt", ".png")]
    atomic.write_text(files[0], found.data.model_dump_json(indent=1) + "\n")
    atomic.write_text(files[1], text + "\n")
    found.plot(files[2])
    _log(root, found.name, files, found.metrics)
    print(text)
    print(f"plot: {files[2].relative_to(root)}")


def _log(root: Path, name: str, files: list[Path], metrics: Mapping[str, float]) -> None:
    from tasks.platform.tracking import connect, experiment, log_all

    client = connect(root)
    run_id = client.create_run(experiment(client, root, EXPERIMENT), run_name=name).info.run_id
    log_all(client, run_id, metrics=metrics)
    for file in files:
        client.log_artifact(run_id, str(file))
    client.set_terminated(run_id)


def options() -> argparse.ArgumentParser:
    """What each analysis takes."""
    parser = argparse.ArgumentParser(prog="python -m tasks.analyses.run")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("bias")
    over = kinds.add_parser("frontier")
    over.add_argument("--policy", default=TRAINED)
    over.add_argument("--turns", type=int, action="append", default=[])
    over.add_argument("--budget", type=float, action="append", default=[])
    over.add_argument("--examples", type=int)
    for name in ("unseen-tools", "unseen-prices", "preferences"):
        one = kinds.add_parser(name)
        one.add_argument("--policy", action="append", default=[])
        one.add_argument("--reference", default=REFERENCE)
        one.add_argument("--examples", type=int)
        one.add_argument("--benchmark", default=OWN)
        one.add_argument("--data", action="append", default=[])
    two = kinds.add_parser("judges")
    for name in ("--benchmark", "--judge", "--judge-price"):
        two.add_argument(name, required=True)
    two.add_argument("--cap-usd")
    return parser


def of_set(told: argparse.Namespace, root: Path) -> AnalysisResult:
    """An analysis of the held-out examples or of a public set."""
    stage = Stage.open("analyse", root)
    found: AnalysedSet = analysed(stage, told.benchmark, [Path(name) for name in told.data], told.examples)
    policies = told.policy or [TRAINED]
    name = told.kind if found.name == OWN else f"{told.kind}-{found.name}"
    if told.kind == "preferences":
        made = adherent(found, policies, told.reference)
        drawn = partial(adherence.plot, made)
        return AnalysisResult(name, made, adherence.table(made), drawn, adherence.metrics(made))
    changed = unseen(found, told.kind.removeprefix("unseen-"), policies, told.reference)
    drawn = partial(changes.plot, changed)
    return AnalysisResult(name, changed, changes.table(changed), drawn, changes.metrics(changed))


def of_judges(told: argparse.Namespace, root: Path) -> AnalysisResult:
    """Two judges on a benchmark's stored answers."""
    cap = None if told.cap_usd is None else Decimal(told.cap_usd)
    made = compared(root, load_params(root / "params.yaml"), told.benchmark, told.judge, told.judge_price, cap)
    name = f"judges-{told.benchmark}-{told.judge.replace('/', '-')}"
    notes = tuple(judges.notes(made))
    return AnalysisResult(name, made, judges.table(made), partial(judges.plot, made), judges.metrics(made), notes)


def main(arguments: list[str]) -> None:
    """One analysis."""
    told, root = options().parse_args(arguments), Path.cwd()
    if told.kind == "bias":
        made = shares_of_experts(root)
        result = AnalysisResult("bias", made, bias.table(made), partial(bias.plot, made), bias.metrics(made))
    elif told.kind == "frontier":
        tried = over_settings(root, told.policy, told.turns, told.budget, told.examples)
        drawn = partial(frontier.plot, tried)
        result = AnalysisResult("frontier", tried, frontier.table(tried), drawn, frontier.metrics(tried))
    else:
        result = of_judges(told, root) if told.kind == "judges" else of_set(told, root)
    report(root, result)


if __name__ == "__main__":
    run_command(main)
