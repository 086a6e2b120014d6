"""`orchestra mcp`: the orchestrator as a tool of an MCP server, over stdio or streamable HTTP on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestra import __version__
from orchestra.errors import ConfigError, OrchestraError, PlainFormatter, ServiceError
from orchestra.serving import client
from orchestra.serving.client import AskResponse
from orchestra.system.processes import LOCALHOST, server_socket

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp_types import CallToolResult

    from orchestra.config.schema import Params
    from orchestra.serving.backend import Backend

TOOL = "orchestrate"
DESCRIPTION = (
    "Solves a task with tools and larger models at a fraction of their cost, and says what it called and what that "
    "cost. Give the whole task: it knows nothing of this conversation."
)
TOLD_S = 10.0
"""Seconds between two notifications of progress."""


class Ask(BaseModel):
    """The tool's arguments."""

    model_config = ConfigDict(extra="forbid")

    question: Annotated[str, Field(min_length=1, max_length=20_000, description="The task, whole.")]
    preference: Annotated[
        str | None, Field(max_length=500, description="cheap, fast, accurate, or the user's own words.")
    ] = None
    budget_usd: Annotated[
        Decimal | None, Field(ge=0, allow_inf_nan=False, description="Dollars; a call that could cross it is not made.")
    ] = None
    max_turns: Annotated[int | None, Field(gt=0, description="Fewer turns than it would take.")] = None
    domain: Annotated[str | None, Field(description="Offer this domain's tools, over a copy of its database.")] = None


class Answerer(Protocol):
    """The side that answers a question: the deployed gateway, or a checkpoint in this process."""

    async def ask(self, asked: Ask) -> AskResponse:
        """The answer and its price; raises `OrchestraError`."""
        ...


@dataclass(frozen=True)
class Deployed:
    """The gateway: at `url`, or whichever serves in the workspace when it is asked."""

    root: Path
    url: str | None = None

    async def ask(self, asked: Ask) -> AskResponse:
        return await client.ask_async(
            asked.question,
            asked.preference,
            budget_usd=asked.budget_usd,
            max_turns=asked.max_turns,
            domain=asked.domain,
            root=self.root,
            url=self.url,
        )


@dataclass(frozen=True)
class InProcess:
    """A checkpoint in this process."""

    backend: Backend

    @classmethod
    def load(cls, root: Path, folder: Path, params: Params) -> Self:
        """Read the checkpoint and everything a question needs; raises `OrchestraError`."""
        from orchestra.files.checkpoint import hash_dir
        from orchestra.serving.backend import Backend
        from orchestra.serving.releases.state import Serving, gateway_code, serving_fingerprint

        if not (folder / "config.json").is_file():
            raise ConfigError("no checkpoint here", where=str(folder), fix="name a folder such as models/grpo")
        found = hash_dir(folder)
        serving = Serving(
            version=folder.name,
            checkpoint=os.path.relpath(folder, root),
            checkpoint_hash=found,
            engine="in_process",
            params=params.model_dump(mode="json", by_alias=True),
            fingerprint=serving_fingerprint(root, found, "in_process", params),
            code=gateway_code(params.deploy),
        )
        return cls(Backend.load(root, serving))

    async def ask(self, asked: Ask) -> AskResponse:
        from orchestra.serving.wire import reply
        from orchestra.serving.wire.errors import ApiError
        from orchestra.serving.wire.messages import ChatMessage
        from orchestra.serving.wire.request import ChatRequest

        began = time.monotonic()
        options = asked.model_dump(exclude={"question"})
        request = ChatRequest(messages=[ChatMessage(role="user", content=asked.question)], **options)
        try:
            job = self.backend.job(request)
        except ApiError as error:
            raise ConfigError(error.message) from None
        episode = await self.backend.run(job)
        made = self.backend.report(job, episode, time.monotonic() - began)
        refused = reply.refusal(episode, made)
        if refused is not None and refused.kind != "model_error":
            raise ServiceError(refused.message, where=self.backend.serving.version)
        return AskResponse.of(asked.question, episode.answer or "", made)


def build(answerer: Answerer) -> Server[Any]:
    """The server: one tool, whose result is the answer and the account as text, and the whole reply as data."""
    from mcp.server import Server
    from mcp_types import ListToolsResult, Tool

    tool = Tool(
        name=TOOL,
        description=DESCRIPTION,
        input_schema=Ask.model_json_schema(),
        output_schema=AskResponse.model_json_schema(),
    )

    async def listed(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    async def called(context: Any, params: Any) -> CallToolResult:
        if params.name != TOOL:
            return failed(f"no tool named {params.name[:60]}; there is: {TOOL}")
        try:
            asked = Ask.model_validate(params.arguments or {})
            async with _progress(context.session):
                return result(await answerer.ask(asked))
        except ValidationError as error:
            first = error.errors()[0]
            return failed(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except OrchestraError as error:
            return failed(str(error))

    return Server("orchestra", version=__version__, on_list_tools=listed, on_call_tool=called)


@contextlib.asynccontextmanager
async def _progress(session: Any) -> AsyncIterator[None]:
    """Say within the block how long it has taken, to a client that wants to hear it: real experts take minutes, and
    many clients give up a call that is silent for one."""
    began = time.monotonic()

    async def tell() -> None:
        while True:
            await asyncio.sleep(TOLD_S)
            spent = time.monotonic() - began
            await session.report_progress(spent, message=f"working on it ({spent:.0f} s)")

    telling = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        telling.cancel()
        # One that failed has no client any more, which the answer will find as well.
        await asyncio.gather(telling, return_exceptions=True)


def result(reply: AskResponse) -> CallToolResult:
    """Answer, then calls and bill; an error where a limit came before an answer."""
    from mcp_types import CallToolResult, TextContent

    account = [line.strip() for line in reply.lines() if not line.startswith(("Q: ", "A: "))]
    texts = (reply.answer or f"no answer ({reply.stop})", "\n".join(account))
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=reply.model_dump(mode="json"),
        is_error=not reply.answer,
    )


def failed(why: str) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=f"error: {why}")], is_error=True)


def keep_log() -> None:
    """Write warnings and tracebacks to standard error, which a client may keep, without a secret."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


async def serve_stdio(answerer: Answerer) -> None:
    """Serve one client over stdin and stdout until it hangs up."""
    from mcp.server.stdio import stdio_server

    keep_log()
    server = build(answerer)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_http(answerer: Answerer, port: int) -> None:
    """Serve on 127.0.0.1 until told to end; 0 is any free port. Raises `ServiceError` when the port is taken."""
    import uvicorn

    keep_log()
    app = build(answerer).streamable_http_app(host=LOCALHOST)
    listening = server_socket()
    try:
        listening.bind((LOCALHOST, port))
        # Before the address is told: who connects at once waits for us.
        listening.listen()
    except OSError as error:
        raise ServiceError(f"port {port}: {error.strerror}", where=LOCALHOST, fix="give another --http") from None
    print(f"MCP server at http://{LOCALHOST}:{listening.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listening])
