"""The retrain flow: every DVC stage in order, then promote and deploy; run by `orchestra run` or a deployment."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.annotations import quote

from flows._runs import AwaitsAnswer, LoadedCode, present, retryable, turn, under_way
from flows._summary import RunSummary
from flows.answer import ask, run_answer, suspendable
from flows.release import TIMEOUT_S as RELEASE_TIMEOUT_S
from flows.release import limit_s, run_deploy, share
from flows.retraining import Asked, answering, waiting
from orchestra.cli.readiness import refuse_now
from orchestra.config.overrides import in_force
from orchestra.config.schema import load_params
from orchestra.errors import BudgetError, ConfigError
from orchestra.evaluation.report import TRAINED
from orchestra.promotion.parts import description_taken_back
from orchestra.system.environment import machine
from orchestra.system.runs import AWAITING, CAPPED, PARTIAL, SHORT, TAKEN_BACK, ZERO, RunFailure, RunJournal, in_short
from orchestra.system.workspace import Screen
from orchestra.text import plain
from tasks.approval import now
from tasks.platform import dvc
from tasks.platform.ledger import LedgerTail, booked_as, by_stage, ledgers, run_ledger
from tasks.platform.named import check_named
from tasks.platform.registry import COMMIT, DECISION, git_commit
from tasks.platform.stage import Stage
from tasks.platform.tracking import ASKED_TAG, NOTE, Recorder
from tasks.promote import answered, promote, told
from tasks.records.models import costs, link

screen = Screen()


def _say(line: str) -> None:
    """To the screen and, through Prefect's API, to the run's log in the UI."""
    screen(line)
    get_run_logger().info("%s", line)


@task(cache_policy=NONE, retries=1, retry_delay_seconds=5, retry_condition_fn=retryable)
def run_stage(name: str, recorder: Recorder, why: list[str], force: bool = False) -> Any:
    """One DVC stage: nothing when it is current, otherwise `dvc repro --single-item` under a child run of MLflow."""
    root = recorder.root
    if not why and not force:
        _say(f"{name}: unchanged")
        link(recorder, name, None)
        recorder.stage_done(name, None, dvc.hashes(root, name))
        recorder.tag(f"stage.{name}", "unchanged")
        return Completed(
            name="Unchanged", message="inputs, code and parameters are those of its last run", data="unchanged"
        )
    _say(f"{name}: running, because {'it was asked for' if force and not why else in_short(why)}")
    began = time.monotonic()
    run_id = recorder.child(name)
    _tell_commit(recorder, run_id)
    work = root / "work" / name
    if force and not recorder.tagged(f"forced.{name}"):
        # Asked to run, not to go on: what an earlier run left would make it resume. Only once: a second attempt of
        # this run goes on from where the first was killed.
        shutil.rmtree(work, ignore_errors=True)
        recorder.tag(f"forced.{name}", "true")
    try:
        with _log_file(root, name) as write:
            outcome = dvc.repro(root, name, env=recorder.environment(run_id), on_line=write, force=force)
        recorder.stage_done(name, run_id, dvc.hashes(root, name), link(recorder, name, run_id))
    except BaseException as failure:
        recorder.tag(f"stage.{name}", f"failed: {RunFailure.of(failure).line}")
        recorder.finish(run_id, RunFailure.of(failure).line)
        raise
    finally:
        recorder.artifacts(run_id, [root / ".state" / "logs" / f"{name}.log"])
    # DVC has the outputs now: the state that made up for a kill is of no more use.
    shutil.rmtree(work, ignore_errors=True)
    recorder.tag(f"stage.{name}", outcome)
    recorder.finish(run_id)
    seconds = time.monotonic() - began
    words = {"ran": "done", "restored": "restored from DVC's run cache", "unchanged": "unchanged"}[outcome]
    _say(f"{name}: {words} in {seconds:.0f} s")
    return Completed(message=f"{words} in {seconds:.0f} s", data=outcome)


def _tell_commit(recorder: Recorder, run_id: str) -> None:
    """The code that a run begins with, where git knows it."""
    if commit := git_commit(recorder.root):
        recorder.client.set_tag(run_id, COMMIT, commit)


def _tell_costs(recorder: Recorder) -> None:
    """What the run has spent so far, by stage and in all."""
    if spent := by_stage(ledgers(recorder.root, booked_as(recorder.parent))):
        recorder.metrics(recorder.parent, costs(spent))


@contextlib.contextmanager
def _log_file(root: Path, name: str) -> Iterator[Callable[[str], None]]:
    """What a stage prints goes to the UI and to `.state/logs/<stage>.log`; its own lines to the screen too."""
    file = root / ".state" / "logs" / f"{name}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    logger = get_run_logger()
    with file.open("w", encoding="utf-8") as log:

        def write(line: str) -> None:
            line = plain(line)
            log.write(line + "\n")
            log.flush()
            if line.startswith(f"{name}: "):
                screen(line)
            logger.info("%s", line)

        yield write


@task(cache_policy=NONE, timeout_seconds=RELEASE_TIMEOUT_S)
def run_promote(root: Path, parent: str, flow_run: str) -> Any:
    """The gate's decision; a refusal is a normal ending with a name."""
    decision = promote(Stage.open("promote", root), parent, flow_run)
    why = "" if decision.promoted or decision.waits else f": {decision.why}"
    _say(f"promote: version {decision.version} {decision.name.lower()}{why}")
    return Completed(name=decision.name, message=decision.why, data=decision)


