"""`python -m flows.retraining`: looks for reasons to retrain, and lets Prefect start the retraining."""

import argparse
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from flows._workspace import settings
from flows.schedule import (
    DEPLOYMENT,
    ENTRYPOINTS,
    POOL,
    WATCH,
    connected,
    deploy,
    monitors,
    note_monitor,
    own_deployments,
    remove,
    taken,
    workspace_tag,
)
from monitoring import reasons
from monitoring.drift import MIN_EPISODES, WINDOW, Signal, alike, drift, sample
from orchestra.config.overrides import apply, undo
from orchestra.config.schema import Params, load_params
from orchestra.errors import ConfigError, OrchestraError
from orchestra.files.checkpoint import hash_file
from orchestra.files.yaml import load_yaml
from orchestra.serving.records.telemetry import TRACES, served_with_domain
from orchestra.serving.releases.state import SERVING, read
from orchestra.system import servers
from orchestra.system.retraining import (
    Cause,
    RetrainReason,
    ask,
    assignments,
    close,
    decided,
    hindrance,
    month_left,
    requests,
    settle,
    take,
    take_up,
)
from orchestra.system.runs import ASKED_BY, AWAITING, CAPPED, FAILED, SHORT, RunJournal, newest_by_flow, runs
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from tasks.platform import dvc
from tasks.platform.commands import run_command
from tasks.platform.evidence import fetched_reference, reference
from tasks.platform.ledger import reopen_requests, spent_by
from tasks.platform.registry import Registry
from tasks.records import judged

AUTOMATIONS = "monitoring/prefect/retraining.yaml"
EVERY_FIVE_MINUTES = "*/5 * * * *"
DUE = "orchestra.retraining.due"
RUN_CAP = "budget.run_usd"
Asked = Literal["", "due", "now"]
"""What a run of retrain is told: nothing; answer what asks, if it is due; or answer it before the cool-down ends."""


def served_drift(root: Path) -> tuple[str, list[Signal] | None]:
    """How the served episodes differ from the evaluated ones, in words and as signals; None: nothing to tell it by."""
    serving = read(root / SERVING)
    if serving is None:
        return "nothing serves", None
    asked = served_with_domain(root / TRACES, serving.fingerprint, limit=WINDOW)
    latest = [one for one, _ in asked]
    evaluated = reference(root, serving.checkpoint_hash)
    if not evaluated:
        with contextlib.suppress(OrchestraError):  # Without its record, drift cannot be told.
            registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
            for version in registry.versions():
                if version.checkpoint_hash == serving.checkpoint_hash:
                    evaluated = fetched_reference(root, registry.client, version)
    spent, current = judged.look(root, serving.fingerprint, latest, evaluated), sample(latest)
    usual = alike([(one.episode, one.of_domain) for one in evaluated], asked)
    signals = [*drift(sample(usual), current), *spent.signals]
    told, few = [str(signal) for signal in signals], not evaluated or current.episodes < MIN_EPISODES
    if not evaluated:
        told.append(f"drift cannot be told: no evaluation of version {serving.version} is here")
    elif few:
        told.append(f"too few requests to tell {'other ' if told else ''}drift ({current.episodes} of {MIN_EPISODES})")
    return f"{'; '.join(told) or 'no drift'}; {spent.line}", signals or (None if few else [])


def look(root: Path, signals: Sequence[Signal] | None, asked_by: str) -> str:
    """Open a request for each new reason and settle those that are gone; returns one line about it."""
    params = load_params(root / "params.yaml")
    reopen_requests(root)
    found, looked = _reasons(root, params, signals)
    if _undecided(root):
        looked -= {"data"}  # Their stages may have run; only a decision answers.
    made = ask(root, found, looked, asked_by)
    told = "; ".join(f"asked: {one.line}" for one in made) or "nothing new asks for a retraining"
    why = hindrance(root, params.retraining, runs(root))
    return told + (f" ({why})" if why else " (a run may begin)")


