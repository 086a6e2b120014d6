"""`orchestra retraining`: what asks for the next retraining, and when it begins."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from orchestra.cli.common import hand_over, workspace
from orchestra.errors import ConfigError
from orchestra.system import retraining as requests
from orchestra.system.runs import runs

app = typer.Typer(help="Ask for a retraining, and let drift, prices and data ask for one.", no_args_is_help=True)


@app.command("list")
def list_requests() -> None:
    """List the requests for a retraining, the runs that answered them, and why the next one does or does not start."""
    from orchestra.config.schema import load_params

    root = workspace()
    params = load_params(root / "params.yaml")
    print("\n".join(requests.listed(root, params.retraining, runs(root))))


@app.command()
def check() -> None:
    """Look for drift, changed or stale prices, retired models and new data; each new finding becomes a request."""
    workspace()
    hand_over("flows.retraining", "check")


@app.command()
def ask(
    why: Annotated[str, typer.Argument(metavar="WHY", help="The reason, in words.")],
) -> None:
    """Request a retraining yourself; it starts when the rules allow it."""
    root = workspace()
    if not why.strip():
        fix = 'write it in words: orchestra retraining ask "a second customer"'
        raise ConfigError("the reason is empty", where="retraining ask", fix=fix)
    now = datetime.now(UTC)
    reason = requests.RetrainReason("person", now.isoformat(), why)
    (made,) = requests.ask(root, [reason], (), "orchestra retraining ask")
    print(f"asked: {made.id}")


@app.command()
def drop(
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id, or its beginning.")],
) -> None:
    """Close a request; the same fact makes no further request."""
    root = workspace()
    found = requests.find_request(root, request)
    requests.drop(root, found)
    print(f"dropped: {found.line}")


@app.command()
def start(
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the end of the cool-down.")] = False,
) -> None:
    """Run the requested retraining, if one may start."""
    workspace()
    hand_over("flows", "retrain", asked="now" if now else "due")


@app.command()
def on() -> None:
    """Turn automatic retraining on: the monitor looks every five minutes, and the worker starts what is due."""
    workspace()
    hand_over("flows.retraining", "on")


@app.command()
def off() -> None:
    """Turn automatic retraining off; a running monitor still records requests."""
    workspace()
    hand_over("flows.retraining", "off")
