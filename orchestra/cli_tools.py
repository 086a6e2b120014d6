"""`orchestra tools`: what the orchestrator can call."""

import typer

from orchestra.cli_describe import describe

app = typer.Typer(help="What the orchestrator can call.", no_args_is_help=True)
app.command()(describe)


@app.callback()
def tools() -> None:
    """What the orchestrator can call."""
