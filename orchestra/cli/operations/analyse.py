"""`orchestra analyse`: one question about the method each, with a table and a plot."""

from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import hand_over, parse_usd, workspace

MODULE = "tasks.analyses.run"
app = typer.Typer(no_args_is_help=True, help="Analyses of the method, each with a table and a plot.")

Policies = Annotated[list[str] | None, typer.Option("--policy", help="A name in evaluate.policies; default: grpo.")]
Reference = Annotated[str, typer.Option(help="The policy whose episodes are M0 of Eq. 5.")]
Count = Annotated[
    int | None, typer.Option("--examples", min=1, help="Number of examples, the first ones; default: all.")
]
Set = Annotated[str, typer.Option("--benchmark", help="own (the held-out examples), hle or frames.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--data", metavar="FILE", help="The published file; default: a download from the hub."),
]


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
    budget: Annotated[list[str] | None, typer.Option(metavar="USD", help="A budget of an episode to try.")] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of held-out examples; default: evaluate.examples.")
    ] = None,
) -> None:
    """Measure cost and accuracy over turn limits, preferences and budgets; after a kill, the same command continues."""
    workspace()
    budgets = [f"{parse_usd(text, '--budget'):f}" for text in budget or []]
    hand_over(MODULE, "frontier", policy=policy, turns=turns, budget=budgets, examples=examples)


OF_A_SET = {
    "unseen-tools": "Compare known experts with renamed ones in unseen words; "
    "after a kill, the same command continues.",
    "unseen-prices": "Compare known prices with prices beyond training's range; "
    "after a kill, the same command continues.",
    "preferences": "Score preference adherence (Eq. 5-6) with and without the users' words; continues after a kill.",
}
"""Analyses of a set of examples, each with its help."""


def _of_set(
    context: typer.Context,
    policy: Policies = None,
    reference: Reference = "sft",
    examples: Count = None,
    benchmark: Set = "own",
    data: Files = None,
) -> None:
    here = Path.cwd()
    workspace()
    files = [here / file for file in data or []]
    kind = str(context.info_name)
    hand_over(MODULE, kind, reference=reference, benchmark=benchmark, policy=policy, data=files, examples=examples)


for name, text in OF_A_SET.items():
    app.command(name, help=text)(_of_set)


@app.command()
def judges(
    benchmark: Annotated[str, typer.Option(help="The benchmark whose stored answers are judged again.")],
    judge: Annotated[str, typer.Option(metavar="MODEL", help="The other judge, at $ORCHESTRA_JUDGE_URL.")],
    judge_price: Annotated[str, typer.Option(metavar="PROVIDER/MODEL", help="The judge's row in the price book.")],
    cap_usd: Annotated[
        str | None, typer.Option(metavar="USD", help="Most dollars in total; finished attempts are kept.")
    ] = None,
) -> None:
    """Compare a strong judge's stored verdicts with another judge's; after a kill, the same command continues."""
    workspace()
    if cap_usd is not None:
        parse_usd(cap_usd, "--cap-usd")
    hand_over(MODULE, "judges", benchmark=benchmark, judge=judge, judge_price=judge_price, cap_usd=cap_usd)
