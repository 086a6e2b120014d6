"""`orchestra keys`: API keys of the gateway, each with its own rate and dollars."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestra.cli.common import parse_usd, refuse_unused, workspace
from orchestra.errors import ConfigError
from orchestra.text import aligned, one_line

if TYPE_CHECKING:
    from orchestra.serving.shared.keys import ApiKey, Keys

app = typer.Typer(help="Create, list and revoke API keys of the gateway.", no_args_is_help=True)


NAME_LENGTH = 40
"""Characters of an owner's name that a table shows."""


@dataclass(frozen=True)
class _Open:
    root: Path
    keys: "Keys"


def _open() -> _Open:
    from orchestra.serving.shared.database import STORE, Database
    from orchestra.serving.shared.keys import Keys

    root = workspace()
    return _Open(root, Keys(Database(root / STORE)))


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The key's owner.")],
    per_minute: Annotated[
        int | None, typer.Option(min=1, help="The most requests per minute; default: no limit.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="USD", help="The most dollars per period; default: no limit.")
    ] = None,
    period: Annotated[Literal["day", "month", "total"], typer.Option(help="The period of the budget.")] = "total",
) -> None:
    """Create a key and print it, only this once. From the first key on, every caller needs one."""
    from orchestra.serving.shared.keys import operator_key

    if not name.strip():
        raise ConfigError("a key needs its owner's name", where="NAME", fix="orchestra keys create ada")
    if budget is None:
        refuse_unused(context, ["period"], "without --budget", "add --budget USD, or leave it out")
    opened = _open()
    operator_key(opened.root, opened.keys)
    usd = None if budget is None else parse_usd(budget, "--budget")
    _, secret = opened.keys.create(name, per_minute=per_minute, budget_usd=usd, period=period)
    print(secret)


@app.command("list")
def list_keys(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the keys: their limits, and what each has spent in its present period."""
    found = _open().keys.list()
    if as_json:
        print(json.dumps([key.model_dump(mode="json") for key in found], indent=2))
        return
    rows = [("id", "name", "created", "a minute", "budget", "spent", "requests", "state"), *map(_row, found)]
    print("\n".join(aligned(rows)) if found else "no keys: everybody on this machine may ask")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as shown by `orchestra keys list`.")],
) -> None:
    """Revoke a key: the next request with it is refused. The workspace's own key is replaced."""
    from orchestra.serving.shared.keys import operator_key

    opened = _open()
    key = opened.keys.revoke(key_id)
    operator_key(opened.root, opened.keys)
    print(f"revoked {key.id} ({shortened(key.name)})")


def shortened(name: str) -> str:
    """An owner's name in a table: whoever chose it steers no terminal with it."""
    line = one_line(name)
    return line if len(line) <= NAME_LENGTH else f"{line[: NAME_LENGTH - 1]}…"


def _row(key: "ApiKey") -> tuple[str, ...]:
    budget = "-" if key.budget_usd is None else f"{key.budget_usd:f} USD, {key.period}"
    return (
        key.id,
        shortened(key.name),
        f"{datetime.fromtimestamp(key.created, UTC):%Y-%m-%d}",
        str(key.per_minute or "-"),
        budget,
        f"{key.spent_usd:.6f}",
        str(key.requests),
        "valid" if key.revoked is None else "revoked",
    )
