"""The tree of `orchestra`: every verb under the heading of what it is for."""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from orchestra import __version__
from orchestra.cli import ask, decide, evaluate, keys, launch, pipeline, prices
from orchestra.cli.data import domains, examples, index, tools
from orchestra.cli.operations import analyse, export, retraining, runs, schedule, upkeep

app = typer.Typer(
    name="orchestra",
    help="Train, test, release and monitor a small model that orchestrates tools and larger models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
VERBS: Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]] = {
    "Run the pipeline": {
        "run": pipeline.run,
        "plan": schedule.plan,
        "status": pipeline.status,
        "up": pipeline.up,
        "stop": pipeline.stop,
        "doctor": pipeline.doctor,
        "launch": launch.launch,
        "sweep": schedule.sweep,
    },
    "Ask the served model": {"ask": ask.ask, "chat": ask.chat, "mcp": ask.mcp, "keys": keys.app},
    "After a failure": {"why": runs.why, "rerun": runs.rerun, "runs": runs.list_runs},
    "Measure": {
        "evaluate": evaluate.evaluate,
        "learn": evaluate.learn,
        "analyse": analyse.app,
        "power": decide.power,
    },
    "Decide and release": {
        "report": decide.report,
        "explain": decide.explain,
        "approve": decide.approve,
        "refuse": decide.refuse,
        "release": decide.release,
        "export": export.export,
    },
    "Schedule and watch": {
        "schedule": schedule.schedule,
        "retraining": retraining.app,
        "notify": schedule.notify,
        "webhook": schedule.webhook,
        "monitor": pipeline.monitor,
        "traces": decide.traces,
    },
    "Data and tools": {
        "synthesize": examples.synthesize,
        "data": examples.app,
        "domains": domains.app,
        "tools": tools.app,
        "index": index.app,
    },
    "Prices and spending": {
        "prices": prices.app,
        "reprice": prices.reprice,
        "forecast": prices.forecast,
        "ledger": prices.ledger,
    },
    "Store": {
        "push": upkeep.push,
        "pull": upkeep.pull,
        "backup": upkeep.backup,
        "restore": upkeep.restore,
        "gc": upkeep.gc,
    },
}
"""A function is a command, an app a group of commands."""
for heading, verbs in VERBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=heading)
        else:
            app.command(name, rich_help_panel=heading)(verb)


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
