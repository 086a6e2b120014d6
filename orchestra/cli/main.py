"""The command `orchestra`: run the pipeline, show its state, ask the served model, and stop it."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestra import __version__
from orchestra.cli import data as cli_data
from orchestra.cli import decide as cli_decide
from orchestra.cli import domains as cli_domains
from orchestra.cli import evaluate as cli_evaluate
from orchestra.cli import index as cli_index
from orchestra.cli import keys as cli_keys
from orchestra.cli import launch as cli_launch
from orchestra.cli import prices as cli_prices
from orchestra.cli import tools as cli_tools
from orchestra.cli.common import RunnerOption, hand_over, parse_usd, workspace
from orchestra.cli.operations import analyse as cli_analyse
from orchestra.cli.operations import retraining as cli_retraining
from orchestra.cli.operations import runs as cli_runs
from orchestra.cli.operations import schedule as cli_schedule
from orchestra.cli.operations import upkeep as cli_upkeep
from orchestra.cli.welcome import welcome
from orchestra.errors import EXIT_ERROR, ConfigError, OrchestraError, ServiceError
from orchestra.system.environment import quiet
from orchestra.system.storage import storage_named

app = typer.Typer(
    name="orchestra",
    help="Train, test, release and monitor a small model that orchestrates tools and larger models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (cli_data, cli_domains, cli_tools, cli_prices, cli_index, cli_keys, cli_retraining, cli_analyse):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])
for command in (
    cli_prices.reprice,
    cli_prices.forecast,
    cli_prices.ledger,
    cli_decide.power,
    cli_decide.approve,
    cli_decide.refuse,
    cli_decide.explain,
    cli_decide.release,
    cli_decide.report,
    cli_decide.traces,
    cli_evaluate.evaluate,
    cli_launch.launch,
    cli_runs.why,
    cli_runs.rerun,
    cli_schedule.schedule,
    cli_schedule.plan,
    cli_schedule.sweep,
    cli_schedule.notify,
    cli_schedule.webhook,
    cli_upkeep.backup,
    cli_upkeep.restore,
    cli_upkeep.push,
    cli_upkeep.pull,
    cli_upkeep.gc,
):
    app.command()(command)
app.command("runs")(cli_runs.list_runs)


def main() -> None:
    """The console script: an `OrchestraError` is one line and exit code 2."""
    quiet()
    try:
        with storage_named():
            app()
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)


def version_line(wanted: bool) -> None:
    if wanted:
        print(f"orchestra {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=version_line, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, test, release and monitor a small model that orchestrates tools and larger models."""


