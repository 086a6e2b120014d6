"""The gateway's HTTP side: routes, and failures in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from orchestra.errors import OrchestraError
from orchestra.serving import api
from orchestra.serving.api import ApiError

if TYPE_CHECKING:
    from orchestra.serving.gateway import Gateway

log = logging.getLogger("orchestra.gateway")


def create_app(gateway: Gateway, *, load: bool = True) -> FastAPI:
    """The application. `load=False`: the gateway was given its backend."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # In the background: /health answers 503 meanwhile instead of refusing connections.
        loading = asyncio.ensure_future(gateway.start()) if load else None
        yield
        if loading is not None:
            loading.cancel()

    app = FastAPI(title="orchestra", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _unknown)
    app.include_router(_routes(gateway))
    return app


def _routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _chat(gateway, request)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        version = gateway.active.serving.version
        card = {"id": api.MODEL, "object": "model", "created": 0, "owned_by": "orchestra", "version": version}
        return {"object": "list", "data": [card]}

    @router.get("/health")
    async def health() -> JSONResponse:
        found = await gateway.health()
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.telemetry.render(), media_type="text/plain; version=0.0.4")

    @router.post("/admin/reload")
    async def reload() -> dict[str, Any]:
        # Takes no argument: it can only load what the release on this machine wrote.
        try:
            await gateway.load()
        except OrchestraError as error:
            raise ApiError(502, str(error), kind="release_error", code="not_loaded") from None
        return await gateway.health()

    return router


async def _chat(gateway: Gateway, request: Request) -> Response:
    """A chat completion, counted under the status that it ends with; a stream counts itself."""
    try:
        reply = await _answer(gateway, request)
    except ApiError as error:
        failure = error
    except OrchestraError as error:
        failure = api.from_orchestra(error)
    except Exception:
        log.exception("a request failed")
        failure = ApiError(500, "a bug: see the gateway's log", kind="server_error", code="internal")
    else:
        if not isinstance(reply, StreamingResponse):
            gateway.telemetry.requests.labels("200").inc()
        return reply
    gateway.telemetry.requests.labels(str(failure.status)).inc()
    raise failure


async def _answer(gateway: Gateway, request: Request) -> Response:
    began = time.monotonic()
    # The body first: a release while it arrives must not end the server that this request goes to.
    raw = await request.body()
    backend = gateway.active
    asked = api.parse_request(raw)
    if asked.model not in (api.MODEL, backend.serving.version):
        message = f"no model named {asked.model[:80]}; there is: {api.MODEL}"
        raise ApiError(404, message, kind="invalid_request_error", code="model_not_found", param="model")
    job = backend.job(asked)
    if asked.stream:
        return StreamingResponse(gateway.stream(backend, job, began), media_type="text/event-stream")
    return JSONResponse(await gateway.complete(backend, job, began))


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, {"Retry-After": "5"} if error.status == 503 else None)


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    failure = ApiError(error.status_code, text, kind="invalid_request_error", code="unknown_url")
    return JSONResponse(failure.body, error.status_code)
