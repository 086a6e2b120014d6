"""`orchestra power`, `approve`, `explain`, `release`, `report` and `traces`: decisions, and what serves and why."""

import getpass
import os
from typing import Annotated, NoReturn

import typer

from orchestra.cli.common import hand_over, refuse_unused, workspace
from orchestra.errors import ConfigError, DataError
from orchestra.system.environment import nameless
from orchestra.text import aligned

TRIALS = (1, 2, 4, 8)


def power(
    context: typer.Context,
    difference: Annotated[
        float, typer.Option(metavar="POINTS", help="The difference in accuracy to detect, in points.")
    ] = 2.0,
    power: Annotated[float, typer.Option(help="The chance of detecting it.")] = 0.8,
    disagreement: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Share of examples on which the models' outcomes differ; default: from the last evaluation.",
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Share of examples on which two trials of one model differ."),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="POLICY", help="The policy to compare the trained model with.")
    ] = "sft",
) -> None:
    """Show how many examples and trials are needed to detect a difference in accuracy, at 95 %."""
    from orchestra.evaluation.report import EVALUATION, TRAINED, label, read_verdicts
    from orchestra.statistics.power import Contrast, contrast_of, difference_seen, examples_needed

    for name, percent in (("--disagreement", disagreement), ("--noise", noise)):
        if percent is not None and not 0 <= percent <= 100:
            raise ConfigError(f"{percent:g} is no percentage", where=name, fix="give a number from 0 to 100")
    if disagreement is not None:
        refuse_unused(context, ["against"], "beside --disagreement", "leave one of them out")
    measured, evaluated = None, 0
    if disagreement is None:
        verdicts = read_verdicts(workspace() / EVALUATION / "episodes.jsonl")
        if missing := {TRAINED, against} - set(verdicts):
            known = ", ".join(verdicts)
            raise ConfigError(f"{missing.pop()} was not evaluated", where="--against", fix=f"one of: {known}")
        measured, evaluated = contrast_of(verdicts[TRAINED], verdicts[against]), len(verdicts[TRAINED])
        if measured is None:
            raise ConfigError("no example has both verdicts", where=EVALUATION, fix="give --disagreement 20")
    contrast = measured or Contrast(disagreement=(disagreement or 0) / 100)
    if noise is not None:
        contrast = contrast.model_copy(update={"noise": noise / 100})
    rows: list[tuple[str, ...]] = [("trials", "examples", "attempts of each model")]
    for trials in TRIALS if contrast.noise else TRIALS[:1]:
        needed = examples_needed(contrast, difference / 100, power=power, trials=trials)
        rows.append((str(trials), f"{needed:,}", f"{trials * needed:,}"))
    how = f"measured: {label(TRAINED)} and {label(against)}" if measured else "as given"
    print(f"{difference:g} points, seen with a chance of {100 * power:g} %; paired, 95 % interval")
    print(f"the models disagree on {100 * contrast.disagreement:.1f} % of the examples ({how})")
    print("\n".join(aligned(rows, numbers=True)))
    if measured:
        seen = difference_seen(contrast, evaluated, power=power)
        print(f"the {evaluated:,} examples of the last evaluation show {100 * seen:.1f} points")
    if not contrast.noise:
        print("more trials do not help: the models' own trials are taken to agree (--noise 10 otherwise)")


VersionArgument = Annotated[
    int | None, typer.Argument(metavar="VERSION", help="The version's number; default: the version that waits.")
]
ByOption = Annotated[str | None, typer.Option(metavar="NAME", help="Your name, for the record; default: your login.")]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the record.")]


def approve(version: VersionArgument = None, by: ByOption = None, reason: ReasonOption = "") -> None:
    """Approve a waiting version: it becomes champion and serves."""
    _answer(version, by, reason)


def refuse(version: VersionArgument = None, by: ByOption = None, reason: ReasonOption = "") -> None:
    """Refuse a waiting version: the champion keeps serving."""
    _answer(version, by, reason, refused=True)


def _answer(version: int | None, by: str | None, reason: str, *, refused: bool = False) -> NoReturn:
    workspace()
    name = by if by is not None else _login()
    hand_over("flows", "answer", by=name, reason=reason, refuse=refused, version=version)


def _login() -> str:
    try:
        login = getpass.getuser()
    except (KeyError, OSError):
        login = nameless()
    if login == nameless():  # A container may run as a number that no account has.
        raise ConfigError(f"uid {os.getuid()} has no login", where="--by", fix="--by NAME")
    return login


def explain(
    target: Annotated[
        str, typer.Argument(help="A version, champion, previous, candidate, a run's id, or a gateway's address.")
    ] = "champion",
) -> None:
    """Show the lineage as a tree: decision, evaluation, checkpoint, data, with their hashes."""
    workspace()
    hand_over("tasks.explain", target)


def report(
    version: Annotated[
        int | None, typer.Argument(help="Open this version's last decision; default: the newest decision.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the page's path and open nothing.")] = False,
) -> None:
    """Open the decision page."""
    import webbrowser

    root = workspace()
    file = root / ("reports/decision.html" if version is None else f".state/decisions/{version}.html")
    if not file.is_file():
        what = "nothing was decided yet" if version is None else f"there is no decision about version {version}"
        kept = sorted(int(one.stem) for one in (root / ".state/decisions").glob("*.html") if one.stem.isdigit())
        known = f"one of: {', '.join(map(str, kept))}" if version is not None and kept else "orchestra run"
        raise DataError(what, where=str(file), fix=known)
    print(file)
    if not only_print:
        webbrowser.open(file.as_uri())


def release(
    rollback: Annotated[bool, typer.Option("--rollback", help="Serve the previous champion.")] = False,
    to: Annotated[int | None, typer.Option(metavar="VERSION", help="Serve this version, a former champion.")] = None,
    canary: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="Try it on this share of the traffic first.")
    ] = None,
    shadow: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="Only test it, on copies of this share of the traffic.")
    ] = None,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, kept in MLflow.")] = "",
) -> None:
    """Serve the champion again, the previous champion, or a named version."""
    if rollback and to is not None:
        raise ConfigError("--rollback and --to exclude each other", where="release", fix="leave one out")
    workspace()
    hand_over("flows", "release", rollback=rollback, to=to, canary=canary, shadow=shadow, why=why)


def traces() -> None:
    """Write the gateway's new traces to MLflow, sampled and redacted, and delete old ones there."""
    workspace()
    hand_over("tasks.records.traces")
