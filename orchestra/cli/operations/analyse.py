"""`orchestra analyse`: one question about the method each, with a table and a plot."""

from typing import Annotated

import typer

from orchestra.cli.common import hand_over, workspace

MODULE = "tasks.experiments.analyse"
app = typer.Typer(no_args_is_help=True, help="Analyses of the method, each with a table and a plot.")


@app.command()
def bias() -> None:
    """Show which share of the calls goes to the strongest expert, and to its and the policy's own family."""
    workspace()
    hand_over(MODULE, "bias")


@app.command()
def frontier(
    policy: Annotated[str, typer.Option(help="A name in evaluate.policies.")] = "grpo",
    turns: Annotated[
        list[int] | None, typer.Option(min=1, help="A turn limit to try; default: 1, 2, 3 and rollout.max_turns.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of held-out examples; default: evaluate.examples.")
    ] = None,
) -> None:
    """Measure cost and accuracy over turn limits and what users weigh; after a kill, the same command continues."""
    workspace()
    options = ["--policy", policy, *(word for limit in turns or [] for word in ("--turns", str(limit)))]
    hand_over(MODULE, "frontier", *options, *([] if examples is None else ["--examples", str(examples)]))
