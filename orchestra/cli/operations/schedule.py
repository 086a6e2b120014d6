"""`orchestra schedule`, `plan`, `sweep`, `notify` and `webhook`: what the engineer sets up before anything runs."""

from typing import Annotated

import typer

from orchestra.cli.common import hand_over, workspace
from orchestra.errors import ConfigError


def schedule(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the schedule; without one: list them.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help='Five fields: "0 3 * * *" is 3 am each day.')] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For its runs only; params.yaml stays as it is."),
    ] = None,
    flow: Annotated[str, typer.Option(help="What to run: retrain, monitor or release.")] = "retrain",
    timezone: Annotated[str, typer.Option(metavar="NAME", help="Of the cron fields: Europe/Berlin.")] = "UTC",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the schedule of that name.")] = False,
) -> None:
    """Run on a schedule: starts Prefect's server, pool and worker, and deploys; or lists, or removes."""
    if name is None and (cron or set_ or remove):
        raise ConfigError(
            "the schedule has no name", where="schedule", fix='orchestra schedule nightly --cron "0 3 * * *"'
        )
    if name is not None and (cron is None) != remove:
        what = "--cron and --remove exclude each other" if remove else "no --cron was given"
        raise ConfigError(what, where="schedule", fix=f'orchestra schedule {name} --cron "0 3 * * *", or --remove')
    workspace()
    options = [] if cron is None else ["--cron", cron, "--timezone", timezone, "--flow", flow]
    options += [word for assignment in set_ or [] for word in ("--set", assignment)]
    hand_over("flows.schedule", *([] if name is None else [name]), *options, *["--remove"] * remove)


def plan(
    from_: Annotated[str | None, typer.Option("--from", metavar="STAGE", help="As if this stage ran again.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As if params.yaml said so.")
    ] = None,
) -> None:
    """Show what a run would do and why, with time and dollars; nothing runs."""
    workspace()
    options = [word for assignment in set_ or [] for word in ("--set", assignment)]
    hand_over("tasks.platform.plan", *(["--from", from_] if from_ else []), *options)


def sweep(
    set_: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE,VALUE", help="Values to try; several: every combination.")
    ],
) -> None:
    """Train and evaluate for every combination of values, in copies of the workspace, and compare them in a table."""
    workspace()
    hand_over("flows", "sweep", *(word for assignment in set_ for word in ("--set", assignment)))


def notify(
    url: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL…", help="A webhook, as Slack's (it gets JSON {text}); or mailto:ADDRESS,ADDRESS."),
    ] = None,
    smtp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The mail server: smtps://USER@HOST, or smtp:// with STARTTLS; password: ORCHESTRA_SMTP_PASSWORD.",
        ),
    ] = None,
    sender: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Who mails are from; default: the mail server's user.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Tell nobody any more.")] = False,
) -> None:
    """Tell webhooks and people of runs that fail, with cause, runbook and command, through Prefect automations."""
    if (not url) != remove:
        raise ConfigError(
            "name an address, or --remove", where="notify", fix="orchestra notify https://hooks.slack.com/…"
        )
    workspace()
    options = [*(["--smtp", smtp] if smtp else []), *(["--sender", sender] if sender else [])]
    hand_over("flows.notify", *(url or []), *options, *["--remove"] * remove)


def webhook(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the webhook; without one: list them.")] = None,
    url: Annotated[str | None, typer.Argument(metavar="URL", help="Who is told; registers or changes it.")] = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="EVENT", help="Of MLflow; default: an alias was set or removed.")
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Send an example now.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Tell it no more.")] = False,
) -> None:
    """Let MLflow's server tell a receiver of moved aliases (champion), signed with ORCHESTRA_WEBHOOK_SECRET."""
    fix = "orchestra webhook NAME URL, NAME --test or NAME --remove"
    if (url is not None) + test + remove != (name is not None):
        raise ConfigError("name one thing to do with one webhook", where="webhook", fix=fix)
    if event and url is None:
        raise ConfigError("events belong to an address", where="--event", fix=fix)
    workspace()
    words = [word for word in (name, url) if word is not None]
    options = [word for one in event or [] for word in ("--event", one)]
    hand_over("tasks.records.webhooks", *words, *options, *["--test"] * test, *["--remove"] * remove)