def _reasons(root: Path, params: Params, signals: Sequence[Signal] | None) -> tuple[list[RetrainReason], set[Cause]]:
    """The reasons that there are, and the causes that could be looked for."""
    world, today = params.world, date.today()
    file, book = read_catalogue(root / world.catalogue), PriceBook.load(root / world.prices)
    days = params.retraining.stale_price_days
    found = reasons.of_prices(file, book, date.fromisoformat(world.price_date), today, days)
    found += reasons.of_models(file, today)
    looked: set[Cause] = {"price", "model"}
    serving = read(root / SERVING)
    if signals is not None and serving is not None:
        found += reasons.of_drift(signals, serving.fingerprint)
        looked.add("drift")
    with contextlib.suppress(OrchestraError):  # A run works with DVC: its data are the newest.
        made = {out for one in load_yaml(root / "dvc.yaml", if_missing="git checkout dvc.yaml")["stages"].values()
                for out in one.get("outs", [])}  # fmt: skip
        found += reasons.of_data(dvc.stages(root), made, lambda path: _state(root / path))
        looked.add("data")
    return found, looked


def _undecided(root: Path) -> bool:
    """Whether the newest retraining came to no decision, or not yet."""
    newest = newest_by_flow(runs(root)).get("retrain")
    return newest is not None and (newest.lives or newest.failed or newest.state in SHORT)


