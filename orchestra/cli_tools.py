"""`orchestra tools`: what can be called here and at what price, and tools of MCP servers for the catalogue."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli_describe import describe
from orchestra.cli_values import parse_date, parse_usd
from orchestra.errors import ConfigError

if TYPE_CHECKING:
    from orchestra.tools.mcp.spec import McpServer

app = typer.Typer(help="What can be called, at what price, and more of it.", no_args_is_help=True)
app.command()(describe)


@app.command("list")
def list_(
    as_of: Annotated[str | None, typer.Option(metavar="DATE", help="Prices of that day; default: today.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Every tool: kind, provider, price, latency, and whether it is available here or what is missing."""
    from orchestra.cli import workspace
    from orchestra.config import load_params
    from orchestra.tools.availability import survey, table
    from orchestra.tools.prices import PriceBook
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
    name: Annotated[str, typer.Argument(help="What the catalogue calls the server.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="-- PROGRAM ARGUMENTS: a server on stdin and stdout.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Or its address, for streamable HTTP.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="Pass a variable on; VALUE may be ${OURS}.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="E.g. 'authorization=Bearer ${TOKEN}'.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="Only these; default: those there are already, or all.")
    ] = None,
    per_call: Annotated[str, typer.Option(metavar="USD", help="Price of a call, where there is none yet.")] = "0",
    latency: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Expected of new tools.")] = 1.0,
) -> None:
    """Write tools of an MCP server into the catalogue, with its schemas and words as they are now."""
    from orchestra.cli import workspace
    from orchestra.config import load_params
    from orchestra.tools.mcp.freeze import Freezer
    from orchestra.tools.mcp.session import Connection
    from orchestra.tools.mcp.spec import Offer
    from orchestra.tools.toolkit import Toolkit

    root = workspace()
    world = load_params().world
    toolkit = Toolkit.of(world, root)
    server = _server(name, command or [], url, env or [], header or [], toolkit.catalogue.mcp_servers.get(name))

    async def offers() -> dict[str, Offer]:
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


def _server(
    name: str, command: list[str], url: str | None, env: list[str], headers: list[str], known: McpServer | None
) -> McpServer:
    """How the options say that the server is reached; as the catalogue says where they say nothing."""
    from pydantic import ValidationError

    from orchestra.tools.mcp.spec import McpServer

    if not (command or url):
        if known is None or env or headers:
            raise ConfigError("how is it reached?", where=f"MCP server {name}", fix="give --url URL or -- PROGRAM …")
        return known
    try:
        return McpServer(
            command=tuple(command),
            url=url,
            env={key: value or f"${{{key}}}" for key, _, value in (item.partition("=") for item in env)},
            headers={key.strip(): value.strip() for key, _, value in (item.partition("=") for item in headers)},
        )
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"], where=f"MCP server {name}", fix="see --help") from None
