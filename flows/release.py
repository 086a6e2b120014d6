"""The release flow: serve the champion again, another version, or the one before it, in one command."""

import math
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NONE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._runs import retryable, turn, under_way
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError
from orchestra.statistics.sequential import FEWEST
from orchestra.system.runs import TAKEN_BACK, RunJournal
from orchestra.system.workspace import Screen
from tasks.deploy import ReleaseRequest, deploy
from tasks.platform.stage import Stage
from tasks.records.shared import push
from tasks.rollback import promoted, switch
from tasks.rollback import rollback as roll_back

TIMEOUT_S = 1800
PUSH_TIMEOUT_S = 6 * 3600

screen = Screen()


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_move(root: Path, to: int | None) -> str:
    """That version is champion, or the one before the champion; returns what changed, for a person."""
    stage = Stage.open("promote", root)
    return (roll_back(stage) if to is None else switch(stage, to)).line


@task(cache_policy=NONE, timeout_seconds=TIMEOUT_S)
def run_deploy(root: Path, decision: Any = None, request: dict[str, Any] | None = None) -> Any:
    """Serve the champion; the old server leaves only when the new one answers. `request`: of `ReleaseRequest`.

    The wait for the old server's last requests comes after the flow's last step, without the workspace's lock.
    """
    return deploy(Stage.open("deploy", root), decision, ReleaseRequest.model_validate(request or {}))


@task(
    cache_policy=NONE,
    retries=3,
    retry_delay_seconds=[10, 60, 300],
    retry_condition_fn=retryable,
    timeout_seconds=PUSH_TIMEOUT_S,
)
def run_push(root: Path) -> str:
    """Outputs, checkpoints and the registry are in the store; what is there already is not sent again."""
    return push(root, load_params(root / "params.yaml").storage)


def share(root: Path, journal: RunJournal) -> None:
    """Push, if params.yaml names a store."""
    if load_params(root / "params.yaml").storage.shared:
        with journal.stage("push") as note:
            told: Any = run_push.with_options(name="push")(root)
            note("pushed")
        screen(f"push: {told}")


def limit_s(root: Path) -> float:
    """Seconds that a release may take until it serves, its trial included."""
    deploy = load_params(root / "params.yaml").deploy
    # The smoke set in process and by the server, the question to the gateway, and the fewest probes of a canary.
    rounds = 3 + math.ceil(FEWEST / deploy.canary.probes_at_once)
    return TIMEOUT_S + deploy.start_timeout_s + rounds * deploy.gateway.request_s + 60 * deploy.canary.minutes


def check(rollback: bool, to: int | None, canary: float | None, shadow: float | None) -> None:
    """Raises `ConfigError` for options that exclude each other, and for a share that is none."""
    if rollback and to is not None:
        raise ConfigError("--rollback and --to exclude each other", where="release", fix="leave one out")
    if sum((rollback, canary is not None, shadow is not None)) > 1:
        what = "--rollback, --canary and --shadow exclude each other"
        raise ConfigError(what, where="release", fix="keep only one of them")
    for name, percent in (("--canary", canary), ("--shadow", shadow)):
        if percent is not None and not 0 < percent <= (50 if name == "--canary" else 100):
            most = "50" if name == "--canary" else "100"
            raise ConfigError(
                f"{percent:g} is not a valid percentage",
                where=name,
                fix=f"give a percentage above 0 and at most {most}",
            )


@flow(name="release")
def release(
    rollback: bool = False,
    to: int | None = None,
    canary: float | None = None,
    shadow: float | None = None,
    why: str = "",
) -> State[Any]:
    """Serve the registry's champion, after a rollback or a switch if asked for; safe to run again.

    `canary` and `shadow` are percent of the traffic.
    """
    root = Path.cwd()
    check(rollback, to, canary, shadow)
    if to is not None and shadow is None:
        promoted(Stage.open("promote", root), to)  # A wrong number is no run that failed.
    request: dict[str, Any] = {"kind": "rollback" if rollback else "release" if to is None else "switch", "why": why}
    if canary is not None or shadow is not None:
        request |= {"trial": "canary" if shadow is None else "shadow", "share": (canary or shadow or 0.0) / 100}
    if shadow is not None:
        request |= {"kind": "shadow", "version": to}
    with turn(root) as skipped:
        return skipped or _released(root, request, rollback, to, shadow)


def _released(root: Path, request: dict[str, Any], rollback: bool, to: int | None, shadow: float | None) -> State[Any]:
    """The flow, with the workspace's lock."""
    with under_way(root, alone=True) as journal:
        if rollback or (to is not None and shadow is None):
            move = "rollback" if rollback else "switch"
            with journal.stage(move) as note:
                moved: Any = run_move.with_options(name=move)(root, to)
                note(moved)
            screen(f"release: {moved}")
        with journal.stage("deploy") as note:
            made: Any = run_deploy.with_options(name="deploy", timeout_seconds=limit_s(root))(root, None, request)
            note(f"version {made.version} {made.outcome}")
        share(root, journal)
        journal.end("Completed", made.trial or made.note or f"version {made.version} serves")
        if not made.url:
            return Completed(name="Nothing", message=made.note, data=None)
        if made.outcome == "tried":
            return Completed(name="Tried", message=f"version {made.version}: {made.trial}", data=made.version)
        screen(f"release: version {made.version} serves at {made.url} ({made.engine})")
        if made.outcome == "rolled_back":
            return Completed(name=TAKEN_BACK, message=made.trial, data=made.version)
        screen(made.trace)
        return Completed(message=f"{made.outcome}: version {made.version} at {made.url}", data=made.version)
