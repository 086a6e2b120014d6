"""Running the pipeline: run, status, monitor, up, stop and doctor."""

import os
from typing import Annotated

import typer

from orchestra.cli.common import check_stages, hand_over, workspace
from orchestra.errors import ConfigError


def run(
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Switch to this profile first; params/ keeps your edits.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change this key of params.yaml first, such as grpo.seed=1."),
    ] = None,
    force: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE", help="Run this stage even if it is current: one of synthesize … evaluate."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Stop after this stage: one of synthesize … evaluate.")
    ] = None,
) -> None:
    """Run every stale stage, ask the promotion gate, serve the champion."""
    from orchestra.cli.readiness import refuse
    from orchestra.config.overrides import IN_FORCE, effective
    from orchestra.config.profiles import profile_file
    from orchestra.config.schema import load_params
    from orchestra.system.workspace import locked

    root = workspace()
    if os.environ.get("ORCHESTRA_PARAMS"):
        what = "the pipeline reads params.yaml only, since DVC watches that file"
        raise ConfigError(what, where="ORCHESTRA_PARAMS", fix="unset it, and name the profile: --profile")
    check_stages(root, [until, *(force or [])])
    if (root / IN_FORCE).exists():
        with locked(root):
            pass  # Who takes the lock takes back what a killed run left in params.yaml.
    file = root / "params.yaml" if profile is None else profile_file(root, profile)
    refuse(root, effective(file, set_) if set_ else load_params(file), until)
    # The flow writes the values, and keeps the workspace's lock from then to its end.
    hand_over("flows", "retrain", profile=profile, set=set_, force=force, until=until or None)


def status() -> None:
    """Show what failed and the command to type, what runs now, servers, registry, and which stages are stale."""
    workspace()
    hand_over("flows.status")


def monitor() -> None:
    """Check that the served model is the champion and answers."""
    workspace()
    hand_over("flows", "monitor")


def up(
    prefect_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of Prefect's UI; default: the last one, or 4200."),
    ] = None,
    mlflow_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of MLflow's UI; default: the last one, or 5000."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the metrics for Prometheus; default: the last one, or 9464."),
    ] = None,
) -> None:
    """Start Prefect's and MLflow's servers on 127.0.0.1, and the schedules' worker; `orchestra stop` ends them."""
    from orchestra.system.runs import RUNS
    from orchestra.system.servers import PREFECT_URL, owns_prefect, prefect_client, start

    root = workspace()
    for line in start(root, prefect_port=prefect_port, mlflow_port=mlflow_port, metrics_port=metrics_port):
        print(line, flush=True)
    client = prefect_client(root)
    if client and owns_prefect(root, client[PREFECT_URL]) and any((root / RUNS).glob("*.json")):
        hand_over("flows.schedule", catch_up=True)  # Prefect may have missed how a run ended.


def stop(
    name: Annotated[list[str] | None, typer.Argument(help="End only these: gateway, prefect, metrics, …")] = None,
) -> None:
    """End the servers of this workspace; the gateway and vLLM first answer what they work on, for 30 s at most."""
    from orchestra.serving.releases.control import STOP_S
    from orchestra.system.processes import all_remembered, stop_services
    from orchestra.system.servers import WAY_BACK

    # What died, and left its file or some of its processes, is ended too.
    root = workspace()
    known = sorted({service.name for service in all_remembered(root)})
    if unknown := sorted(set(name or []) - {*WAY_BACK, *known}):
        fix = f"one of: {', '.join(sorted({*WAY_BACK, *known}))}"
        raise ConfigError(f"no server {', '.join(unknown)}", where="stop", fix=fix)
    ended = 0
    for each in name or known:
        for service in (found := stop_services(root, each, grace_s=STOP_S)):
            print(f"ended {service.name} (pid {service.pid})", flush=True)
        if name and not found:
            print(f"{each}: does not run")
        ended += len(found)
    if not name and not ended:
        print("nothing runs")


def doctor(
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Check for this profile; default: the present one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what this machine lacks, with the command that fixes each. Exit code 1: the pipeline cannot run."""
    from orchestra.cli import doctor as examination

    marks = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
    findings = []
    for finding in examination.examine(workspace(checked=False), profile):
        findings.append(finding)
        if not as_json:
            fix = f"\n         fix: {finding.fix}" if finding.fix else ""
            print(f"{marks[finding.level]}  {finding.what}: {finding.found}{fix}", flush=True)
    if as_json:
        print(examination.as_json(findings))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
