"""Judges a candidate: chooses the model to compare with, and adds the registry's facts to the gate's decision."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from orchestra.config.schema import Params
from orchestra.errors import ConfigError, ServiceError
from orchestra.evaluation import run as running
from orchestra.evaluation.baselines.base import BASELINES, ORACLE, STRONGEST
from orchestra.evaluation.report import REFERENCE, Comparison, label
from orchestra.evaluation.statistics import summarise
from orchestra.files.checkpoint import hash_dir
from orchestra.promotion.evidence import Evidence, Results, UtilityScale, evidence, results, utilities
from orchestra.promotion.gate import MAX_FAILED_SHARE, Decision, GateCheck, Incumbent, gate
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Record
from tasks.evaluate import checkpoint, data_hash, heldout, on_progress, players
from tasks.platform.evidence import EVIDENCE, keep, kept, read
from tasks.platform.ledger import open_budget
from tasks.platform.registry import CHAMPION, PREVIOUS, STORE, ModelVersion, Registry
from tasks.platform.stage import Stage


class Judgement(Record):
    """A decision about a candidate, before anything moved."""

    decision: Decision
    candidate: ModelVersion
    champion: tuple[str, Evidence] | None = None
    """The champion that it was compared with, by its name for people."""


def check_as_served(params: Params) -> None:
    """Raises `ConfigError` where checkpoints were measured otherwise than they serve: their figures decide nothing."""
    if params.evaluate.by_rule:
        what = "a rule overwrites the choices of checkpoints, and none does where they serve"
        raise ConfigError(what, where="evaluate.by_rule", fix="set it to false, or orchestra run --until evaluate")


def interrupted(file: Path) -> Judgement | None:
    """The judgement of a run that was killed after the aliases moved; None where there is none that can be read."""
    with contextlib.suppress(FileNotFoundError, ValidationError):
        return Judgement.model_validate_json(file.read_text(encoding="utf-8"))
    return None


def judge(
    stage: Stage,
    registry: Registry,
    found: Evidence,
    candidate: ModelVersion,
    comparison: Comparison,
    episodes: Mapping[str, Sequence[Episode]],
    worth: UtilityScale | None = None,
) -> Judgement:
    """The gate, with what only the registry knows: who is champion, whether it is lost, and who was rolled back."""
    thresholds, champion = stage.params.promote, registry.at(CHAMPION)
    rules = {name: results(episodes[name], worth) for name in comparison.policies if _is_rule(name)}
    if champion is not None and champion.number == candidate.number:
        decision = gate(found, thresholds, None, rules)
        decision = _with(decision, "champion", "this checkpoint is the champion already", passed=True)
        return Judgement(decision=decision, candidate=candidate)
    against: tuple[str, Evidence] | None = None
    if champion is None:
        decision = _first(found, comparison, episodes, stage, rules, worth)
    else:
        lost = registry.fetch(champion).lost
        best = _champion_evidence(stage, registry, champion, lost, found, worth)
        name = f"the champion (version {champion.number})"
        against = None if best is None or not best.results else (name, best)
        decision = gate(found, thresholds, None if best is None else Incumbent(name=name, evidence=best), rules)
        if lost:
            why = f"WARNING: version {champion.number} is champion, but {lost}"
            if best is None or best.data_hash != found.data_hash:
                why += f", and it left no record to compare with: {way_out(registry, champion)}"
            stage.say(why)
            decision = _with(decision, "champion", why, passed=best is not None and best.data_hash == found.data_hash)
    if candidate.taken_out:
        why = f"{candidate.taken_out}: `orchestra release --to {candidate.number}` is the way back"
        decision = _with(decision, "rolled back", why, passed=False)
    return Judgement(decision=decision, candidate=candidate, champion=against)


def _first(
    found: Evidence,
    comparison: Comparison,
    episodes: Mapping[str, Sequence[Episode]],
    stage: Stage,
    rules: Mapping[str, Results],
    worth: UtilityScale | None,
) -> Decision:
    """The rule of the first champion: floors, and better than the SFT model that it was trained from."""
    thresholds = stage.params.promote
    if REFERENCE not in comparison.policies:
        decision = gate(found, thresholds, None, rules)
        why = f"there is no champion, and no {label(REFERENCE)} was evaluated (evaluate.policies): floors alone decide"
        return _with(decision, "champion", why, passed=True)
    reference = evidence(comparison, REFERENCE, episodes.get(REFERENCE, ()), worth=worth)
    before = Incumbent(name=f"the {label(REFERENCE)}", evidence=reference)
    decision = gate(found, thresholds, before, rules)
    return _with(decision, "champion", f"there is no champion: {before.name} stands for it", passed=True)


def _is_rule(name: str) -> bool:
    """Whether a policy is a rule that could serve; the oracle could not."""
    return name != ORACLE and name.split("@")[0] in BASELINES


def _champion_evidence(
    stage: Stage, registry: Registry, champion: ModelVersion, lost: str, found: Evidence, worth: UtilityScale | None
) -> Evidence | None:
    """What the champion reaches on the data and at the prices of `found`: remembered, or measured now.

    Of a lost one, what was recorded when it was promoted, on whatever data; None when that cannot be read either.
    """
    known = kept(stage.root, registry.client, champion, found.data_hash)
    if known is not None and worth is not None:
        known = worth.again(known)
    by_utility = stage.params.promote.objective == "utility" and worth is not None
    lacking = known is not None and by_utility and not utilities(known.results)
    priced = known is not None and known.price_date == found.price_date
    if lost or (priced and not lacking):
        return known or read(champion.tags.get(EVIDENCE, ""))
    why = "without utility" if lacking else "on other data" if known is None else "at other prices"
    stage.say(f"the champion (version {champion.number}) was measured {why}: measuring it again")
    measured = measure(stage, champion.verified(), CHAMPION, worth)
    keep(stage.root, measured, registry.client, None)
    return measured


def measure(stage: Stage, folder: Path, name: str, worth: UtilityScale | None = None) -> Evidence:
    """What a checkpoint reaches on the present held-out examples; a killed run continues.

    Raises `ServiceError` where infrastructure lost too much: that says nothing of it, and is not kept.
    """
    params = stage.params
    examples = heldout(stage)
    digest, present = hash_dir(folder), data_hash(stage, examples)
    of = f"{digest[:16]}-{present[:16]}-{params.world.price_date}"
    file = stage.root / "work" / "promote" / of / "episodes.jsonl"
    toolkit = Toolkit.from_params(params, stage.root, budget=open_budget(stage, file.parent))
    with players(stage, file.parent) as build:
        contender = checkpoint(name, folder, toolkit.catalogue.policy_price, build)
        episodes = running.evaluate(
            [contender], examples, toolkit, params.rollout, file=file, on_progress=on_progress(stage)
        )
    lost = sum(not one.counted for one in episodes[name])
    if lost > MAX_FAILED_SHARE * len(examples):
        file.unlink()
        what = f"infrastructure failed in {lost} of its {len(examples)} episodes"
        raise ServiceError(what, where=name, fix="see that tools and experts answer, then orchestra run again")
    settings = params.evaluate
    summaries = summarise(
        episodes, examples, reference=REFERENCE, strongest=STRONGEST, bootstrap=settings.bootstrap, seed=settings.seed
    )
    comparison = Comparison(
        simulated=summaries[name].simulated,
        examples=len(examples),
        data_hash=present,
        price_date=params.world.price_date,
        bootstrap=settings.bootstrap,
        seed=settings.seed,
        checkpoints={name: digest},
        policies=summaries,
    )
    return evidence(comparison, name, episodes[name], worth=worth)


def way_out(registry: Registry, lost: ModelVersion) -> str:
    """What a person can do about a champion that is lost."""
    previous = registry.at(PREVIOUS)
    fix = f"bring {STORE}/{lost.checkpoint_hash} back from a backup"
    if previous is not None and previous.number != lost.number and not previous.lost:
        return f"{fix}, or `orchestra release --to {previous.number}`"
    return f"{fix}, or delete the alias {CHAMPION} in MLflow, so that the rule of the first champion holds"


def _with(decision: Decision, name: str, reason: str, *, passed: bool) -> Decision:
    """The decision with one more line, in the place of a line of that name."""
    kept = [check for check in decision.reasons if check.name != name]
    line = GateCheck(name=name, measured=None, bar=None, passed=passed, reason=reason, note=passed)
    return decision.model_copy(update={"promoted": decision.promoted and passed, "reasons": (*kept, line)})
