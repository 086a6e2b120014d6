"""deploy: the registry's champion serves, by blue/green; the same for a promotion and for a rollback."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestra.errors import BudgetError, DataError, OrchestraError
from orchestra.serving.releases.deployment import Deployment, last_deployment
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, Serving, read
from orchestra.serving.releases.trial import Mode
from orchestra.serving.releases.trial_run import CandidateWorse, TrialPlan
from orchestra.system.retraining import replaced
from orchestra.system.workspace import after_run
from orchestra.types import EXACT, Record
from tasks.platform.ledger import LEDGER, open_budget
from tasks.platform.registry import CANDIDATE, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.records.releases import ReleaseRecord, record, record_drain, unless_lost


class ReleaseRequest(Record):
    """How a release is wanted."""

    kind: str = "release"
    """What a person asked for: release, rollback, switch."""
    trial: Mode | None = None
    """None: a canary where `deploy.canary.share` says so and something serves."""
    share: float | None = None
    """Share of the traffic; None: `deploy.canary.share`."""
    version: int | None = None
    """The version to try in the shadow; None: the alias `candidate`. All else serves the champion."""
    why: str = ""


def deploy(stage: Stage, decision: Any = None, request: ReleaseRequest | None = None) -> Deployment:
    """Serve the champion, whatever the gate's last decision was; `unchanged` when it does already.

    `decision` is what `promote` returned, for the message when nothing was ever promoted. A champion that did not pass
    its canary is rolled back: the one before it is champion again, and serves on. Raises `OrchestraError` when the
    release failed: what served before goes on serving. Every change is recorded in MLflow.
    """
    from tasks.evaluate import heldout
    from tasks.promote import champion

    params, root, request = stage.params, stage.root, request or ReleaseRequest()
    found = champion(stage) if request.trial != "shadow" else _shadowed(stage, request.version)
    if found is None:
        why = f" (the last decision: {decision.name})" if decision is not None else ""
        note = f"nothing serves: no version was promoted yet{why}"
        stage.say(note)
        return Deployment(note=note)
    old = read(root / SERVING)
    if old is not None:
        replaced(root, old.fingerprint)
    examples = heldout(stage)
    smoke, plan = examples[: params.deploy.smoke_examples], _plan(stage, request, examples)
    candidate = ReleaseCandidate(str(found.number), found.folder, found.checkpoint_hash)
    release = Release(root, params, candidate, smoke, stage.say, plan=plan)
    of_run = LEDGER in os.environ
    books = contextlib.nullcontext("") if of_run else TemporaryDirectory()
    releases: list[tuple[str, ReleaseRecord]] = []
    """The run in MLflow, and what it says."""
    kind, before, began = plan.mode if plan is not None else request.kind, _serving(root), time.monotonic()

    def told(outcome: str, finding: str) -> None:
        seconds, usd = round(time.monotonic() - began, 3), EXACT.subtract(budget.spent_usd, before_usd)
        figures = release.figures | {"release.smoke_usd": float(usd)}
        wanted, after = str(found.number), _serving(root)
        made = ReleaseRecord(
            kind=kind,
            before=before,
            wanted=wanted,
            after=after,
            outcome=outcome,
            why=request.why,
            finding=finding,
            seconds=seconds,
        )
        with unless_lost(stage):
            # A run of the flow keeps its own ledger.
            releases.append((record(root, made, figures, None if of_run else budget.path), made))

    try:
        with books as folder, contextlib.closing(open_budget(stage, Path(folder))) as budget:
            release.budget, before_usd = budget, budget.spent_usd
            return _served(stage, release, told, old)
    finally:
        # What serves and its record stand, whatever becomes of this wait; a rollback may begin meanwhile.
        after_run(root, partial(_retire, stage, release, releases))


def _retire(stage: Stage, release: Release, releases: Sequence[tuple[str, ReleaseRecord]]) -> None:
    """End what serves no more with its last request, and record how that went. Ctrl-C ends the wait alone."""
    try:
        release.retire()
    except KeyboardInterrupt:
        release.drain.given_up, now = True, _serving(stage.root)
        serves = f"version {now} serves" if now else "nothing serves"
        stage.say(f"{serves}; the wait for the last requests was ended: the next release ends what served before")
    for run_id, made in releases:
        whole = made.model_copy(update={"drained": release.drain.told})
        with unless_lost(stage):
            record_drain(stage.root, run_id, whole, release.drain.figures)


def _served(stage: Stage, release: Release, told: Callable[[str, str], None], old: Serving | None) -> Deployment:
    """The release as far as it serves, `told` to MLflow; `old` is what served before."""
    try:
        made = release.serve()
    except CandidateWorse as failure:
        told("rolled_back", failure.what)
        return _rolled_back(stage, failure, int(release.candidate.version))
    except OrchestraError as error:
        shown = error
        if isinstance(error, BudgetError) and LEDGER not in os.environ:
            # The ledger of a release alone goes to MLflow, and its file is gone when this is read.
            shown = BudgetError(error.what, where="budget.run_usd", fix="raise the cap to release")
        told("failed", str(shown))
        raise shown from None
    if made.outcome != "unchanged":
        told(made.outcome, made.trial)
        if (now := read(stage.root / SERVING)) is not None:
            replaced(stage.root, now.fingerprint, open_too=old is None or old.checkpoint_hash != now.checkpoint_hash)
    stage.say(f"{made.outcome}: version {made.version} at {made.url} ({made.engine})")
    for line in filter(None, (made.trial, made.note)):
        stage.say(line)
    return made


def _plan(stage: Stage, request: ReleaseRequest, examples: Any) -> TrialPlan | None:
    """What is tried first."""
    share = stage.params.deploy.canary.share if request.share is None else request.share
    if request.trial is None and (share == 0 or request.kind == "rollback" or not _serving(stage.root)):
        # A rollback is for when the champion is at fault: it must not wait for anything.
        return None
    return TrialPlan(request.trial or "canary", share or 0.1, examples)


def _shadowed(stage: Stage, number: int | None) -> ModelVersion:
    """The version to try; raises `DataError` when there is none."""
    registry = Registry(stage.root, stage.params.promote.model_name)
    found = registry.at(CANDIDATE) if number is None else registry.version(number)
    if found is None:
        what = "no version is the candidate" if number is None else f"there is no version {number}"
        raise DataError(what, where="the model registry", fix="make pipeline registers one")
    found.verified()
    return found


def _rolled_back(stage: Stage, failure: CandidateWorse, worse: int) -> Deployment:
    """The champion before is champion again, and not the version that was found `worse`; what served serves on."""
    from tasks.rollback import rollback, switch

    stage.say(f"rolled back: {failure.what}")
    last = last_deployment(stage.root) or Deployment()
    trial = f"version {worse} did not pass its canary: {failure.what}"
    if _serving(stage.root) == str(worse):
        # It was tried with other parameters than those that it serves with.
        return last.model_copy(update={"outcome": "rolled_back", "trial": trial})
    try:
        moved = rollback(stage, failure.what)
        if moved.version == worse and moved.left is not None:
            # A switch to an older version had taken the one before out of service.
            moved = switch(stage, moved.left)
        stage.say(moved.line)
    except DataError as lost:
        stage.say(f"the aliases stay: {lost}")
    return last.model_copy(update={"outcome": "rolled_back", "trial": trial})


def _serving(root: Path) -> str:
    """The version that serves; empty where none does."""
    found = read(root / SERVING)
    return "" if found is None else found.version
