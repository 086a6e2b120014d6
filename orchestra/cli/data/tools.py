"""`orchestra tools`: list the tools with their prices, import tools of MCP servers, describe experts."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.common import (
    can_be_written,
    parse_date,
    parse_usd,
    refuse_unused,
    spend_alone,
    tell_beside_run,
    workspace,
)
from orchestra.errors import ConfigError, DataError

if TYPE_CHECKING:
    from orchestra.tools.mcp.spec import McpServer
    from orchestra.types import Example

app = typer.Typer(help="List, import and describe tools.", no_args_is_help=True)


@app.command("list")
def list_(
    as_of: Annotated[
        str | None, typer.Option(metavar="DATE", help="Use the prices of that day; default: today.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every tool with kind, provider, price and latency, and what it lacks on this machine."""
    from orchestra.config.schema import load_params
    from orchestra.tools.catalogue.price_book import PriceBook
    from orchestra.tools.reports.availability import survey, table
    from orchestra.tools.toolkit import Toolkit

    root = workspace()
    day = date.today() if as_of is None else parse_date(as_of)
    params = load_params()
    book = PriceBook.load(root / params.world.prices)
    rows = asyncio.run(survey(Toolkit.from_params(params, root), book, day))
    if as_json:
        found = {"as_of": day.isoformat(), "tools": [row.model_dump(mode="json") for row in rows]}
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n".join(table(rows, day)))


@app.command("import-mcp")
def import_mcp(
    name: Annotated[str, typer.Argument(help="The server's name in the catalogue.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="-- PROGRAM ARGUMENTS: a server on stdin and stdout.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The server's address, for streamable HTTP.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Set a variable for the program; VALUE may be ${OURS}."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Send a header: 'authorization=Bearer ${TOKEN}'.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="Import only these tools; default: those in the catalogue, or all.")
    ] = None,
    per_call: Annotated[str, typer.Option(metavar="USD", help="The price of a call, if the tool has none yet.")] = "0",
    latency: Annotated[
        float, typer.Option(min=0, max=86_400, metavar="SECONDS", help="The expected seconds of new tools.")
    ] = 1.0,
) -> None:
    """Write an MCP server's tools into the catalogue, with their present schemas and descriptions."""
    from orchestra.config.schema import load_params
    from orchestra.tools.catalogue.import_mcp import Freezer
    from orchestra.tools.mcp.session import Connection
    from orchestra.tools.mcp.spec import ToolOffer
    from orchestra.tools.toolkit import Toolkit

    root = workspace()
    world = load_params().world
    toolkit = Toolkit.of(world, root)
    server = _server(name, command or [], url, env or [], header or [], toolkit.catalogue.mcp_servers.get(name))

    async def offers() -> dict[str, ToolOffer]:
        connection = Connection(name, server)
        try:
            return await connection.offers()
        finally:
            await connection.aclose()

    freezer = Freezer(root / world.catalogue, root / world.prices, world.price_date)
    reserved = {tool for domain in world.domains for tool in toolkit.domain(domain).tools}
    said = freezer.freeze(
        name,
        server,
        asyncio.run(offers()),
        tool or [],
        per_call=parse_usd(per_call, "--per-call"),
        latency_s=latency,
        reserved=reserved,
    )
    print("\n".join(said) or f"{name}: unchanged")


@app.command()
def describe(
    context: typer.Context,
    expert: Annotated[list[str] | None, typer.Argument(help="Names of experts in the catalogue.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every expert of the catalogue.")] = False,
    examples: Annotated[int, typer.Option(min=1, help="Number of training examples to run each on.")] = 40,
    seed: Annotated[int, typer.Option(help="The seed of the draw.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="The examples to draw from; default: data/validated/train.jsonl.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=can_be_written, help="The folder of outcomes, ledger and cassette; default: work/describe."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that writes descriptions; default: a template over the measured figures."),
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="The model's row in the price book.")
    ] = None,
    cap_usd: Annotated[str, typer.Option(metavar="USD", help="The most dollars to spend.")] = "1",
    write: Annotated[
        bool, typer.Option("--write", help="Write measurements and descriptions into the catalogue.")
    ] = False,
) -> None:
    """Run experts on sampled training examples; measure skill, dollars and seconds by topic, and describe them."""
    from orchestra.accounting.budget import Budget
    from orchestra.config.schema import load_params
    from orchestra.synthesis.writers.endpoint import writing_chat
    from orchestra.system.progress import while_waiting
    from orchestra.tools.catalogue.measured import ExpertMeasurement, write_measured
    from orchestra.tools.replay.cassette import Cassette
    from orchestra.tools.reports import describe as measuring
    from orchestra.tools.toolkit import Toolkit
    from orchestra.types import ToolKind

    if model is None:
        refuse_unused(context, ["price"], "without --model", "name one: --model NAME, or leave it out")
    here, root = Path.cwd(), workspace()
    params, folder = load_params(root / "params.yaml"), root / "work/describe" if out is None else here / out
    source = root / "data/validated/train.jsonl" if data is None else here / data
    cap = parse_usd(cap_usd, "--cap-usd")
    spend_alone(context, folder)
    budget = Budget(folder / "ledger.jsonl", cap, "describe")
    toolkit = Toolkit.from_params(params, root, budget=budget, cassette=Cassette(folder / "cassette.jsonl", "auto"))
    names = _experts_named(expert or [], toolkit.catalogue.names(ToolKind.EXPERT), all_=all_)
    drawn = measuring.sample(_checked_by_rule(source), examples, seed)
    catalogue = root / params.world.catalogue
    if write:
        tell_beside_run(root, catalogue)

    async def measured() -> dict[str, tuple[ExpertMeasurement, str]]:
        chat = writing_chat(params.world, root, model, price, budget) if model is not None else None
        try:
            return await measuring.measure(names, drawn, toolkit, folder, date.today(), chat, print)
        finally:
            await toolkit.aclose()
            if chat is not None:
                await chat.aclose()

    files = [folder / f"{name}.jsonl" for name in names]

    def ended() -> int:
        return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())

    earlier, most = ended(), len(files) * len(drawn)  # Fewer where an earlier command asked some already.
    with while_waiting(lambda: f"{ended() - earlier} of at most {most} calls have ended"):
        found = asyncio.run(measured())
    print(f"booked in {folder.name}/{budget.path.name}, lost replies too: {budget.summary()}")
    if write:  # First, since they were paid for and need no line to be found.
        file = write_measured(catalogue, toolkit.catalogue.entries, {name: known for name, (known, _) in found.items()})
        print(f"measurements written to {file.relative_to(root)}")
    text, descriptions = catalogue.read_text(encoding="utf-8"), {name: said for name, (_, said) in found.items()}
    for name, description in descriptions.items():
        _, before, now = measuring.with_description(text, name, description)
        print(f"{name}:\n- {before.strip()}\n+ {now.strip()}")
    if write:
        measuring.write(catalogue, descriptions)
        print(f"descriptions written to {params.world.catalogue}")


