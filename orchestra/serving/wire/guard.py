"""What stands before every route: hosts, origins, sizes and seconds, so that no caller can hold up the others."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from orchestra.serving.wire.errors import REQUEST_ID, ApiError, CallerLeft, bad_request, request_id, too_large
from orchestra.serving.wire.request import MAX_BODY
from orchestra.system.processes import url_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
BODY_S = 20.0
"""Seconds that a request's body may take to arrive."""
PROBED = ("/health", "/metrics")
"""What monitors ask by a machine's number, which no web page elsewhere can have a browser do: a page that was loaded
from a name asks by that name, wherever the name leads."""

ABSOLUTE = re.compile(rb"(?i:https?)://(?P<host>[^/]*)(?P<path>/.*)?", re.DOTALL)


@dataclass(frozen=True)
class RequestGuard:
    """An ASGI application around another.

    Every answer has a request id. A request with a foreign host or origin is refused, so that no web page that a person
    visits can ask on their behalf. Bodies are JSON, read here up to their limit, and whole within `BODY_S`.
    """

    app: ASGIApp
    hosts: Collection[str] = LOCAL_NAMES
    """Names that callers may address, as `url_host` writes them; `*` is any."""
    body_s: float = BODY_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = request_id()
        scope.setdefault("state", {})["request_id"] = name

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, name.encode())]
            await send(message)

        try:
            scope = _in_origin_form(scope)
            headers = _headers(scope)
            self._addressed(scope, headers)
            body = await self._body(scope, headers, receive)
        except ApiError as error:
            await _refuse(error, reply)
            return
        except CallerLeft:
            return
        await self.app(scope, _after(body, receive), reply)

    def _addressed(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        probed = scope["method"] == "GET" and scope["path"] in PROBED and (not host or _is_number(name))
        if "*" not in self.hosts and url_host(name) not in self.hosts and not probed:
            what = f"host {name[:80]!r} is not served here: deploy.hosts in params.yaml names those that are"
            raise ApiError(403, what, kind="permission_error", code="foreign_host")
        origin = headers.get("origin")
        same = (f"http://{host}", f"https://{host}")
        crossing = headers.get("sec-fetch-site") == "cross-site" and not _is_followed_link(scope, headers)
        if (origin is not None and origin not in same) or crossing:
            what = f"origin {str(origin)[:80]!r} may not ask here"
            raise ApiError(403, what, kind="permission_error", code="foreign_origin")
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                what = "the Content-Type of a request must be application/json"
                raise ApiError(415, what, kind="invalid_request_error", code="unsupported_media_type")

    async def _body(self, scope: Scope, headers: dict[str, str], receive: Receive) -> bytes:
        """The whole body; raises `ApiError` 413 as soon as it is too long, 408 when it does not arrive in time."""
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            # A proxy before this server may have taken the other for the body's end.
            raise _closing(bad_request("the end of the body is stated in two ways"))
        stated = headers.get("content-length", "0")
        if not stated.isdigit() or int(stated) > MAX_BODY:
            raise _closing(too_large(f"the body has more than {MAX_BODY} bytes"))
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise CallerLeft
                    size += len(message.get("body", b""))
                    if size > MAX_BODY:
                        raise _closing(too_large(f"the body has more than {MAX_BODY} bytes"))
                    parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            what = f"the body did not arrive within {self.body_s:g} s"
            raise _closing(ApiError(408, what, kind="invalid_request_error", code="timeout")) from None
        if size and scope["method"] in ("GET", "HEAD"):
            raise bad_request("a request of this kind has no body")
        return b"".join(parts)


def _is_number(name: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_followed_link(scope: Scope, headers: dict[str, str]) -> bool:
    """Whether a person opens the page from a link elsewhere: it is shown by itself, and asks nothing before they do."""
    said = (scope["method"], scope["path"], headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return said == ("GET", "/", "navigate", "document")


def _in_origin_form(scope: Scope) -> Scope:
    """The same request, where its target is a whole address (`GET http://host/path`): its host stands in place of the
    header's, as RFC 9112 (3.2.2) wants it."""
    found = ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return scope
    raw = found["path"] or b"/"
    headers = [(b"host", found["host"]), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "path": unquote(raw.decode("ascii")), "raw_path": raw, "headers": headers}


def _headers(scope: Scope) -> dict[str, str]:
    """By name; raises `ApiError` for two hosts, of which a proxy may have checked the other."""
    found: dict[str, str] = {}
    for raw_name, raw in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "content-length", "authorization"):
            raise bad_request(f"the header {name} stands twice")
        found[name] = raw.decode("latin-1")
    return found


def _closing(error: ApiError) -> ApiError:
    """The same, after which the connection ends: what else is on it is not read."""
    error.headers["Connection"] = "close"
    return error


def _after(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever the connection says."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return next_message


async def _refuse(error: ApiError, send: Any) -> None:
    body = json.dumps(error.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
