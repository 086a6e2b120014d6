"""Analyses of the method: a table on the screen; data and plot in reports/analyses, and in a run of MLflow.

python -m tasks.experiments.analyse bias|frontier
"""

import argparse
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestra.errors import DataError
from orchestra.evaluation import run as running
from orchestra.evaluation.analyses import bias, frontier
from orchestra.evaluation.report import EVALUATION, TRAINED, read_comparison
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.policies.chat import PREFIX
from orchestra.text import aligned
from orchestra.tools.catalogue.catalogue import Catalogue, read_catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Record
from tasks.evaluate import check_names, contender, data_hash, heldout, is_checkpoint, on_progress, players
from tasks.platform.commands import run_command
from tasks.platform.ledger import open_budget
from tasks.platform.stage import Stage

REPORTS = "reports/analyses"
EXPERIMENT = "orchestra-analyses"
FEW_TURNS = (1, 2, 3)
"""Turn limits that are tried besides the usual one."""


def shares_of_experts(root: Path) -> bias.BiasAnalysis:
    """The bias of every policy of the last evaluation. Raises `DataError` when there is none."""
    stage = Stage.open("analyse", root)
    comparison = read_comparison(root / EVALUATION / "comparison.json")
    world = stage.params.world
    catalogue = Catalogue.load(root / world.catalogue, root / world.prices, comparison.price_date)
    own = read_catalogue(root / world.catalogue).policy_price
    examples = {example.id: example for example in heldout(stage)}
    episodes: dict[str, list[Episode]] = {}
    for episode in read_jsonl(root / EVALUATION / "episodes.jsonl", Episode, fix="run the evaluate stage"):
        if episode.example_id not in examples:
            what = f"{episode.example_id} is no held-out example any more"
            raise DataError(what, where=EVALUATION, fix="run the evaluate stage")
        episodes.setdefault(episode.policy, []).append(episode)
    rows: list[bias.ExpertShares] = []
    for name, made in episodes.items():
        named = bias.Chooser(name, _family(name, root, catalogue, own))
        rows += bias.shares(named, made, examples, catalogue, comparison.bootstrap, comparison.seed)
    return bias.BiasAnalysis(simulated=comparison.simulated, examples=len(examples), shares=tuple(rows))


def over_settings(root: Path, policy: str, turns: list[int], count: int | None) -> frontier.FrontierAnalysis:
    """That policy over the first held-out examples under every setting; a killed analysis continues."""
    stage = Stage.open("analyse", root)
    params, examples = stage.params, heldout(stage)[:count]
    one = params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"policies": [policy]})})
    check_names(one, root)
    toolkit = Toolkit.from_params(params, root, budget=open_budget(stage))
    kinds = frontier.by_kind(examples)
    usual, seed = params.rollout.max_turns, params.evaluate.seed
    folder = root / "work" / "analyse" / _identity(stage, policy, examples_hash=data_hash(stage, examples))
    points, simulated = [], False
    with players(stage, folder) as build:
        player = contender(policy, root, toolkit.catalogue.policy_price, toolkit, build)
        for setting in frontier.settings([*(turns or FEW_TURNS), usual], usual, list(kinds)):
            asked = frontier.given(examples, kinds[setting.preference], seed) if setting.preference else examples
            limits = params.rollout.model_copy(update={"max_turns": setting.max_turns})
            file = folder / f"{setting.series}-{setting.name}.jsonl".replace(" ", "-")
            stage.say(f"{setting.series}: {setting.name}")
            found = running.evaluate([player], asked, toolkit, limits, file=file, on_progress=on_progress(stage))
            points.append(frontier.point(setting, found[player.name], asked, params.evaluate.bootstrap, seed))
            simulated |= any(episode.simulated for episode in found[player.name])
    return frontier.FrontierAnalysis(policy=policy, simulated=simulated, points=tuple(points))


def _family(policy: str, root: Path, catalogue: Catalogue, trained: str) -> str | None:
    """The family of a policy's own model, `trained` for a checkpoint; None for rules, which are no model."""
    if policy.startswith(PREFIX):
        return bias.family(catalogue.entry(policy.removeprefix(PREFIX)).price)
    return bias.family(trained) if is_checkpoint(policy, root) else None


def _identity(stage: Stage, policy: str, *, examples_hash: str) -> str:
    """16 hex digits of whatever decides an attempt, apart from the setting."""
    folder = stage.root / "models" / policy
    parts = [policy, hash_dir(folder) if folder.is_dir() else "", examples_hash]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AnalysisResult:
    """What an analysis leaves behind."""

    name: str
    data: Record
    table: list[tuple[str, ...]]
    plot: Callable[[Path], None]
    metrics: Mapping[str, float]


def report(root: Path, found: AnalysisResult) -> None:
    """Print the table; write data, table and plot; and keep them in a run of MLflow."""
    text, place = "\n".join(aligned(found.table)), root / REPORTS / found.name
    place.parent.mkdir(parents=True, exist_ok=True)
    files = [place.with_suffix(suffix) for suffix in (".json", ".txt", ".png")]
    atomic.write_text(files[0], found.data.model_dump_json(indent=1) + "\n")
    atomic.write_text(files[1], text + "\n")
    found.plot(files[2])
    _log(root, found.name, files, found.metrics)
    print(text)
    print(f"plot: {files[2].relative_to(root)}")


def _log(root: Path, name: str, files: list[Path], metrics: Mapping[str, float]) -> None:
    from mlflow.entities import Metric

    from tasks.platform.tracking import connect, experiment

    client = connect(root)
    run_id = client.create_run(experiment(client, root, EXPERIMENT), run_name=name).info.run_id
    client.log_batch(run_id, metrics=[Metric(key, value, 0, 0) for key, value in metrics.items()])
    for file in files:
        client.log_artifact(run_id, str(file))
    client.set_terminated(run_id)


def main(arguments: list[str]) -> None:
    """One analysis."""
    parser = argparse.ArgumentParser(prog="python -m tasks.experiments.analyse")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("bias")
    over = kinds.add_parser("frontier")
    over.add_argument("--policy", default=TRAINED)
    over.add_argument("--turns", type=int, action="append", default=[])
    over.add_argument("--examples", type=int)
    told, root = parser.parse_args(arguments), Path.cwd()
    if told.kind == "bias":
        made = shares_of_experts(root)
        report(root, AnalysisResult("bias", made, bias.table(made), partial(bias.plot, made), bias.metrics(made)))
        return
    tried = over_settings(root, told.policy, told.turns, told.examples)
    drawn = partial(frontier.plot, tried)
    report(root, AnalysisResult("frontier", tried, frontier.table(tried), drawn, frontier.metrics(tried)))


if __name__ == "__main__":
    run_command(main)
