"""`orchestra schedule`, `plan`, `sweep`, `notify` and `webhook`: what the engineer sets up before anything runs."""

from typing import Annotated

import typer

from orchestra.cli.common import check_stages, hand_over, refuse_unused, workspace
from orchestra.errors import ConfigError


def schedule(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The schedule's name; without it: list the schedules.")
    ] = None,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help='Five fields: "0 3 * * *" is 3 am each day.')] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For runs of this schedule only; params.yaml stays as it is."),
    ] = None,
    flow: Annotated[str, typer.Option(help="What to run: retrain, monitor or release.")] = "retrain",
    timezone: Annotated[
        str, typer.Option(metavar="NAME", help="The time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the schedule of that name.")] = False,
) -> None:
    """Run a flow on a schedule (starts Prefect's server, pool and worker), or list or remove schedules."""
    if name is None and (cron or set_ or remove):
        raise ConfigError(
            "the schedule has no name", where="schedule", fix='orchestra schedule nightly --cron "0 3 * * *"'
        )
    if name is not None and (cron is None) != remove:
        what = "--cron and --remove exclude each other" if remove else "no --cron was given"
        raise ConfigError(what, where="schedule", fix=f'orchestra schedule {name} --cron "0 3 * * *", or --remove')
    if cron is None:
        refuse_unused(context, ["set_", "flow", "timezone"], "without --cron")
    workspace()
    named = [] if name is None else [name]
    added = {} if cron is None else {"cron": cron, "timezone": timezone, "flow": flow}
    hand_over("flows.schedule", *named, **added, set=set_, remove=remove)


def plan(
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="Plan as if this stage were forced: one of synthesize … evaluate."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Plan as if params.yaml had this value.")
    ] = None,
) -> None:
    """Show which stages a run would run and why, with time and dollars; nothing runs."""
    check_stages(workspace(), [from_])
    hand_over("tasks.platform.plan", from_=from_ or None, set=set_)


def sweep(
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE,VALUE", help="Values to try; with several keys, every combination."),
    ],
) -> None:
    """Train and evaluate for every combination of values, in copies of the workspace, and compare them in a table."""
    from orchestra.config.overrides import effective, points

    root = workspace()
    for assignments in points(set_):  # Before Prefect starts, which takes a while.
        effective(root / "params.yaml", assignments)
    hand_over("flows", "sweep", set=set_)


def notify(
    context: typer.Context,
    url: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL…", help="A webhook such as Slack's (it gets JSON {text}), or mailto:ADDRESS,…"),
    ] = None,
    smtp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The mail server: smtps://USER@HOST, or smtp:// with STARTTLS; password: ORCHESTRA_SMTP_PASSWORD.",
        ),
    ] = None,
    sender: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The sender of mails; default: the mail server's user.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the automations.")] = False,
) -> None:
    """Send failed runs to webhooks and mailboxes, with cause, runbook and command, through Prefect automations."""
    if (not url) != remove:
        what = "an address and --remove exclude each other" if url else "neither an address nor --remove is given"
        raise ConfigError(what, where="notify", fix="orchestra notify https://hooks.slack.com/…, or --remove")
    if remove:
        refuse_unused(context, ["smtp", "sender"], "beside --remove")
    workspace()
    hand_over("flows.notify", *(url or []), smtp=smtp or None, sender=sender or None, remove=remove)


def webhook(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The webhook's name; without it: list the webhooks.")
    ] = None,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The receiver's address; registers or changes the webhook.")
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="EVENT", help="An event of MLflow; default: an alias was set or removed."),
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Send an example now.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the webhook.")] = False,
) -> None:
    """Let MLflow's server notify a receiver when an alias (champion) moves, signed with ORCHESTRA_WEBHOOK_SECRET."""
    fix = "orchestra webhook NAME URL, NAME --test or NAME --remove"
    if (url is not None) + test + remove != (name is not None):
        raise ConfigError("a webhook needs its name and exactly one action", where="webhook", fix=fix)
    if event and url is None:
        raise ConfigError("--event needs an address", where="--event", fix=fix)
    workspace()
    named = [word for word in (name, url) if word is not None]
    hand_over("tasks.records.webhooks", *named, event=event, test=test, remove=remove)
