"""Attempts of several policies at the same examples under several conditions; a killed analysis continues."""

import hashlib
from collections.abc import Mapping, Sequence

from orchestra.errors import DataError
from orchestra.evaluation import run as running
from orchestra.evaluation.analyses import adherence, changes
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.report import REFERENCE
from orchestra.files.checkpoint import hash_dir
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example
from tasks.analyses.sets import AnalysedSet
from tasks.evaluate import check_names, contender, data_hash, is_checkpoint, on_progress, players, rules
from tasks.platform.ledger import open_budget
from tasks.platform.stage import Stage

Found = dict[str, dict[str, list[Episode]]]
"""Episodes by condition and policy."""


def identity(stage: Stage, policies: Sequence[str], sets: Sequence[list[Example]]) -> str:
    """16 hex digits of whatever decides an attempt: policies, examples, prices of a day, limits, judge, players."""
    folders = [stage.root / "models" / policy for policy in policies]
    world, settings = stage.params.world, stage.params.evaluate
    judge = world.judge
    parts = [*policies, *(hash_dir(folder) if folder.is_dir() else "" for folder in folders)]
    parts += [data_hash(stage, examples) for examples in sets]
    parts += [] if judge is None else [judge.model_dump_json()]
    parts += [world.price_date, settings.engine, f"by rule: {settings.by_rule}"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def check_policies(stage: Stage, policies: Sequence[str]) -> None:
    """Raises `ConfigError` for a policy that does not exist, and `DataError` for a checkpoint that no run made yet."""
    named = stage.params.evaluate.model_copy(update={"policies": list(policies)})
    check_names(stage.params.model_copy(update={"evaluate": named}), stage.root)
    for name in policies:
        # A policy without a checkpoint has the tokenizer of the reference.
        folder = stage.root / "models" / (name if is_checkpoint(name, stage.root) else REFERENCE)
        if not folder.is_dir():
            fix = "orchestra run makes it; where a run works, wait for its end"
            raise DataError("no such checkpoint", where=str(folder), fix=fix)


def attempted(found: AnalysedSet, policies: Sequence[str], conditions: Mapping[str, list[Example]]) -> Found:
    """Every policy and always-strongest at the examples of each condition."""
    stage = found.stage
    params, root = stage.params, stage.root
    check_policies(stage, [*policies, REFERENCE])
    # The stage's own work folder would not do: opening it removes every folder beside it, attempts and all.
    folder = root / "work" / "analyse" / identity(stage, policies, list(conditions.values()))
    toolkit = found.with_answers(Toolkit.from_params(params, root, budget=open_budget(stage, folder)))
    price, made = toolkit.catalogue.policy_price, Found()
    with players(stage, folder) as build:
        for condition, examples in conditions.items():
            stage.say(f"{len(policies)} policies and {STRONGEST}, {condition}: {len(examples)} examples")
            contenders = [contender(name, root, price, toolkit, build) for name in policies]
            contenders += rules(stage, examples, toolkit, [STRONGEST])
            file = folder / f"{condition}.jsonl"
            made[condition] = running.evaluate(
                contenders, examples, toolkit, params.rollout, file=file, on_progress=on_progress(stage)
            )
    return made


def unseen(found: AnalysedSet, what: str, policies: Sequence[str], reference: str) -> changes.ChangeAnalysis:
    """The policies with the tools or prices that are known and with unseen ones."""
    params, seed = found.stage.params, found.stage.params.evaluate.seed
    known = [example for example in found.examples if example.experts]
    if not known:
        raise DataError("no example that offers an expert", where=found.name, fix="raise --examples")
    catalogue = Toolkit.from_params(params, found.stage.root).catalogue
    spread = params.synthesize.price_spread
    changed = [
        changes.unseen_tools(one, catalogue, seed)
        if what == "tools"
        else changes.unseen_prices(one, catalogue, spread, seed)
        for one in known
    ]
    sets = {changes.KNOWN: known, changes.UNSEEN: changed}
    played = attempted(found, with_reference(policies, reference), sets)
    return changes.ChangeAnalysis(
        what=what,
        data=found.name,
        simulated=simulated(played),
        examples=len(known),
        reference=reference,
        rows=tuple(changes.rows(played, sets, reference, params.evaluate.bootstrap, seed)),
    )


def adherent(found: AnalysedSet, policies: Sequence[str], reference: str) -> adherence.AdherenceAnalysis:
    """The policies with what users state, and with the same users silent."""
    settings = found.stage.params.evaluate
    stating = adherence.stating(found.examples)
    if not stating:
        fix = "raise --examples, or synthesize.preference_share"
        raise DataError("no example that states a preference", where=found.name, fix=fix)
    sets = {adherence.SAID: stating, adherence.SILENT: [adherence.silenced(one) for one in stating]}
    played = attempted(found, with_reference(policies, reference), sets)
    return adherence.AdherenceAnalysis(
        data=found.name,
        simulated=simulated(played),
        reference=reference,
        rows=tuple(adherence.rows(played, stating, reference, settings.bootstrap, settings.seed)),
    )


def with_reference(policies: Sequence[str], reference: str) -> list[str]:
    """The policies, and the one whose episodes are M0 of Eq. 5."""
    return list(dict.fromkeys([*policies, reference]))


def simulated(played: Found) -> bool:
    """Whether any simulated expert took part."""
    return any(one.simulated for found in played.values() for episodes in found.values() for one in episodes)
