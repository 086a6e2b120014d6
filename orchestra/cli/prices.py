"""`orchestra prices`, `reprice`, `forecast` and `ledger`: prices, past costs and expected costs."""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestra.cli.common import hand_over, parse_date, workspace
from orchestra.errors import DataError
from orchestra.system.storage import ARTIFACTS
from orchestra.text import aligned

app = typer.Typer(help="Check the dated price book.", no_args_is_help=True)


AsOf = Annotated[str | None, typer.Option("--as-of", metavar="DATE", help="The day, YYYY-MM-DD; default: today.")]


@app.command()
def check(
    as_of: AsOf = None,
    days: Annotated[
        int | None,
        typer.Option(min=0, help="A price whose last check is older is stale; default: retraining.stale_price_days."),
    ] = None,
) -> None:
    """Find tools without a price, prices without a recent check, and figures without a source.

    Exit code 1 if there is anything to fix.
    """
    from orchestra.config.schema import load_params
    from orchestra.tools.catalogue.catalogue import read_catalogue
    from orchestra.tools.catalogue.price_book import PriceBook
    from orchestra.tools.catalogue.price_check import check_prices, price_keys

    root = workspace()
    params = load_params(root / "params.yaml")
    world = params.world
    day = date.today() if as_of is None else parse_date(as_of)
    file, book = read_catalogue(root / world.catalogue), PriceBook.load(root / world.prices)
    findings = check_prices(file, book, day, params.retraining.stale_price_days if days is None else days)
    for finding in findings:
        print(f"{finding.what}\n         fix: {finding.fix}")
    print(f"{len(price_keys(file))} prices in use on {day}: {len(findings)} to look at")
    if findings:
        raise typer.Exit(1)


def reprice(
    run: Annotated[
        str,
        typer.Argument(
            help="A report folder, an episodes file, the id of an MLflow run, or .state/traces (or a file of it)."
        ),
    ],
    as_of: AsOf = None,
    examples: Annotated[
        Path | None, typer.Option(help="The run's examples; default: data/validated/heldout.jsonl.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Show only this policy; of traces, this served version.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure exactly, as JSON.")] = False,
) -> None:
    """Compute what a past run, or served requests, would have cost on another day.

    A run's costs are shown by component and policy, those of traces by tool and model.
    """
    here = Path.cwd()
    root = workspace()
    day = date.today() if as_of is None else parse_date(as_of)
    chosen = here / examples if examples is not None else root / "data/validated/heldout.jsonl"
    from orchestra.serving.records.repricing import are_traces, repriced_traces
    from orchestra.system.workspace import Screen

    if are_traces(here / run):
        say = Screen(sys.stderr)
        table = repriced_traces(root, here / run, day, policy, as_json=as_json, say=say)
        say("reprice: done (100%)")
        print(table)
        return
    if not (here / run).exists():
        as_of = day.isoformat()
        hand_over("tasks.experiments.reprice", run, as_of=as_of, examples=chosen, policy=policy or None, json=as_json)
    from orchestra.evaluation.repricing import repriced

    print(repriced(root, here / run, day, chosen, policy, as_json=as_json))


def forecast(
    stage: Annotated[Literal["sft", "grpo", "evaluate"], typer.Argument(help="The stage to sample.")],
    sample: Annotated[int, typer.Option(min=2, help="Number of batches (evaluate, sft) or steps (grpo) to run.")] = 4,
) -> None:
    """Estimate dollars and time of a stage, with 95 % intervals, from a sample that is run and paid for."""

    workspace()
    hand_over("tasks.experiments.forecast", stage, sample=sample)


def ledger(
    file: Annotated[Path | None, typer.Argument(help="A ledger file; default: the last run's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure exactly, as JSON.")] = False,
) -> None:
    """Show spending by phase and component: calls, cache hits, tokens, dollars, seconds."""
    from orchestra.accounting.ledger import LEDGERS, Spending, parts, run_of
    from orchestra.files.jsonl import stream_jsonl
    from orchestra.types import Charge

    here = Path.cwd()
    if file is None:
        root = workspace()
        # The next run moves a ledger to its own run's artifacts in MLflow.
        booked = [*(root / LEDGERS).glob("*.jsonl")] or [
            one for one in (root / ARTIFACTS).glob("*/artifacts/*.jsonl") if run_of(one) == one.parts[-3]
        ]
        if not booked:
            fix = "orchestra run, or name a file: MLflow has the ledgers of earlier runs as artifacts"
            raise DataError("no run has been booked here", where=LEDGERS, fix=fix)
        last = max(booked, key=lambda one: one.stat().st_mtime_ns)
        kept = sorted(one for one in booked if run_of(one) == run_of(last))
    else:
        kept = [here / file]
    charges = (charge for one in kept for charge in stream_jsonl(one, Charge, fix="name a ledger", whole=True))
    groups: dict[str, Spending] = {}
    for (phase, component), part in parts(charges, lambda c: (c.phase, c.component)).items():
        groups[f"{phase or '-'} · {component}"] = part
    whole = sum(groups.values(), Spending())
    if as_json:
        print(json.dumps({name: part.as_json() for name, part in [*groups.items(), ("total", whole)]}))
        return
    rows: list[tuple[str, ...]] = [("", "calls", "hits", "tokens in", "out", "USD", "seconds")]
    for name, part in [*groups.items(), ("total", whole)]:
        counts = (part.calls, part.cache_hits, part.input_tokens, part.output_tokens)
        rows.append((name, *map(str, counts), f"{part.cost_usd:.6f}", f"{part.seconds:.1f}"))
    print("\n".join(aligned(rows, numbers=True)))
    if whole.simulated:
        print(f"{whole.simulated} calls were of simulated experts")