@app.command()
def run(
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Put this profile in force first; params/ keeps your edits.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change params.yaml first: grpo.seed=1.")
    ] = None,
    force: Annotated[
        list[str] | None, typer.Option(metavar="STAGE", help="Run this stage even if it is current.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
) -> None:
    """Run every stale stage, ask the promotion gate, serve the champion."""
    from orchestra.cli.readiness import refuse
    from orchestra.config import profiles
    from orchestra.config.overrides import apply
    from orchestra.config.schema import load_params
    from orchestra.system.workspace import locked

    root = workspace()
    if os.environ.get("ORCHESTRA_PARAMS"):
        what = "the pipeline reads params.yaml only, since DVC watches that file"
        raise ConfigError(what, where="ORCHESTRA_PARAMS", fix="unset it, and name the profile: --profile")
    if profile is not None:
        with locked(root):
            print("".join(f"{line}\n" for line in profiles.put_in_force(root, profile)), end="")
    for line in apply(root / "params.yaml", set_) if set_ else []:
        print(f"params.yaml: {line}")
    refuse(root, load_params(root / "params.yaml"))
    options = [word for stage in force or [] for word in ("--force", stage)]
    hand_over("flows", "retrain", *options, *(["--until", until] if until else []))


@app.command()
def learn(
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Training seeds.")] = "0,1,2",
    ablations: Annotated[bool, typer.Option("--ablations", help="Add arms that lack a part of the reward.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For this command only; params.yaml stays as it is."),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Number of held-out examples; default: evaluate.examples.")
    ] = None,
    probe_examples: Annotated[
        int | None, typer.Option(help="Number of topic examples for the probes; default: all.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run again even if results are kept.")] = False,
    split: Annotated[
        str, typer.Option(help="Examples to measure on: dev for tuning, heldout, or the sealed test set.")
    ] = "dev",
    join: Annotated[list[str] | None, typer.Option(metavar="FILE", help="A seed that was measured elsewhere.")] = None,
    freeze: Annotated[
        int | None, typer.Option(metavar="EXAMPLES", min=1, help="Freeze the world for a test set of that size; stop.")
    ] = None,
) -> None:
    """Measure the claims over training seeds; write docs/claims.md and the README's table."""
    workspace()
    if freeze is not None:
        hand_over("tasks.experiments.sealed", str(freeze))
    options = ["--seeds", seeds, "--split", split, *(word for file in join or [] for word in ("--join", file))]
    for assignment in set_ or []:
        options += ["--set", assignment]
    options += [] if examples is None else ["--examples", str(examples)]
    options += [] if probe_examples is None else ["--probe-examples", str(probe_examples)]
    hand_over("tasks.experiments.learn", *options, *["--ablations"] * ablations, *["--force"] * force)


@app.command()
def synthesize(
    examples: Annotated[
        int | None, typer.Option(min=2, help="Number of training and held-out examples; default: params.yaml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: data/generated.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one per core.")] = None,
    seed: Annotated[int | None, typer.Option(help="Use this seed in place of synthesize.seed.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For this command only; params.yaml stays as it is."),
    ] = None,
    runner: RunnerOption = None,
) -> None:
    """Make any number of examples on all cores; after a kill, the same command continues."""
    from orchestra.config.overrides import effective
    from orchestra.config.schema import params_file
    from orchestra.synthesis.dataset import workers as pool
    from orchestra.synthesis.dataset.shards import sized
    from orchestra.system.environment import cores
    from orchestra.system.workspace import Screen, locked

    here, root = Path.cwd(), workspace()
    folder = root / "data/generated" if out is None else here / out
    assignments = [*(set_ or []), *([] if seed is None else [f"synthesize.seed={seed}"])]
    if runner is not None:
        if workers is not None:
            raise ConfigError(
                "--workers and --runner exclude each other", where="synthesize", fix="--runner processes:2"
            )
        os.environ["ORCHESTRA_TASK_RUNNER"] = runner
        options = [word for assignment in assignments for word in ("--set", assignment)]
        options += [] if examples is None else ["--examples", str(examples)]
        hand_over("flows", "synthesize", "--out", str(folder), *options)
    params = effective(params_file(root), assignments)
    params = params if examples is None else sized(params, examples)
    total = params.synthesize.train_examples + params.synthesize.heldout_examples
    screen, began, said = Screen(), time.monotonic(), 0.0

    def progress(done: int) -> None:
        nonlocal said
        if done == total or time.monotonic() - said > 0.5:
            said = time.monotonic()
            screen(f"synthesize: {done}/{total} examples ({100 * done // total}%), {said - began:.0f} s")

    with locked(root):
        pool.synthesize(params, root, folder, workers=workers or cores(), on_progress=progress, say=screen)
    screen(f"synthesize: {folder} holds them")


@app.command()
def status() -> None:
    """Show what failed and the command to type, what runs now, servers, registry, and which stages are stale."""
    workspace()
    hand_over("flows.status")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question, in words.")],
    preference: Annotated[str | None, typer.Option(help="cheap, fast, accurate, or your own words.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="USD", help="Most dollars to spend.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Most turns; default: rollout.max_turns.")] = None,
    domain: Annotated[str | None, typer.Option(help="Offer this domain's tools, over a copy of its database.")] = None,
    url: Annotated[str | None, typer.Option(help="The address of another gateway.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")] = False,
) -> None:
    """Ask the served model; print its tool calls, its answer and the bill."""
    from orchestra.serving import client

    reply = client.ask(
        question,
        preference,
        budget_usd=None if budget is None else parse_usd(budget, "--budget"),
        max_turns=max_turns,
        domain=domain,
        url=url or client.gateway_url(workspace()),
    )
    # JSON in ASCII: exact, and nothing in it steers a terminal.
    print(json.dumps(reply.model_dump(mode="json"), indent=2) if as_json else "\n".join(reply.lines()))
    for line in welcome(workspace()):
        print(line, file=sys.stderr)


@app.command()
def chat(
    preference: Annotated[str | None, typer.Option(help="cheap, fast, accurate, or your own words.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="USD", help="Most dollars of an answer.")] = None,
    url: Annotated[str | None, typer.Option(help="The address of another gateway.")] = None,
) -> None:
    """Talk with the served model: its tool calls and its answer as they come."""
    from orchestra.serving import client
    from orchestra.serving.chat import HELP, TerminalChat

    root = workspace()
    base, headers, verify = client.access(root, url)
    usd = None if budget is None else f"{parse_usd(budget, '--budget'):f}"
    talk = TerminalChat(base, headers, lambda text: print(text, end="", flush=True), preference, usd, verify)
    print(HELP)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while talk.say(input("> ")):
            pass


@app.command()
def mcp(
    http: Annotated[
        int | None, typer.Option(metavar="PORT", help="Listen on this port of 127.0.0.1; default: stdin and stdout.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The address of another gateway.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Ask this checkpoint in process, not the gateway.")] = None,
) -> None:
    """Run an MCP server with one tool, the orchestrator; it returns answer, cost and calls."""
    import asyncio

    from orchestra.config.schema import load_params
    from orchestra.serving import mcp_server

    if url is not None and checkpoint is not None:
        raise ConfigError("--url and --checkpoint exclude each other", where="mcp", fix="leave one out")
    here, root = Path.cwd(), workspace()
    answerer: mcp_server.Answerer = mcp_server.Deployed(root, url)
    if checkpoint is not None:
        answerer = mcp_server.InProcess.load(root, here / checkpoint, load_params())
    if http is not None:
        mcp_server.serve_http(answerer, http)
    else:
        asyncio.run(mcp_server.serve_stdio(answerer))


@app.command()
def monitor() -> None:
    """Check that the served model is the champion and answers."""
    workspace()
    hand_over("flows", "monitor")


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Prefect's UI.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow's UI.")] = 5000,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the facts for Prometheus.")] = 9464,
) -> None:
    """Start Prefect's and MLflow's servers on 127.0.0.1, and the schedules' worker; `orchestra stop` ends them."""
    from orchestra.system.servers import start

    for line in start(workspace(), prefect_port=prefect_port, mlflow_port=mlflow_port, metrics_port=metrics_port):
        print(line)


@app.command()
def stop(
    name: Annotated[list[str] | None, typer.Argument(help="End only these: gateway, prefect, metrics, …")] = None,
) -> None:
    """End the servers of this workspace."""
    from orchestra.system.processes import services, stop_services

    root = workspace()
    running = {service.name for service in services(root)}
    if unknown := set(name or []) - running:
        raise ServiceError(f"{', '.join(sorted(unknown))} does not run", where=str(root), fix="orchestra status")
    ended = stop_services(root, *(name or []))
    print("\n".join(f"ended {service.name} (pid {service.pid})" for service in ended) or "nothing runs")


@app.command()
def doctor(
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Examine it for this profile; default: the one in force."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what this machine lacks, with the command that fixes it. Exit code 1: the pipeline cannot run."""
    from orchestra.cli import doctor as examination

    findings = examination.examine(workspace(), profile)
    if as_json:
        print(examination.as_json(findings))
    else:
        marks = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
        for finding in findings:
            print(f"{marks[finding.level]}  {finding.what}: {finding.found}")
            if finding.fix:
                print(f"         fix: {finding.fix}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
