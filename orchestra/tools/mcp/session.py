"""Sessions with MCP servers: one for each server and event loop, opened at the first call and again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from orchestra.errors import CallError, ToolError
from orchestra.text import without
from orchestra.tools.http_body import MAX_BYTES
from orchestra.tools.mcp.bounds import REQUEST_COUNTS, Quota, fitting, http_client
from orchestra.tools.mcp.spec import McpServer, McpTool, ToolOffer, changed
from orchestra.tools.mcp.stdio import Program

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.message import SessionMessage
    from mcp_types import CallToolResult

log = logging.getLogger("orchestra.tools")
T = TypeVar("T")

OPEN_S = 60.0
"""For a server to start and say what it offers."""
CLOSE_S = 8.0
"""For a session to end: a server need not answer to a goodbye."""
PAUSE_S = 5.0
"""After a server that could not be opened: calls fail at once meanwhile, so that a batch does not wait for each."""
LATE = 2
"""This many calls in a row without an answer in time, and the server is opened again."""
MAX_PAGES = 50
MAX_SAID = 10_000
"""Characters of a server's reason that are looked at."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Changed(ToolError):
    """The server's tool is not the one that was imported; trying again cannot help."""

    retryable = False


class Unanswered(ToolError):
    """The call was sent and no result came: it may be billed all the same."""


