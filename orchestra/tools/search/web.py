"""Web search: a provider knows its API's shapes; sending, deadline, retries and errors are the same for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from orchestra.errors import ToolError
from orchestra.system.environment import required
from orchestra.text import credentials, without
from orchestra.tools.base import ToolContext, ToolResult, note_spent
from orchestra.tools.catalogue.entry import Entry, WebProvider
from orchestra.tools.chat.client import FIXES
from orchestra.tools.chat.retries import RETRIED, PassingError, attempts_made, retry_after_s, retrying
from orchestra.tools.rate_limits import PerLoop, RateLimiter
from orchestra.tools.search.format import Hit, shown
from orchestra.types import Charge, Component

if TYPE_CHECKING:
    from tenacity import RetryCallState


class SearchRefused(ToolError):
    """The provider refuses the key, the plan or the request: asking again cannot help."""

    retryable = False


@dataclass(frozen=True)
class Request:
    """One request to a provider."""

    method: str
    url: str
    headers: dict[str, str]
    params: dict[str, str] | None = None
    """After the address."""
    body: dict[str, JsonValue] | None = None
    """Sent as JSON."""


class SearchProvider(Protocol):
    """A search API's shapes. Another provider is one such class in PROVIDERS, named in `WebProvider`."""

    url: str
    """Where the API is unless the catalogue names a variable that says otherwise."""

    def request(self, url: str, key: str, query: str, count: int, options: Mapping[str, JsonValue]) -> Request:
        """What to send to find at most `count` pages; `options` are the catalogue's, in the API's own words."""
        ...

    def hits(self, reply: Any) -> list[Hit]:
        """What a reply with status 200 holds; anything but a reply of the published shape may raise KeyError,
        TypeError, AttributeError or ValueError."""
        ...

    def complaint(self, reply: Any) -> str:
        """What a reply with another status complains of; raises as `hits` does."""
        ...


class Tavily:
    """Tavily's POST /search, as its API reference describes it (docs.tavily.com; OpenAPI document 1.0.0)."""

    url = "https://api.tavily.com"

    def request(self, url: str, key: str, query: str, count: int, options: Mapping[str, JsonValue]) -> Request:
        # The depth decides the price (basic: one credit, advanced: two), so it is never left to Tavily.
        body: dict[str, JsonValue] = {"query": query, "max_results": count, "search_depth": "basic", **options}
        return Request("POST", f"{url}/search", {"authorization": f"Bearer {key}"}, body=body)

    def hits(self, reply: Any) -> list[Hit]:
        answer = [Hit(title="answer", text=reply["answer"])] if reply.get("answer") else []
        pages = [
            Hit(title=page["title"] or "", url=page["url"], text=page["content"] or "") for page in reply["results"]
        ]
        return answer + pages

    def complaint(self, reply: Any) -> str:
        return str(reply["detail"]["error"])


PROVIDERS: dict[WebProvider, type[SearchProvider]] = {"tavily": Tavily}


@dataclass
class OpenEnds:
    """Requests that were sent and not refused: they may be billed, whether or not their replies came."""

    count: int = 0


