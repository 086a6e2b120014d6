"""promote: registers the trained checkpoint, lets the gate judge it, and moves the aliases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import RootModel

from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.benchmarks.report import results
from orchestra.evaluation.report import EVALUATION, SAFETY, TRAINED, Comparison, read_comparison
from orchestra.evaluation.safety import Safety, read_safety
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir, hash_file, verify_manifest
from orchestra.files.jsonl import read_jsonl
from orchestra.promotion.approval import request
from orchestra.promotion.evidence import Evidence, evidence, worth
from orchestra.promotion.gate import Decision
from orchestra.promotion.page import PageSubject, mark, markdown, page, sentence, summary
from orchestra.promotion.parts import is_about
from orchestra.system.workspace import git_refusal
from orchestra.text import in_markdown
from orchestra.types import Episode
from tasks import approval
from tasks.evaluate import data_hash, heldout
from tasks.judge import Judgement, check_as_served, interrupted, judge, way_out
from tasks.platform.evidence import EVIDENCE, judgement_file, keep, keep_reference
from tasks.platform.lineage import history, of_version
from tasks.platform.pages import ARTIFACT, PAGE, PAGES, benchmarks, title_of
from tasks.platform.registry import CANDIDATE, CHAMPION, DECIDED, DECISION, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import NOTE, said
from tasks.records.models import Training, link_version, training
from tasks.rollback import take_over

CHECKPOINT = f"models/{TRAINED}"
REPORTS = EVALUATION
STEPS = "reports/grpo_steps.jsonl"
"""The training's log, which the decision page draws."""


class TrainingStep(RootModel[dict[str, Any]]):
    """One line of it."""


class Promotion(Decision):
    """The gate's decision and what it changed in the registry."""

    version: int
    """The registered version that was judged."""
    champion: int | None
    """The version that serves after the decision; None when there is none yet."""
    changed: bool
    """Whether the champion is another than before."""
    page: Path
    """The decision page."""

    @property
    def decided(self) -> bool:
        """Whether something was decided about the version; nothing is about the one that serves already."""
        return self.changed or self.champion != self.version

    @property
    def name(self) -> str:
        return "Unchanged" if self.promoted and not self.changed else super().name


def promote(stage: Stage, parent_run_id: str | None = None, flow_run: str = "") -> Promotion:
    """Judge the trained checkpoint with the last evaluation; champion and previous move only when every check passes.

    With `promote.approval: required` a person is asked first; `flow_run` is the run that can wait for the answer. Safe
    to run again at any time: the same checkpoint makes no second version, and a run that was killed midway is
    completed. Raises `DataError` when the checkpoint, its manifest and the evaluation do not belong together, and
    `ConfigError` when the evaluation is of something else than what serves.
    """
    check_as_served(stage.params)
    folder, model_name = stage.root / CHECKPOINT, stage.params.promote.model_name
    comparison = read_comparison(stage.root / REPORTS / "comparison.json")
    episodes = _episodes(stage.root / REPORTS / "episodes.jsonl")
    safety = read_safety(stage.root / REPORTS / SAFETY)
    steps = _steps(stage.root / STEPS)
    results(stage.root)  # The page shows them: a damaged one ends this before anything moves.
    _belong_together(stage, folder, comparison)
    examples = {example.id: example for example in heldout(stage)}
    of = worth(examples, episodes.get(STRONGEST, ()))
    failed = None if safety is None else len(safety.failed)
    found = evidence(comparison, TRAINED, episodes.get(TRAINED, ()), failed, of)
    registry = Registry(stage.root, model_name)
    tags = _tags(stage, folder, training(registry, found.checkpoint_hash)) | _evidence_tags(found)
    candidate = registry.add(folder, found.checkpoint_hash, tags, parent_run_id)
    link_version(registry, candidate, TRAINED)
    if not candidate.tags.get("git_commit"):
        refused = git_refusal(stage.root)
        why = "no run on record of its training names one" if refused is None else "git: {} — {}".format(*refused)
        stage.say(f"version {candidate.number} names no commit: {why}")
    _measured(registry, candidate, found)
    registry.point(CANDIDATE, candidate)
    keep(stage.root, found, registry.client, parent_run_id)
    played = episodes.get(TRAINED, ())
    keep_reference(stage.root, found.checkpoint_hash, examples, played, registry.client, parent_run_id)
    champion = registry.at(CHAMPION)
    serves, file = champion is not None and champion.number == candidate.number, judgement_file(stage.root, found)
    untold = interrupted(file) if serves else None
    judged = untold or judge(stage, registry, found, candidate, comparison, episodes, of)
    decision = judged.decision
    if serves:
        approval.complete(registry, candidate.number)
    elif decision.promoted and stage.params.promote.approval == "required":
        before = None if champion is None else champion.number
        asked = request(candidate.number, before, found.data_hash, approval.now(), stage.params.promote.approval_hours)
        runs = {"run": flow_run, "mlflow_run": parent_run_id or ""}
        decision = decision.answered(approval.standing(registry, candidate, asked.model_copy(update=runs)))
    else:
        approval.withdraw(registry, candidate)
    if decision.promoted and not serves:
        # Once the alias has moved, a repetition has no champion to compare with.
        atomic.write_text(file, judged.model_copy(update={"decision": decision}).model_dump_json())
    changed = (decision.promoted and take_over(registry, candidate)) or untold is not None
    serving = candidate if decision.promoted else champion
    promotion = Promotion(
        promoted=decision.promoted,
        reasons=decision.reasons,
        equal_cost=decision.equal_cost,
        approval=decision.approval,
        version=candidate.number,
        champion=None if serving is None else serving.number,
        changed=changed,
        page=stage.root / PAGE,
    )
    if promotion.decided:
        told = {DECISION: decision.name, DECIDED: parent_run_id or "", "simulated": str(comparison.simulated).lower()}
        registry.tag(candidate, told)
    subject = _subject(stage, promotion, comparison, episodes, judged, registry, safety, steps)
    _publish(stage, subject, promotion, registry, parent_run_id)
    file.unlink(missing_ok=True)
    return promotion


