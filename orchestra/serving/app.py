"""The gateway's HTTP side: routes, and failures in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from orchestra.errors import OrchestraError
from orchestra.serving.episodes.admission import check_first_turn
from orchestra.serving.page import HEADERS, PAGE
from orchestra.serving.releases.state import SERVING
from orchestra.serving.shared import checks, leases
from orchestra.serving.wire.errors import LEFT, ApiError, CallerLeft, bad_request, from_orchestra
from orchestra.serving.wire.guard import LOCAL_NAMES, RequestGuard
from orchestra.serving.wire.openapi import description
from orchestra.serving.wire.request import MODEL, parse_request
from orchestra.system.processes import url_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from orchestra.serving.backend import Backend
    from orchestra.serving.gateway import Gateway

log = logging.getLogger("orchestra.gateway")
T = TypeVar("T")


def create_app(gateway: Gateway, *, load: bool = True, hosts: Collection[str] = LOCAL_NAMES) -> ASGIApp:
    """The application. `load=False`: the gateway was given its backend."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # In the background: /health answers 503 meanwhile instead of refusing connections.
        tasks = [asyncio.ensure_future(work()) for work in ((gateway.start,) if load else ())]
        tasks.append(asyncio.ensure_future(gateway.watch()))
        tasks.append(asyncio.ensure_future(leases.renew(gateway.store, gateway.answers)))
        yield
        for task in tasks:
            task.cancel()
        gateway.telemetry.close()

    app = FastAPI(title="orchestra", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(OrchestraError, _refused)
    app.add_exception_handler(HTTPException, _unknown)
    app.include_router(_routes(gateway))
    return RequestGuard(ChatFirst(app, gateway), frozenset(map(url_host, hosts)))


@dataclass(frozen=True)
class ChatFirst:
    """An application whose chat completions are answered past its router: what that takes, every turn waits for."""

    app: ASGIApp
    gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", "/v1/chat/completions"):
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await _chat(self.gateway, request)
        except ApiError as error:
            answer = await _refused(request, error)
        await answer(scope, receive, send)


@dataclass(frozen=True)
class ByPort:
    """Another application for requests that arrive at some ports."""

    app: ASGIApp
    others: Mapping[int, ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = (scope.get("server") or (None, 0))[1]
        await self.others.get(port or 0, self.app)(scope, receive, send)


def create_control(gateway: Gateway, token: str) -> ASGIApp:
    """The application of the other port, which only a release on this machine asks, with the token that it read."""
    app = FastAPI(title="orchestra control", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(OrchestraError, _refused)
    app.add_exception_handler(HTTPException, _unknown)

    def check(request: Request) -> None:
        # As bytes: of texts it compares ASCII only, and raises for any other.
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
            raise ApiError(401, "the control port's token is missing", kind="permission_error", code="invalid_token")

    @app.get("/admin/health")
    async def health(request: Request) -> dict[str, Any]:
        check(request)
        return await gateway.health()

    @app.get("/admin/serving")
    async def serving(request: Request) -> dict[str, Any]:
        check(request)
        if gateway.config != SERVING:
            raise ApiError(404, "it serves what no release writes", kind="release_error", code="own_config")
        return gateway.answering.serving.model_dump(mode="json")

    @app.post("/admin/reload")
    async def reload(request: Request) -> dict[str, Any]:
        check(request)
        # Takes no argument: it can only load what the release on this machine wrote.
        try:
            await gateway.load()
        except OrchestraError as error:
            raise ApiError(502, str(error), kind="release_error", code="not_loaded") from None
        return await gateway.health()

    return RequestGuard(app)


def _routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    # `ChatFirst` answers the requests of this path; from here other methods learn that it takes POST alone.
    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _chat(gateway, request)

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        gateway.caller(request.headers.get("authorization", ""))
        return {"object": "list", "data": [await _card(gateway, gateway.active)]}

    @router.get("/v1/models/{name}")
    async def model(name: str, request: Request) -> dict[str, Any]:
        gateway.caller(request.headers.get("authorization", ""))
        backend = gateway.active
        backend.check_model(name)
        return await _card(gateway, backend)

    @router.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(description())

    @router.get("/")
    async def page() -> Response:
        return Response(PAGE.read_bytes(), media_type="text/html; charset=utf-8", headers=HEADERS)

    @router.get("/health")
    async def health() -> JSONResponse:
        found = await gateway.health()
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.telemetry.render(), media_type="text/plain; version=0.0.4")

    return router


async def _card(gateway: Gateway, backend: Backend) -> dict[str, Any]:
    """OpenAI's description of a model, with the lengths that fit, and what it is where it is a demonstration."""
    card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "orchestra", "version": backend.serving.version}
    return {**card, **backend.card(), **await asyncio.to_thread(backend.told, gateway.root)}


async def _chat(gateway: Gateway, request: Request) -> Response:
    """A chat completion, counted under the status that it ends with; a stream counts itself."""
    try:
        answer = await _answer(gateway, request)
    except ApiError as error:
        failure = error
    except OrchestraError as error:
        failure = _logged(request, error)
    except CallerLeft:
        gateway.telemetry.requests.labels(str(LEFT)).inc()
        return Response(status_code=LEFT)
    except Exception:
        log.exception("request %s failed", _id(request))
        failure = ApiError(500, "a bug: see the gateway's log", kind="server_error", code="internal")
    else:
        if not isinstance(answer, StreamingResponse):
            gateway.telemetry.requests.labels("200").inc()
        return answer
    gateway.telemetry.requests.labels(str(failure.status)).inc()
    raise failure


async def _answer(gateway: Gateway, request: Request) -> Response:
    began = time.monotonic()
    # The body first: a release while it arrives must not end the server that this request goes to.
    raw = await request.body()
    caller = gateway.caller(request.headers.get("authorization", ""))
    asked = parse_request(raw)
    if checks.marked(gateway.root, asked.messages, request.headers.get(checks.HEADER, "")):
        caller = replace(caller, checks=True)
    name = request.headers.get("idempotency-key")
    if name is not None and asked.stream:
        raise bad_request("an Idempotency-Key is not supported with stream", "stream", "unsupported_parameter")
    if name is not None and (kept := gateway.answers.begin(caller.owner, name, raw)) is not None:
        return Response(kept, media_type="application/json", headers={"Idempotent-Replayed": "true"})
    try:
        async with contextlib.AsyncExitStack() as held:
            backend = gateway.route(gateway.answering, asked, caller)
            # From here on a release waits for it, before its server ends.
            held.enter_context(backend.working())
            job = replace(await gateway.ready(backend, asked, caller), request_id=_id(request))
            if asked.stream:
                # Before the answer begins: a caller that finds no place or has no dollars is refused by status.
                await _while_there(request, held.enter_async_context(gateway.places.place(job.seconds)))
                price = backend.toolkit.catalogue.policy_price
                await _while_there(request, check_first_turn(job, price, caller.budget))
                return HeldStream(gateway.stream(backend, job, began, caller), held.pop_all())
            answer = JSONResponse(await _while_there(request, gateway.complete(backend, job, began, caller)))
            if name is not None:
                gateway.answers.finish(caller.owner, name, bytes(answer.body))
            return answer
    finally:
        if name is not None:
            gateway.answers.forget(caller.owner, name)


class HeldStream(StreamingResponse):
    """Server-sent events; what they hold is free again when they end, also where nobody reads them."""

    def __init__(self, events: AsyncGenerator[str, None], held: contextlib.AsyncExitStack) -> None:
        # No proxy is to keep events back until it has many.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events, self._held = events, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Closed before the place is free: a server that stops sending leaves them as they are.
        async with self._held, contextlib.aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _while_there(request: Request, work: Awaitable[T]) -> T:
    """The work's result; raises `CallerLeft`, after the work was ended, when the caller hangs up before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CallerLeft
        return task.result()
    finally:
        for one in (task, gone):
            if not one.done():
                one.cancel()
                # Tools that run are told, and end, before the request does.
                await asyncio.wait([one])


def _id(request: Request) -> str:
    """The answer's `x-request-id`, which the guard gives it."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def _logged(request: Request, error: OrchestraError) -> ApiError:
    """What the caller is told; what is not its fault stands in the log."""
    failure = from_orchestra(error)
    if failure.status >= 500:
        log.error("request %s failed: %s", _id(request), error)
    return failure


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, OrchestraError):
        error = _logged(request, error)
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    failure = ApiError(error.status_code, text, kind="invalid_request_error", code="unknown_url")
    # They say which methods there are, where it is none of those.
    return JSONResponse(failure.body, error.status_code, error.headers)