class WebSearch:
    """A provider as a tool. One client per event loop, its connections pooled."""

    component = Component.SEARCH
    keeps_deadline = True

    def __init__(
        self,
        name: str,
        provider: SearchProvider,
        *,
        key: str,
        url: str | None = None,
        count: int = 5,
        options: Mapping[str, JsonValue] | None = None,
        deadline_s: float = 30,
        backoff_s: float = 0.5,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.name, self._provider, self._key = name, provider, key
        self._url = (url or provider.url).rstrip("/")
        self._secrets = [one for one in (key, *credentials(self._url)) if one]
        """Never shown, wherever a provider or a library may repeat them."""
        self._count, self._options = count, dict(options or {})
        self._deadline_s, self._backoff_s = deadline_s, backoff_s
        self._limiter = limiter or RateLimiter()
        self._client: PerLoop[Any] = PerLoop(self._connect)

    @classmethod
    def of(cls, name: str, entry: Entry, limiter: RateLimiter) -> WebSearch:
        """The tool of a catalogue entry; raises `ConfigError` where a variable that it names is not set."""
        assert entry.provider is not None and entry.api_key_env is not None
        return cls(
            name,
            PROVIDERS[entry.provider](),
            key=required(entry.api_key_env, tool=name),
            url=required(entry.base_url_env, tool=name) if entry.base_url_env else None,
            count=entry.results,
            options=entry.options,
            deadline_s=entry.deadline_s,
            limiter=limiter,
        )

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """What the web says of `query`, at the price of a call; raises `ToolError`, and `SearchRefused` among them.

        Waiting for the provider's limits is not the search's time.
        """
        open_ends = OpenEnds()
        try:
            async with self._limiter.place():
                await self._limiter.pace()
                return await self._found(str(arguments["query"]), context, open_ends)
        except asyncio.CancelledError as given_up:
            note_spent(given_up, self._lost(open_ends.count, context))
            raise

    async def aclose(self) -> None:
        """Close the pooled connections."""
        client = self._client.pop()
        if client is not None:
            await client.aclose()

    async def _found(self, query: str, context: ToolContext, open_ends: OpenEnds) -> ToolResult:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                hits = await self._search(query, open_ends)
        except (TimeoutError, ToolError) as error:
            late = f"no answer within {self._deadline_s:g} s"
            failure = error if isinstance(error, ToolError) else ToolError(late, where=self.name)
            failure.hide(self._secrets)
            failure.charges = self._lost(open_ends.count, context)
            raise failure from None
        latency_s = round(time.monotonic() - began, 3)
        lost = self._lost(open_ends.count - 1, context)  # All but the one that was answered.
        return ToolResult(text=shown(hits), cost_usd=context.price.per_call, latency_s=latency_s, besides=lost)

    def _lost(self, count: int, context: ToolContext) -> tuple[Charge, ...]:
        name = context.name or self.name
        return (Charge(component=self.component, name=name, cost_usd=context.price.per_call),) * count

    async def _search(self, query: str, open_ends: OpenEnds) -> list[Hit]:
        request = self._provider.request(self._url, self._key, query, self._count, self._options)
        retry = retrying(self._limiter.limits.attempts, self._backoff_s, self._deadline_s, self._pace)
        try:
            return self._hits(await retry(self._once, request, open_ends))
        except PassingError as error:
            what = f"{error} {attempts_made(retry.statistics['attempt_number'])}"
            raise ToolError(what, where=self.name, fix=FIXES.get(error.status, "")) from None

    async def _pace(self, state: RetryCallState) -> None:
        """Another attempt is another request to the provider."""
        await self._limiter.pace()

    async def _once(self, request: Request, open_ends: OpenEnds) -> Any:
        """The reply with status 200."""
        import httpx2

        from orchestra.tools.http_body import BodyError

        open_ends.count += 1
        try:
            response = await self._client.get().request(
                request.method, request.url, headers=request.headers, params=request.params, json=request.body
            )
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.InvalidURL):
                open_ends.count -= 1
            raise PassingError(f"{type(error).__name__}: {error}".rstrip(": ")) from None
        except BodyError as error:
            raise ToolError(str(error), where=self.name, fix="check the address") from None
        except ValueError as error:  # A key or an address that no request can carry.
            open_ends.count -= 1
            raise SearchRefused(
                f"{type(error).__name__}: {error}", where=self.name, fix="check key and address"
            ) from None
        if response.status_code == 200:
            return response
        open_ends.count -= 1
        problem = self._complaint(response)
        if response.status_code in RETRIED:
            raise PassingError(problem, retry_after_s(response.headers.get("retry-after", "")), response.status_code)
        raise SearchRefused(problem, where=self.name, fix="see the provider's documentation of that status")

    def _connect(self) -> Any:
        import httpx2

        from orchestra.tools.http_body import BOUNDED

        return httpx2.AsyncClient(timeout=httpx2.Timeout(self._deadline_s, connect=10), **BOUNDED)

    def _hits(self, response: Any) -> list[Hit]:
        try:
            return self._provider.hits(response.json())
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            what = f"a reply of another shape ({type(error).__name__}: {error})"
            raise ToolError(what, where=self.name, fix="check the address, and the API's version") from None

    def _complaint(self, response: Any) -> str:
        """The status and what the reply says, if anything; never the key, should the reply repeat it."""
        try:
            said = self._provider.complaint(response.json())
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            said = response.text
        said = without(said, self._secrets)[:200]
        return f"HTTP {response.status_code}{': ' + said if said else ''}"