def _state(path: Path) -> str:
    """Tells one content of a file or folder from another; what was only touched or copied is the same."""
    digest = hashlib.sha256()
    for file in sorted([path] if path.is_file() else path.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\0{hash_file(file)}\n".encode())
    return digest.hexdigest()[:12]


def waiting(root: Path, asked: Asked, *, own: str, again: bool) -> str:
    """Why a run that was started for what asks has nothing to do now; empty when it has. `again`: it is a rerun."""
    reopen_requests(root)
    if decided(root, own):
        return ""  # A person answered: it goes on.
    others = [one for one in runs(root) if one.id != own]
    now = asked == "now" or again or bool(os.environ.get(ASKED_BY))
    return hindrance(root, load_params(root / "params.yaml").retraining, others, now=now)


@contextlib.contextmanager
def answering(root: Path, journal: RunJournal, asked: Asked) -> Iterator[list[str]]:
    """What the run answers is taken while the block lasts, and says who asked; yields the run's own overrides.

    The changes of params.yaml that the requests need stay, as those of `orchestra run --set` do: prices that moved
    have moved for the next run, too. A run that is suspended for a person's answer has come to its decision. One that
    no request started takes nothing; what its prices and data took away is settled once it has decided.
    """
    from flows._runs import AwaitsAnswer

    reopen_requests(root)
    if not asked:
        came = False
        try:
            yield []
            came = journal.record.state not in SHORT
        except AwaitsAnswer:
            came = True
            raise
        finally:
            if came:
                _settle(root)
        return
    params = load_params(root / "params.yaml")
    again = take_up(root, journal.record.id)
    taken = again or take(root, journal.record.id, journal.record.name, params.grpo.seed + 1)
    state, answered, month_usd = FAILED, False, None
    try:
        journal.update(asked_by="; ".join(one.line for one in taken))
        undo(root)
        if not again:  # The changes were made when it began; another run may have made later ones.
            apply(root / "params.yaml", assignments(taken, _reached(params)))
        left = month_left(root, params.retraining, besides=journal.record.id)
        caps = [one for one in (left, params.budget.run_usd) if one is not None]
        yield [] if left is None else [f"{RUN_CAP}={min(caps)}"]
        state = journal.record.state
        answered = state != CAPPED
        if state == CAPPED and left is not None and left == min(caps):
            month_usd = params.retraining.monthly_usd
    except AwaitsAnswer:
        state, answered = AWAITING, True
        raise
    finally:
        close(root, taken, state, spent_by(root, journal.record), answered=answered, month_usd=month_usd)


def _settle(root: Path) -> None:
    """Settle what prices and data asked for, where a run without a request came to a decision with these."""
    causes: set[Cause] = {"price", "data"}
    if not any(one.state == "open" and one.cause in causes for one in requests(root)):
        return
    with contextlib.suppress(OrchestraError):  # The run is done; the next look says what is wrong with a file.
        found, looked = _reasons(root, load_params(root / "params.yaml"), None)
        settle(root, found, looked & causes, begun=True)


def _reached(params: Params) -> list[str]:
    """The day of the prices, unless it is yet to come: a request of before does not take it back."""
    day = params.world.price_date
    return [f'world.price_date="{day}"'] if day <= date.today().isoformat() else []


def announce(root: Path) -> str:
    """Tell Prefect that a retraining is due, if one is; its automation starts it. Returns a line, empty for nothing."""
    from prefect.events import emit_event

    params = load_params(root / "params.yaml")
    if hindrance(root, params.retraining, runs(root)):
        return ""
    deployment = _deployment(root)
    if deployment is None:
        return "a retraining is due: orchestra retraining start, or on"
    emit_event(
        DUE,
        resource={"prefect.resource.id": f"prefect.deployment.{deployment.id}", "prefect.resource.name": DEPLOYMENT},
    )
    return "a retraining is due: Prefect was told"


def _deployment(root: Path) -> Any:
    """The retraining that `orchestra retraining on` deployed; None without one."""
    return next((one for one in own_deployments(root) if one.parameters.get("asked")), None)


def _name(root: Path, flow: str, name: str) -> str:
    """That of the present one; else the name, apart where another workspace has it on the same server."""
    ours = (one.name for one in own_deployments(root) if one.entrypoint == ENTRYPOINTS[flow])
    apart = f"{name}-{workspace_tag(root)[-6:]}" if taken(root, flow, name) else name
    return next((one for one in ours if re.fullmatch(f"{name}(-[0-9a-f]{{6}})?", one)), apart)


def switch_on(root: Path) -> Iterator[str]:
    """Start what is needed, deploy the retraining and a monitor that looks, and add the automation; a line for each."""
    from prefect.automations import Automation

    yield from servers.start(root, worker=POOL)
    with connected(root):
        what = f"What drift, prices or data of {root.name} asked for; `orchestra retraining off` ends it."
        asked = _name(root, "retrain", DEPLOYMENT)
        deploy(root, asked, "retrain", parameters={"asked": "due"}, description=what)
        yield f"{asked}: retrain, when it is due"
        yield from _switch_on_monitor(root)
        for raw in _automations(root):
            _forget_automation(str(raw["name"]))
            Automation.model_validate(raw).create()
            yield f"automation {raw['name']}: added"


def _switch_on_monitor(root: Path) -> Iterator[str]:
    """Unless a monitor looks already: one that a person paused or switched off goes on, else one is deployed."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.schedules import CronSchedule

    there = [one for one in monitors(root) if one.schedules]
    if not any(each.active and not one.paused for one in there for each in one.schedules):
        if there:
            with get_client(sync_client=True) as client:
                client.resume_deployment(there[0].id)
                for each in there[0].schedules:
                    client.update_deployment_schedule(there[0].id, each.id, active=True)
            yield f"{there[0].name}: monitor, on again"
        else:
            schedule = CronSchedule(cron=EVERY_FIVE_MINUTES, timezone="UTC")
            watch, what = _name(root, "monitor", WATCH), "Looks for what asks for a retraining."
            deploy(root, watch, "monitor", schedule=schedule, description=what)
            yield f"{watch}: monitor at {EVERY_FIVE_MINUTES!r} UTC"
    note_monitor(root)


def switch_off(root: Path) -> Iterator[str]:
    """Remove the deployment, and the automation where no other workspace has one; the monitor's schedule stays.

    Raises `ConfigError` where there is none.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    found = _deployment(root)
    if found is None:
        fix = "orchestra schedule lists what there is, and --remove deletes one by name"
        raise ConfigError("this workspace deployed no retraining", where="retraining off", fix=fix)
    remove(root, found.name)
    with connected(root), get_client(sync_client=True) as client:
        same = DeploymentFilter(name=DeploymentFilterName(like_=DEPLOYMENT))
        if not any(one.parameters.get("asked") for one in client.read_deployments(deployment_filter=same)):
            for raw in _automations(root):
                _forget_automation(str(raw["name"]))
                yield f"automation {raw['name']}: removed"


def _automations(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_yaml(root / AUTOMATIONS, if_missing=f"git checkout {AUTOMATIONS}")["automations"]
    return found


def _forget_automation(name: str) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for one in client.read_automations_by_name(name):
            client.delete_automation(one.id)


def main(arguments: list[str]) -> None:
    """Look, or let Prefect look and start."""
    parser = argparse.ArgumentParser(prog="python -m flows.retraining", description=__doc__)
    parser.add_argument("action", choices=["check", "on", "off"])
    told, root = parser.parse_args(arguments), Path.cwd()
    settings(root)
    if told.action == "check":
        words, signals = served_drift(root)
        print(f"drift: {words}\n{look(root, signals, 'orchestra retraining check')}")
        return
    for line in switch_on(root) if told.action == "on" else switch_off(root):
        print(line, flush=True)


if __name__ == "__main__":
    run_command(main)