def _experts_named(named: list[str], every: list[str], *, all_: bool) -> list[str]:
    """The experts to describe, each once: one that is named twice would be paid for twice."""
    if all_ and named:
        raise ConfigError(
            "--all takes every expert, and some are named", where="describe", fix="leave one of the two out"
        )
    names = every if all_ else list(dict.fromkeys(named))
    if not names:
        raise ConfigError("no expert is named", where="describe", fix="name some, or all: --all")
    return names


def _checked_by_rule(source: Path) -> list[Example]:
    """The file's examples but those that only a judge can check: none is asked, so these would be paid for in vain."""
    from orchestra.files.jsonl import read_jsonl
    from orchestra.types import Example

    there = read_jsonl(source, Example, fix="run the validate stage")
    checked = [one for one in there if one.verifier.kind != "judge"]
    if there and not checked:
        what = "only a judge can check the answers to these examples, and describe asks none"
        raise DataError(what, where=str(source), fix="name examples with short answers: --data")
    return checked


def _server(
    name: str, command: list[str], url: str | None, env: list[str], headers: list[str], known: McpServer | None
) -> McpServer:
    """How the options say that the server is reached; as the catalogue says where they say nothing."""
    from pydantic import ValidationError

    from orchestra.tools.mcp.spec import McpServer

    if not (command or url):
        if known is None or env or headers:
            raise ConfigError(
                "no address and no program", where=f"MCP server {name}", fix="give --url URL or -- PROGRAM …"
            )
        return known
    if any("=" not in item for item in headers):
        raise ConfigError("a --header has no =", where=f"MCP server {name}", fix="write NAME=VALUE")
    try:
        return McpServer(
            command=tuple(command),
            url=url,
            env={key: value or f"${{{key}}}" for key, _, value in (item.partition("=") for item in env)},
            headers={key.strip(): value.strip() for key, _, value in (item.partition("=") for item in headers)},
        )
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"], where=f"MCP server {name}", fix="see --help") from None