@flow(name="retrain")
def retrain(
    until: str | None = None,
    force: list[str] | None = None,
    overrides: list[str] | None = None,
    asked: Asked = "",
) -> State[Any]:
    """Run what is stale, promote what passes the gate, serve the champion. The working directory is the workspace.

    `overrides` (section.key=value) hold in params.yaml for this run only. `asked`: for what drift, prices or data ask
    for; where none is due, nothing happens.
    """
    root = Path.cwd()
    if asked and (why_not := _waiting(root, asked)):
        _say(f"retrain: nothing to do: {why_not}")
        return Completed(name="Waiting", message=why_not)
    with turn(root) as skipped:
        return skipped or _retrain(root, until, set(force or []), overrides or [], asked)


def _retrain(root: Path, until: str | None, force: set[str], overrides: list[str], asked: Asked) -> State[Any]:
    """The flow, with the workspace's lock."""
    with (
        under_way(root, alone=True) as journal,
        answering(root, journal, asked) as caps,
        in_force(root, [*overrides, *caps]) as changed,
    ):
        for line in changed:
            _say(f"retrain: for this run, {line}")
        if asked:
            _say(f"retrain: asked for by {journal.record.asked_by}")
        return _recorded(root, journal, until, force)


def _waiting(root: Path, asked: Asked) -> str:
    """Why nothing is to be done for what asks; empty otherwise."""
    run, _ = present()
    return waiting(root, asked, own=str(run.id), again=run.run_count > 1)


def _recorded(root: Path, journal: RunJournal, until: str | None, force: set[str]) -> State[Any]:
    """The run under its MLflow record, which tells how it ended."""
    recorder = Recorder.open(root, journal.record.id, journal.record.name)
    journal.update(mlflow_run=recorder.parent)
    recorder.tag("machine", machine())
    _tell_commit(recorder, recorder.parent)
    if journal.record.asked_by:
        recorder.tag(ASKED_TAG, journal.record.asked_by)
    try:
        with run_ledger(root, recorder.parent):
            state = _run_all(root, recorder, journal, until, force)
    except (dvc.StageCapped, BudgetError) as end:
        state = Completed(name=CAPPED, message=str(end), data=str(end))
    except AwaitsAnswer:
        recorder.finish(recorder.parent)
        raise
    except BaseException as failure:
        recorder.finish(recorder.parent, RunFailure.of(failure).line)
        raise
    finally:
        identity = [root / name for name in ("dvc.lock", "dvc.yaml", "params.yaml")]
        recorder.artifacts(recorder.parent, [*identity, *ledgers(root, booked_as(recorder.parent))])
        _tell_costs(recorder)
    recorder.finish(recorder.parent)
    if state.name not in SHORT:
        share(root, journal)
    journal.end(str(state.name), state.message or "")
    return state