class Connection:
    """All sessions with one server. A call is sent once at most: what it did before the server died is not known."""

    def __init__(self, name: str, server: McpServer) -> None:
        """Raises `ConfigError` when a variable of the environment is not set."""
        self.name, self.server = name, server.filled(name)
        self.where = f"MCP server {name}"
        self._secrets = server.secrets(self.server)
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._lock = threading.Lock()
        # What a server sends wrong is a typed error here; the SDK would log it with a traceback.
        for name in ("mcp.client", "mcp.shared", "client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    async def offers(self) -> dict[str, ToolOffer]:
        """What the server offers now, by its names; raises `ToolError`."""
        with hidden(self._secrets):
            return await (await self._session()).offered()

    async def call(self, tool: McpTool, arguments: dict[str, Any], deadline_s: float) -> CallToolResult:
        """The server's result; raises `CallError` for what the model can fix, `ToolError` for the rest."""
        with hidden(self._secrets):
            return await self._call(tool, arguments, deadline_s)

    async def _call(self, tool: McpTool, arguments: dict[str, Any], deadline_s: float) -> CallToolResult:
        session: _Session | None = None
        try:
            async with asyncio.timeout(deadline_s):
                for again in (True, False):
                    session = None
                    session = await self._session()
                    if (why := changed(tool, await session.offered())) is not None:
                        raise Changed(why, where=self.where, fix=f"orchestra tools import-mcp {self.name}")
                    result = await session.ask(tool.tool, arguments, again=again)
                    if result is not None:
                        return result
        except TimeoutError:
            if session is not None:
                session.late += 1
                if session.late >= LATE:
                    session.over.set()
            late = ToolError if session is None else Unanswered
            raise late(f"no answer within {deadline_s:g} s", where=self.where) from None
        raise AssertionError("the second attempt returns or raises")

    async def aclose(self) -> None:
        """End this loop's session, and its server's process with it."""
        session = self._sessions.get(asyncio.get_running_loop())
        if session is not None:
            session.over.set()
            if not session.opened.done():
                session.owner.cancel()
            await asyncio.wait([session.owner])

    async def _session(self) -> _Session:
        """The open session of this event loop; raises `ToolError` when the server cannot be opened."""
        loop = asyncio.get_running_loop()
        with self._lock:
            session = self._sessions.get(loop)
            if session is None or session.ended:
                living = {one: kept for one, kept in self._sessions.items() if not one.is_closed()}
                session = _Session(self.where, self.server, self._secrets)
                self._sessions = {**living, loop: session}
        await asyncio.shield(session.opened)
        if session.failure is not None:
            raise ToolError(session.failure, where=self.where, fix="check its command or url in mcp_servers")
        if session.over.is_set():
            raise ToolError("it ended as soon as it was opened", where=self.where)
        return session


class _Session:
    """One session. A task of its own opens and closes it, since the SDK's scopes must end where they began."""

    def __init__(self, where: str, server: McpServer, secrets: Collection[str]) -> None:
        self.where, self.server, self._secrets = where, server, secrets
        self.over = asyncio.Event()
        """Set when it is to end, or when the server has ended it."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: str | None = None
        """Why it could not be opened."""
        self.failed_at = 0.0
        self.offers: dict[str, ToolOffer] = {}
        self.late = 0
        self._client: Client | None = None
        self.quota = Quota(self.over)
        self._program: Program | None = None
        """The server, where it is a process of ours."""
        self.changes = self._known = 0
        """How often it said that its list of tools changed, and how often when the list was read last."""
        self._asked: set[asyncio.Task[Any]] = set()
        self.owner = asyncio.create_task(self._own(), name=where)

    @property
    def ended(self) -> bool:
        """Whether the next call needs a new session; one that failed to open is left alone for a while."""
        return self.over.is_set() and (self.failure is None or time.monotonic() - self.failed_at > PAUSE_S)

    async def ask(self, tool: str, arguments: dict[str, Any], *, again: bool) -> CallToolResult | None:
        """One call; None when the server has forgotten this session and did nothing (only where `again`)."""
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS, INVALID_REQUEST

        assert self._client is not None
        self.quota.renew()
        try:
            result = await self._apart(self._client.call_tool(tool, arguments))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise CallError(_line(error, self._secrets)) from None
            if error.code == INVALID_REQUEST and "Session terminated" in error.message:
                # A server that was restarted knows no session of before, and says so instead of doing anything.
                self.over.set()
                if again:
                    return None
                raise ToolError(_line(error, self._secrets), where=self.where) from None
            raise Unanswered(self.quota.excess or _line(error, self._secrets), where=self.where) from None
        except Exception as error:
            # Whatever the SDK makes of a server that breaks the protocol.
            raise Unanswered(f"a reply that is none: {_line(error, self._secrets)}", where=self.where) from None
        self.late = 0
        self.quota.renew()
        return result

    async def offered(self) -> dict[str, ToolOffer]:
        """What the server offers; it is asked again when it said that this has changed."""
        if self._known != self.changes:
            assert self._client is not None
            known = self.changes
            try:
                self.offers, self._known = await self._apart(_offers(self._client)), known
            except Exception as error:
                raise ToolError(self.quota.excess or _line(error, self._secrets), where=self.where) from None
        return self.offers

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """In a task of its own: the SDK tells the server of a call that is given up, and may wait seconds for that."""
        task = asyncio.create_task(work)
        self._asked.add(task)
        task.add_done_callback(self._done)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._asked.discard(task)
        if not task.cancelled():
            task.exception()

    def takes(self, item: SessionMessage | Exception) -> bool:
        """Whether one more message of the server's is within its quota."""
        from mcp_types import JSONRPCRequest

        said = None if isinstance(item, Exception) else item.message
        self.changes += getattr(said, "method", None) == "notifications/tools/list_changed"
        return self.quota.takes(0, REQUEST_COUNTS if isinstance(said, JSONRPCRequest) else 1)

    async def _own(self) -> None:
        whole, opening = asyncio.timeout(OPEN_S + CLOSE_S), asyncio.timeout(OPEN_S)
        try:
            async with whole, opening, self._connected() as client:
                self.offers, self._client = await _offers(client), client
                opening.reschedule(None)
                whole.reschedule(None)
                self.opened.set_result(None)
                try:
                    await self.over.wait()
                finally:
                    whole.reschedule(asyncio.get_running_loop().time() + CLOSE_S)
        except Exception as error:
            if not self.opened.done():
                self.failure, self.failed_at = self._why(error), time.monotonic()
                log.warning("%s: %s", self.where, self.failure)
        finally:
            self.over.set()
            if not self.opened.done():
                self.opened.set_result(None)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """A client of the server, by the way that the catalogue names."""
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        async with contextlib.AsyncExitStack() as stack:
            transport: Any
            if self.server.url is None:
                self._program = Program(self.server.command, self.server.env, self.quota)
                transport = self._program.connected()
            else:
                # Not through a proxy that the environment names, where the server is on this machine.
                proxied = urlsplit(self.server.url).hostname not in LOOPBACK
                http = http_client(self.server.headers, self.quota, proxied=proxied)
                await stack.enter_async_context(http)
                transport = streamable_http_client(self.server.url, http_client=http, max_sse_event_size=MAX_BYTES)
            client = await stack.enter_async_context(Client(_watched(transport, self), cache=None))
            vars(client.session)["validate_tool_result"] = _as_it_is
            yield client

    def _why(self, error: Exception) -> str:
        """One line; what the server said last, where it said anything."""
        if isinstance(error, TimeoutError):
            return f"does not answer within {OPEN_S:g} s"
        if self.quota.excess is not None:
            return f"cannot be opened: {self.quota.excess}"
        errors = b"" if self._program is None else self._program.errors
        said = errors.decode(errors="replace").strip().splitlines()
        last = without(said[-1], self._secrets)[:200] if said else ""
        return f"cannot be opened: {last if said else _line(error, self._secrets)}"


async def _as_it_is(name: str, result: CallToolResult) -> None:
    """The SDK would check a result by a schema of the server's, whose regular expressions can run for hours while the
    whole process stands still. We show a result as text, whatever its form."""


class _Ending:
    """A transport's read stream within its quota, that tells when it has ended."""

    def __init__(self, stream: Any, session: _Session) -> None:
        self._stream, self._session = stream, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Ending:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *ending: Any) -> None:
        await self._stream.__aexit__(*ending)

    def __aiter__(self) -> _Ending:
        return self

    async def __anext__(self) -> Any:
        try:
            while True:
                item = await self._stream.__anext__()
                if not self._session.takes(item):
                    raise StopAsyncIteration
                if isinstance(item, Exception) or (item := fitting(item)) is not None:
                    return item
        except BaseException:
            self._session.over.set()
            raise


@contextlib.asynccontextmanager
async def _watched(transport: Any, session: _Session) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (read, write):
        yield _Ending(read, session), write


async def _offers(client: Client) -> dict[str, ToolOffer]:
    """Every tool that the server lists, over all pages."""
    found: dict[str, ToolOffer] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            words = (tool.description or tool.title or "").strip()
            found[tool.name] = ToolOffer(name=tool.name, description=words, parameters=tool.input_schema)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


@contextlib.contextmanager
def hidden(secrets: Collection[str]) -> Iterator[None]:
    """No error says them: a server may repeat what it was sent."""
    try:
        yield
    except ToolError as error:
        error.hide(secrets)
        raise
    except CallError as error:
        raise CallError(without(str(error), secrets)) from None


def _line(error: BaseException, secrets: Collection[str]) -> str:
    """The innermost reason in one short line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return without(" ".join(str(error)[:MAX_SAID].split()), secrets)[:200] or type(error).__name__
