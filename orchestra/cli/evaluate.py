"""`orchestra evaluate`: a model on a published benchmark. `orchestra learn`: the claims over training seeds."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestra.cli.common import RunnerOption, all_but, hand_over, parse_usd, refuse_unused, words, workspace
from orchestra.errors import ConfigError


def evaluate(
    context: typer.Context,
    benchmark: Annotated[
        str | None, typer.Option(help="hle, frames, frames-oracle, tau2 or own; without it: the results so far.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A version's number, a checkpoint's folder seen from here, a gateway's URL, or MODEL@URL with --price."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of questions, the first ones; default: all.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of attempts at each question; default: the protocol's.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="The published file; default: a download from the hub.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="Only this subject or domain, such as retail.")
    ] = None,
    user: Annotated[
        Literal["model", "scripted", "solo"],
        typer.Option(help="tau2: the user's part: model, scripted, or solo (only tasks without a user)."),
    ] = "model",
    price: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="A chat endpoint's row in the price book.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another judge; the result is then not comparable.")
    ] = None,
    judge_price: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="The judge's row in the price book.")
    ] = None,
    agreement: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Number of answers that a second judge reads too, for Cohen's kappa."),
    ] = 0,
    cap_usd: Annotated[
        str | None, typer.Option(metavar="USD", help="Most dollars in total; finished attempts are kept.")
    ] = None,
    question_usd: Annotated[
        str | None, typer.Option(metavar="USD", help="Most dollars for one question to a gateway.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Most seconds for an endpoint's or a gateway's answer.")
    ] = 3600,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of parallel attempts in a process.")] = 8,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Repeat the attempts without a verdict.")
    ] = False,
    harness: Annotated[
        str | None, typer.Option(help="hle: inspect lets inspect_evals ask and score; default: orchestra's runner.")
    ] = None,
    runner: RunnerOption = None,
) -> None:
    """Measure a model on a benchmark; after a kill, the same command continues."""
    here, root = Path.cwd(), workspace()
    if benchmark is None:
        others = all_but(context, "benchmark")
        refuse_unused(context, others, "without --benchmark", "name one: --benchmark own")
        from orchestra.evaluation.benchmarks.report import results, table

        print("\n".join(table(results(root))))
        return
    if model is None:
        raise ConfigError("no model is named", where="--model", fix="a version's number, a folder, or MODEL@URL")
    if benchmark != "tau2":
        refuse_unused(context, ["user"], f"with --benchmark {benchmark}")
    if judge is None:
        refuse_unused(context, ["judge_price"], "without --judge", "name one: --judge MODEL, or leave it out")
    for text, option in ((cap_usd, "--cap-usd"), (question_usd, "--question-usd")):
        if text is not None:
            parse_usd(text, option)
    options = words(
        benchmark=benchmark, model=_named(model, here, root), limit=limit, trials=trials,
        user=user, price=price, judge=judge, judge_price=judge_price, agreement=agreement, cap_usd=cap_usd,
        question_usd=question_usd, deadline=deadline, concurrency=concurrency, harness=harness,
        data=[here / file for file in data or []], only=only, retry_failures=retry_failures,
    )  # fmt: skip
    if runner is not None:
        if harness is not None:
            raise ConfigError("a harness runs in one process", where="--runner", fix="leave it or --harness out")
        os.environ["ORCHESTRA_TASK_RUNNER"] = runner
        hand_over("flows", "benchmark", *options)
    hand_over("tasks.experiments.benchmark", *options)


def _named(model: str, here: Path, root: Path) -> str:
    """The option's value, a checkpoint's folder as seen from the workspace, whose results bear its name."""
    from orchestra.evaluation.benchmarks.models import ENDPOINT, REFERENCES

    if model.isdigit() or model in REFERENCES or ENDPOINT.fullmatch(model):
        return model
    folder = Path(os.path.abspath(here / model))
    name = str(folder.relative_to(root)) if folder.is_relative_to(root) else str(folder)
    # ./7 is a folder, and 7 a version.
    return str(folder) if name.isdigit() or name in REFERENCES else name


def learn(
    context: typer.Context,
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
    force: Annotated[bool, typer.Option("--force", help="Run again even if results are stored.")] = False,
    split: Annotated[
        str, typer.Option(help="Examples to measure on: dev for tuning, heldout, or the sealed test set.")
    ] = "dev",
    join: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="The result of a seed that was measured elsewhere.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Seeds to measure at a time; each has its share of the cores.")] = 1,
    freeze: Annotated[
        int | None,
        typer.Option(metavar="EXAMPLES", min=1, help="Freeze the world for a test set of this size, then stop."),
    ] = None,
) -> None:
    """Measure the claims over training seeds; write docs/claims.md and the README's table."""
    here = Path.cwd()
    workspace()
    if freeze is not None:
        refuse_unused(context, all_but(context, "freeze"), "beside --freeze, which stops before anything is measured")
        hand_over("tasks.experiments.sealed", str(freeze))
    hand_over(
        "tasks.experiments.learn",
        seeds=seeds, split=split, set=set_, examples=examples, probe_examples=probe_examples,
        ablations=ablations, force=force, jobs=jobs, join=[os.path.relpath(here / file) for file in join or []],
    )  # fmt: skip
