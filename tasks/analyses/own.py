"""Analyses of this workspace's held-out examples alone: the bias of the last evaluation, and one policy's frontier."""

from pathlib import Path

from orchestra.errors import DataError
from orchestra.evaluation import run as running
from orchestra.evaluation.analyses import bias, frontier
from orchestra.evaluation.report import EVALUATION, read_comparison
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.policies.chat import PREFIX
from orchestra.tools.catalogue.catalogue import Catalogue, read_catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode
from tasks.analyses.attempts import check_policies, identity
from tasks.evaluate import contender, heldout, is_checkpoint, on_progress, players
from tasks.platform.ledger import open_budget
from tasks.platform.stage import Stage

FEW_TURNS = (1, 2, 3)
"""Turn limits that are tried besides the usual one, where none is named."""


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


def over_settings(
    root: Path, policy: str, turns: list[int], budgets: list[float], count: int | None
) -> frontier.FrontierAnalysis:
    """That policy over the first held-out examples under every setting; a killed analysis continues.

    `budgets`: dollars an episode, which the policy is told where params.yaml says so (`rollout.tell_budget`).
    """
    stage = Stage.open("analyse", root)
    params, examples = stage.params, heldout(stage)[:count]
    check_policies(stage, [policy])
    usual, seed = params.rollout.max_turns, params.evaluate.seed
    kinds = {name: frontier.given(examples, found, seed) for name, found in frontier.by_kind(examples).items()}
    folder = root / "work" / "analyse" / identity(stage, [policy], [examples, *kinds.values()])
    toolkit = Toolkit.from_params(params, root, budget=open_budget(stage, folder))
    points, simulated = [], False
    with players(stage, folder) as build:
        player = contender(policy, root, toolkit.catalogue.policy_price, toolkit, build)
        for setting in frontier.settings(turns or [*FEW_TURNS, usual], usual, list(kinds), budgets):
            asked = kinds[setting.preference] if setting.preference else examples
            changed = {} if setting.budget_usd is None else {"budget_usd": setting.budget_usd}
            limits = params.rollout.model_copy(update={"max_turns": setting.max_turns, **changed})
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