def answered(promotion: Promotion, done: approval.Answered) -> Promotion:
    """The decision of a version that waited, with the answer."""
    approved = done.approval.state == "approved"
    serving = {"champion": promotion.version} if approved else {}
    return promotion.model_copy(
        update={"approval": done.approval, "promoted": approved, "changed": done.changed, **serving}
    )


def told(decision: Decision) -> str:
    """The decision in Markdown, a line a check, and where the page is."""
    checks = [f"- {mark(check)} {in_markdown(f'{check.name}: {check.reason}')}" for check in decision.reasons]
    page_of = f"The decision page: {PAGE} (`orchestra report`), in MLflow the run's artifact `{ARTIFACT}`."
    return "\n".join([f"**{in_markdown(sentence(decision))}**", "", *checks, "", page_of])


def champion(stage: Stage) -> ModelVersion | None:
    """What serves: the champion, its kept checkpoint verified; None before the first promotion.

    Raises `DataError` when the checkpoint is lost or damaged.
    """
    registry = Registry(stage.root, stage.params.promote.model_name)
    found = registry.at(CHAMPION)
    if found is not None and registry.fetch(found).lost:
        what = f"the champion (version {found.number}) cannot serve: {found.lost}"
        raise DataError(what, where=str(found.folder), fix=way_out(registry, found))
    return found


def _belong_together(stage: Stage, folder: Path, comparison: Comparison) -> None:
    """The evaluation must be of this checkpoint, unharmed, on the present held-out examples."""
    verify_manifest(folder)
    where = str(Path(REPORTS) / "comparison.json")
    if comparison.checkpoints.get(TRAINED) != hash_dir(folder):
        raise DataError(f"not of the checkpoint in {CHECKPOINT}", where=where, fix="run the evaluate stage again")
    if comparison.data_hash != data_hash(stage, heldout(stage)):
        raise DataError("not on the present held-out data, tools or code", where=where, fix="run evaluate again")


def _episodes(file: Path) -> dict[str, list[Episode]]:
    """The evaluation's episodes by policy."""
    found: dict[str, list[Episode]] = {}
    for episode in read_jsonl(file, Episode, fix="run the evaluate stage again"):
        found.setdefault(episode.policy, []).append(episode)
    return found


def _steps(file: Path) -> list[dict[str, Any]]:
    """The training's steps, read before anything moves; none where there is no log."""
    return (
        [one.root for one in read_jsonl(file, TrainingStep, fix="run the grpo stage again")] if file.is_file() else []
    )


