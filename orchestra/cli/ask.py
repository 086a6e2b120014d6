"""`orchestra ask`, `orchestra chat` and `orchestra mcp`: three ways to the served model."""

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from orchestra.cli.common import parse_usd, workspace
from orchestra.errors import ConfigError
from orchestra.system.progress import while_waiting


def _address(url: str | None) -> str | None:
    """Raises `ConfigError` unless it is an address of HTTP."""
    try:
        parts = urlsplit(url or "http://host")
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port that is none.
        right = False
    if not right:
        raise ConfigError(f"{url!r} is no address", where="--url", fix="write http://HOST:PORT")
    return url if url is None else url.rstrip("/").removesuffix("/v1")  # As clients of OpenAI's API write it.


UrlOption = Annotated[str | None, typer.Option(callback=_address, help="The address of another gateway.")]


def ask(
    question: Annotated[str, typer.Argument(help="The question, in words.")],
    preference: Annotated[str | None, typer.Option(help="cheap, fast, accurate, or your own words.")] = None,
    prefer: Annotated[list[str] | None, typer.Option(metavar="TOOL", help="Offer this tool, and wish for it.")] = None,
    avoid: Annotated[list[str] | None, typer.Option(metavar="TOOL", help="Never call this tool.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="TOOL", help="Call no tools but these.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="USD", help="The most dollars to spend.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="The most turns; default: rollout.max_turns.")] = None,
    domain: Annotated[str | None, typer.Option(help="Offer this domain's tools, over a copy of its database.")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")] = False,
) -> None:
    """Ask the served model; print its tool calls, its answer and the bill."""
    from orchestra.serving import client

    parts = {"words": preference, "prefer": prefer, "avoid": avoid, "tools_allowed": only}
    said = {name: value for name, value in parts.items() if value}
    with while_waiting("the model works"):
        reply = client.ask(
            question,
            said if prefer or avoid or only else preference,
            budget_usd=None if budget is None else parse_usd(budget, "--budget"),
            max_turns=max_turns,
            domain=domain,
            url=url or client.gateway_url(workspace()),
        )
    # JSON in ASCII: exact, and nothing in it steers a terminal.
    print(json.dumps(reply.model_dump(mode="json"), indent=2) if as_json else "\n".join(reply.lines()))
    from orchestra.cli.welcome import welcome

    for line in welcome(workspace(), url):
        print(line, file=sys.stderr)


def chat(
    preference: Annotated[str | None, typer.Option(help="cheap, fast, accurate, or your own words.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="USD", help="The most dollars for one answer.")] = None,
    url: UrlOption = None,
) -> None:
    """Talk with the served model, and see its tool calls and answers as they come."""
    from orchestra.serving import client
    from orchestra.serving.chat import TerminalChat

    root = workspace()
    base, headers, verify = client.access(root, url)
    usd = None if budget is None else f"{parse_usd(budget, '--budget'):f}"
    write = partial(print, end="", flush=True)
    talk = TerminalChat(base, headers, write, preference, usd, verify, goes_on=sys.stdin.isatty())
    talk.greet()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while talk.say(input("> ")):
            pass


def mcp(
    http: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Listen on this port of 127.0.0.1 (0: a free one); default: stdin and stdout.",
        ),
    ] = None,
    url: UrlOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Ask this checkpoint in this process instead of the gateway.")
    ] = None,
) -> None:
    """Run an MCP server with one tool, the orchestrator; it returns answer, cost and calls."""
    import asyncio

    from orchestra.config.schema import load_params
    from orchestra.serving import mcp_server

    if url is not None and checkpoint is not None:
        raise ConfigError("--url and --checkpoint exclude each other", where="mcp", fix="leave one out")
    here, root = Path.cwd(), workspace()
    answerer: mcp_server.Answerer = mcp_server.Deployed(root, url)
    if checkpoint is not None:
        answerer = mcp_server.InProcess.load(root, here / checkpoint, load_params())
    if http is not None:
        mcp_server.serve_http(answerer, http)
    else:
        asyncio.run(mcp_server.serve_stdio(answerer))
