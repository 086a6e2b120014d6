"""The answer flow: a person approves or refuses a waiting version; an approved version serves.

Prefect suspends only runs of deployments: such a run takes the answer of a form in Prefect's UI. Any other run ends,
and `orchestra approve` is the answer.
"""

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NONE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, Pause
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.states import Completed
from pydantic import Field

from flows._runs import AwaitsAnswer, present, under_way
from flows._summary import RunSummary
from flows.release import TIMEOUT_S, limit_s, run_deploy, share
from orchestra.errors import ConfigError
from orchestra.promotion.approval import Answer, Approval
from orchestra.system.runs import TAKEN_BACK
from orchestra.system.workspace import Screen
from orchestra.text import in_markdown
from tasks.platform.stage import Stage

screen = Screen()


class ApprovalForm(RunInput):
    """What Prefect's UI asks for."""

    approve: bool = Field(description="Let this version serve.")
    by: str = Field(min_length=1, max_length=200, description="Your name, recorded.")
    reason: str = Field(default="", max_length=1000, description="Why, recorded.")


def suspendable() -> str:
    """The id of the present flow run where Prefect can suspend it; empty where it cannot."""
    run, _ = present()
    return "" if run.deployment_id is None else str(run.id)


def ask(approval: Approval, told: str, now: datetime) -> Answer | None:
    """Suspend this run until a person answers; begun again after that, it gets the answer. None: it cannot wait.

    `told` is the decision in Markdown. Raises `AwaitsAnswer`, which ends this process' part of the run.
    """
    text = f"{told}\n\n{in_markdown(approval.line)}"
    screen(f"promote: {approval.line}")
    create_markdown_artifact(text, key="decision", description=f"version {approval.version} waits for approval")
    if approval.run != str(present()[0].id):
        return None
    left_s = max(1, int((approval.expires - now).total_seconds()))
    form = ApprovalForm.with_initial_data(description=text)
    key = f"approval-{approval.version}-{approval.asked:%Y%m%d%H%M%S}"  # Lower case, digits and dashes only.
    try:
        said: Any = suspend_flow_run(wait_for_input=form, timeout=left_s, key=key)
    except Pause as pause:
        raise AwaitsAnswer(state=pause.state) from None
    return Answer(approve=said.approve, by=said.by, reason=said.reason)


def settle(approval: Approval, name: str) -> bool:
    """End the run that is suspended until an answer, which was given elsewhere; whether there was one."""
    if not approval.run:
        return False
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(approval.run))
        except ObjectNotFound:
            return False  # It was deleted, or belongs to another server.
        if run.state is None or not run.state.is_paused():
            return False
        client.set_flow_run_state(run.id, Completed(name=name, message=approval.line), force=True)
    return True


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_answer(root: Path, version: int | None, said: dict[str, Any]) -> Any:
    """Records the answer, and moves the aliases; `said`: the fields of `Answer`."""
    from tasks.approval import answer

    return answer(Stage.open("promote", root), version, Answer.model_validate(said))


@flow(name="answer")
def answer(by: str, approve: bool = True, version: int | None = None, reason: str = "") -> State[Any]:
    """Approve or refuse a version that waits for a person; safe to run again. No version: the one that waits.

    A refusal is a normal ending with a name, as the gate's is, and so is a canary that takes the version back.
    """
    from tasks.approval import check_asked, taken_back
    from tasks.records.releases import unless_lost

    root = Path.cwd()
    if not 0 < len(by.strip()) <= 200 or len(reason) > 1000:
        what = "a name has 1 to 200 characters, and a reason at most 1000"
        raise ConfigError(what, where="--by and --reason", fix="give a name, and shorten both")
    check_asked(Stage.open("promote", root), version)  # A wrong number is no run that failed.
    with under_way(root, alone=True) as journal:
        with journal.stage("answer") as note:
            said = {"approve": approve, "by": by.strip(), "reason": reason.strip()}
            done: Any = run_answer.with_options(name="answer")(root, version, said)
            approval, name, line = done.approval, done.name, done.approval.line
            note(f"version {approval.version} {approval.state}")
        screen(f"answer: version {approval.version}: {approval.line}")
        settle(approval, name)
        RunSummary.answer(root, approval)
        if name == "Promoted":
            with journal.stage("deploy") as note:
                request = {"why": f"version {approval.version}: {approval.line}"}
                made: Any = run_deploy.with_options(name="deploy", timeout_seconds=limit_s(root))(root, None, request)
                note(f"version {made.version} {made.outcome}")
            screen(f"answer: version {made.version} serves at {made.url} ({made.engine})")
            if made.outcome == "rolled_back":
                name, line = TAKEN_BACK, made.trial
                RunSummary.answer(root, approval, made.trial)
                stage = Stage.open("promote", root)
                with unless_lost(stage):
                    taken_back(stage, approval, made.trial)
        share(root, journal)
        journal.end(name, f"version {approval.version}: {line}")
    return Completed(name=name, message=line, data=approval.version)