def _tags(stage: Stage, folder: Path, trained: Training) -> dict[str, str]:
    """What a version says of itself, for people and for searches."""
    manifest = verify_manifest(folder)
    return {
        "data_hash": manifest.data_hash,
        "price_date": manifest.price_date,
        "git_commit": manifest.git_commit or trained.git_commit,
        "profile": stage.params.profile,
        "base": manifest.base or "random weights",
    }


def _measured(registry: Registry, version: ModelVersion, found: Evidence) -> None:
    """Tag a version with its last evaluation, and with nothing of one before."""
    tags = _evidence_tags(found)
    for key in version.tags:
        if key.startswith("metric.") and key not in tags:
            registry.untag(version, key)
    registry.tag(version, tags)


def _evidence_tags(found: Evidence) -> dict[str, str]:
    metrics = {f"metric.{name}": f"{value:.6g}" for name, value in found.metrics.items() if value is not None}
    return {"heldout_hash": found.data_hash, **metrics, EVIDENCE: found.brief.model_dump_json()}


def _publish(stage: Stage, subject: PageSubject, promotion: Promotion, registry: Registry, run_id: str | None) -> None:
    """Write the decision page, and put it with tags, numbers and a description on the flow's MLflow run.

    A run that decided nothing leaves the version's page and description as they are: they are about the last real
    decision. Where the version that serves misses a limit, only that run and `reports/` tell of it.
    """
    kept, last = stage.root / PAGES / f"{promotion.version}.html", stage.root / PAGE
    unchanged = promotion.name == "Unchanged"
    text = kept.read_text(encoding="utf-8") if unchanged and kept.is_file() else page(subject)
    if promotion.decided or (unchanged and not kept.is_file()):
        atomic.write_text(kept, text)
        registry.describe(promotion.version, markdown(subject))
    if not unchanged or not last.is_file() or is_about(last.read_text(encoding="utf-8"), subject.title):
        stage.write_text(PAGE, text)
    if run_id is None:
        return
    client, reports = registry.client, stage.root / REPORTS
    client.log_text(run_id, text, ARTIFACT)
    client.log_artifact(run_id, str(reports / "comparison.json"), "decision")
    tags = {
        DECISION: promotion.name,
        "decision.reasons": said(summary(promotion)),
        "model.version": str(promotion.version),
        "model.champion": str(promotion.champion or ""),
        "model.checkpoint_hash": subject.comparison.checkpoints.get(TRAINED, ""),
        NOTE: markdown(subject),
    }
    for key, value in tags.items():
        client.set_tag(run_id, key, value)


def _subject(
    stage: Stage,
    promotion: Promotion,
    comparison: Comparison,
    episodes: Mapping[str, Sequence[Episode]],
    judged: Judgement,
    registry: Registry,
    safety: Safety | None,
    steps: Sequence[Mapping[str, Any]],
) -> PageSubject:
    """What the decision page is about."""
    version, serving = registry.version(promotion.version) or judged.candidate, registry.at(CHAMPION)
    spent, simulated = training(registry, version.checkpoint_hash).spent, comparison.simulated
    facts = {
        "model": title_of(registry, promotion.version),
        "champion at the decision": "nothing"
        if serving is None
        else f"version {serving.number} ({serving.checkpoint_hash})",
        "checkpoint": version.checkpoint_hash,
        "training data": version.tags.get("data_hash", ""),
        "held-out data, tools and code": comparison.data_hash,
        "episodes": hash_file(stage.root / REPORTS / "episodes.jsonl"),
        "prices of": comparison.price_date,
        "git commit": version.tags.get("git_commit", "") or "none",
        "spent by the run that trained it": (f"{spent}, simulated experts" if simulated else spent)
        if spent
        else "not known",
        "flow run": version.decided_in or "none",
        "thresholds": ", ".join(f"{key} {value}" for key, value in stage.params.promote.model_dump().items()),
    }
    return PageSubject(
        title=title_of(registry, promotion.version),
        decision=promotion,
        limits=stage.params.promote,
        comparison=comparison,
        episodes=episodes,
        examples={example.id: example for example in heldout(stage)},
        champion=judged.champion,
        safety=safety,
        steps=steps,
        lineage=of_version(version, promotion.name if promotion.decided else ""),
        history=history(registry),
        benchmarks=benchmarks(registry),
        facts=facts,
    )