def _with_answer(root: Path, decision: Any) -> Any:
    """The decision with a person's answer, for which this run suspends; as it is where it cannot."""
    said = ask(decision.approval, told(decision), now())
    if said is None:
        return decision
    done: Any = run_answer.with_options(name="answer")(root, decision.version, said.model_dump())
    return answered(decision, done)


def _run_all(root: Path, recorder: Recorder, journal: RunJournal, until: str | None, force: set[str]) -> State[Any]:
    """The body of the flow, under the lock and a record."""
    code = LoadedCode()
    params = load_params(root / "params.yaml")
    check_named(params, root, promotes=until is None)
    limited = run_stage.with_options(timeout_seconds=3600 * params.budget.stage_hours)
    dvc.recover(root)
    why = dvc.stages(root)
    order = list(why)
    for name in {*force, *([until] if until else [])}:
        if name not in why:
            raise ConfigError(f"no stage {name}", where="dvc.yaml", fix=f"one of: {', '.join(order)}")
    until_then = order if until is None else order[: order.index(until) + 1]
    if late := [one for one in order if one in force and one not in until_then]:
        fix = f"orchestra run --force {late[-1]} --until {late[-1]}"
        raise ConfigError(f"{late[-1]} comes after {until}, where this run ends", where="--until", fix=fix)
    refuse_now(root, params, [one for one in until_then if why[one] or one in force])
    outcomes: dict[str, str] = {}
    booked = LedgerTail(root, booked_as(recorder.parent))
    booked.take()
    # Prefect must neither look into the recorder's database connection nor store it.
    opaque: Any = quote(recorder)
    for name in order:
        # A retried flow run forces only what it has not run yet.
        forced = name in force and recorder.tagged(f"stage.{name}") not in {"ran", "restored"}
        code.check()
        with journal.stage(name, tuple(why[name])) as note:
            ended = limited.with_options(name=name)(name, opaque, why[name], forced, return_state=True)
            outcomes[name] = ended.result()
            note(outcomes[name], booked.take() if outcomes[name] == "ran" else ZERO)
        if outcomes[name] != "unchanged":
            why = dvc.stages(root)
            _tell_costs(recorder)
        if name == until:
            return Completed(name=PARTIAL, message=f"as asked, after {name}", data=outcomes)
    code.check()
    with journal.stage("promote") as note:
        judged = run_promote.with_options(name="promote")(root, recorder.parent, suspendable(), return_state=True)
        decision: Any = judged.result()
        note(f"version {decision.version} {decision.name.lower()}", booked.take())
    # Now, too: whoever is asked decides by it, and a run that is suspended or whose release fails comes no further.
    headline = partial(recorder.headline, params.model_dump(mode="json", by_alias=True), policy=TRAINED)
    headline(f"version {decision.version} {decision.name.lower()}")
    if decision.waits:
        decision = _with_answer(root, decision)
    code.check(fix="orchestra release serves the champion")
    with journal.stage("deploy") as note:
        reason = {"why": f"run {journal.record.name}: version {decision.version} {decision.name.lower()}"}
        release = run_deploy.with_options(name="deploy", timeout_seconds=limit_s(root))
        deployment: Any = release(root, decision, reason)
        note(f"version {deployment.version} {deployment.outcome}", booked.take())
    verdict, taken_back = decision.name.lower(), deployment.outcome == "rolled_back"
    if taken_back and decision.promoted:
        verdict = "rolled back"
        recorder.tag(DECISION, TAKEN_BACK)
        recorder.tag(NOTE, description_taken_back(recorder.tagged(NOTE), deployment.trial))
    headline(f"version {decision.version} {verdict}")
    if decision.name == "Unchanged" and set(outcomes.values()) == {"unchanged"}:
        recorder.nothing_done()
    summary = RunSummary.of(root, outcomes, decision, deployment, recorder.parent)
    summary.save(root)
    screen(summary.text(root))
    if taken_back:
        return Completed(name=TAKEN_BACK, message=deployment.trial, data=outcomes)
    if not decision.promoted:
        return Completed(name=AWAITING if decision.waits else decision.name, message=decision.why, data=outcomes)
    return Completed(message=f"version {deployment.version} serves at {deployment.url}", data=outcomes)
