"""A chat endpoint on 127.0.0.1 in front of a real one: recorded, capped and booked, for programs that are not ours."""

import asyncio
import hmac
import json
import secrets
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from pydantic import JsonValue

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of, phase
from orchestra.errors import BudgetError, ConfigError
from orchestra.evaluation.benchmarks.endpoint import SPENT, check_release
from orchestra.evaluation.benchmarks.served import ANY, Served
from orchestra.text import one_line, without
from orchestra.tools.chat.reply import tokens_of
from orchestra.tools.chat.retries import TIMED_OUT
from orchestra.tools.experts.metered import worst_usage
from orchestra.tools.experts.parameters import OutputLimit, with_settings
from orchestra.tools.rate_limits import LimitParameter
from orchestra.tools.replay.cassette import Cassette, scope
from orchestra.types import EXACT, Charge, Component, Price, Record, Usage

MAX_TOKENS = 4096
"""Of one reply, where the request names no limit."""
SAID = 2000
"""Bytes that are read of a refusal."""
DEADLINE_S = 590.0
"""Of a user's reply: a little less than the package's own client waits."""

_TURN = threading.Lock()
"""Of who waits for room under the cap: another thread would take it before it is held."""


class Completion(Record):
    """A recorded reply, as it came."""

    body: dict[str, JsonValue]


class Proxy(ThreadingHTTPServer):
    """Answers `/<token>/<name>/v1/chat/completions`; requests under one name are numbered by themselves.

    As `PaidChat` does, it holds a call's worst case back, and books it where the reply is lost or does not say its
    tokens. A gateway of ours, which has no price, states its dollars.
    """

    daemon_threads = True

    def __init__(
        self,
        url: str,
        key: str,
        price: Price | None,
        budget: Budget,
        cassette: Cassette | None,
        component: Component,
        *,
        max_tokens: int = MAX_TOKENS,
        call_usd: Decimal | None = None,
        release: Served = ANY,
        deadline_s: float = DEADLINE_S,
        limit_parameter: LimitParameter = "max_completion_tokens",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`url`: up to /v1; empty where all is replayed. `max_tokens`: of a reply, where the request names no limit;
        `limit_parameter`: its name there. `settings`: over what a request says; null: not sent.
        `call_usd`: what a gateway may spend on a call. `release`: what a gateway must answer with. `deadline_s`: of a
        reply."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.key, self.price, self.component = url.rstrip("/"), key, price, component
        self.budget, self.cassette, self.max_tokens, self.call_usd = budget, cassette, max_tokens, call_usd
        self.release, self.deadline_s = release, deadline_s
        self.limit = OutputLimit(f"tau2's {component.value}", limit_parameter)
        self.settings = settings or {}
        self.capped: dict[str, BudgetError | ConfigError] = {}
        """By name, why it stopped asking: a reason that the caller must act on."""
        self.cost_usd: dict[str, Decimal] = {}
        """By name, what its calls cost, be they replayed."""
        self.token = secrets.token_urlsafe(32)
        """In every address: other programs of the machine, and pages in a browser, reach the port too."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent where the program was killed while it waited for its reply."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def base(self, name: str) -> str:
        """The address for one attempt."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/{quote(name)}/v1"

    def complete(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """The completion, replayed or asked for; raises `OSError` without a reply, `BudgetError` before the cap and
        `ConfigError` after a reply of another release."""
        body, worst = self._bounded(body)
        slot = None
        if self.cassette is not None:
            with scope(name):
                slot = self.cassette.slot(body, self.release.fingerprint, secrets=[self.key] if self.key else [])
        if slot is not None and slot.found is not None and slot.found.reply is not None:
            said = dict(Completion.model_validate(slot.found.reply).body)
            self._count(name, self._charge(said, worst))
            return said
        with phase(name), self._held(worst.cost_usd):
            try:
                said = self._asked(body)
            except BaseException as error:
                if self._billed(error):
                    self._book(name, worst)
                raise
            self._book(name, self._charge(said, worst))
        if isinstance(said, dict):
            check_release(said.get("orchestra"), self.release.version)
        if slot is not None:
            slot.keep(Completion(body=said))
        return said

    @contextmanager
    def _held(self, worst_usd: Decimal) -> Iterator[None]:
        """Hold it, once there is room beside the calls under way."""
        with ExitStack() as held:
            with _TURN:
                asyncio.run(self.budget.room(worst_usd))
                held.enter_context(self.budget.hold(worst_usd))
            yield

    def _bounded(self, body: dict[str, Any]) -> tuple[dict[str, Any], Charge]:
        """The request with a limit in it, and the most that it can cost."""
        worst = Charge(component=self.component, name=str(body.get("model")), cost_usd=self.call_usd or Decimal(0))
        if self.price is None:
            return body | ({} if self.call_usd is None else {"budget_usd": str(self.call_usd)}), worst
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None:
            limit = self.max_tokens
            body = body | self.limit.of(limit)
        body = with_settings(body, self.settings)
        usage = worst_usage(body, int(limit))
        return body, worst.model_copy(update={"usage": usage, "cost_usd": cost_of(self.price, usage)})

    def _charge(self, said: Any, worst: Charge) -> Charge:
        """What a reply cost; the worst case where it does not say, or not in a form that can be read."""
        try:
            usage = tokens_of(said)
            if self.price is None:
                told = Decimal(str(said["orchestra"]["cost_usd"]))
                return Charge(component=self.component, name=worst.name, usage=usage or Usage(), cost_usd=told)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
            return worst
        if usage is None:
            return worst
        self.limit.check([usage], worst.usage.output_tokens)
        return worst.model_copy(update={"usage": usage, "cost_usd": cost_of(self.price, usage)})

    def _billed(self, error: BaseException) -> bool:
        """Whether a request without a reply may be billed: not one that was refused, or was never sent whole."""
        if isinstance(error, urllib.error.HTTPError):
            return error.code in (SPENT if self.price is None else TIMED_OUT)
        return not isinstance(error, urllib.error.URLError)

    def _book(self, name: str, charge: Charge) -> None:
        self.budget.book(charge)
        self._count(name, charge)

    def _count(self, name: str, charge: Charge) -> None:
        self.cost_usd[name] = EXACT.add(self.cost_usd.get(name, Decimal(0)), charge.cost_usd)

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(f"{self.target}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self.deadline_s) as reply:
            said: dict[str, Any] = json.load(reply)
        return said


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        token, _, path = unquote(self.path).strip("/").partition("/")
        if not hmac.compare_digest(token.encode(), proxy.token.encode()):
            self.send_error(404)
            return
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        name = path.removesuffix("/v1/chat/completions")
        try:
            status, body = 200, proxy.complete(name, json.loads(raw))
        except (BudgetError, ConfigError) as error:
            proxy.capped[name] = error
            status, body = 400, {"error": {"message": one_line(str(error))}}
        except urllib.error.HTTPError as error:
            status, body = error.code, {"error": {"message": _said(error, proxy.key)}}
        except (OSError, ValueError, HTTPException) as error:
            status, body = 502, {"error": {"message": one_line(str(error))}}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def _said(error: urllib.error.HTTPError, key: str) -> str:
    """What an endpoint says of a request that it refuses."""
    try:
        text = error.read(SAID).decode("utf-8", "replace")
    except (OSError, HTTPException):
        text = ""
    return without(one_line(text), [key])[:SAID] or f"HTTP {error.code}"


@contextmanager
def serving(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy while it serves."""
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
