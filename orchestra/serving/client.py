"""Asking what serves: one question over HTTP, the answer with its tool calls, dollars and seconds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import httpx
from pydantic import ConfigDict, JsonValue

from orchestra.config.deploy import GatewayLimits
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.serving.releases.control_channel import gateways
from orchestra.serving.shared.checks import mark
from orchestra.serving.shared.keys import own_key
from orchestra.text import is_text, one_line, plain
from orchestra.types import Record

PATH = "/v1/chat/completions"
Wish = str | Mapping[str, Any]
"""A preference: its words, or the fields of `orchestra.serving.wire.request.PreferenceSpec`."""
TIMEOUT_S = GatewayLimits().patience_s
"""Seconds that an answer may take, of a gateway whose settings are not known."""
CONNECT_S = 10.0
"""Seconds until a gateway takes a connection."""
CARD_TIMEOUT_S = 10.0
KEY_FIX = "set ORCHESTRA_API_KEY; in the gateway's own workspace: orchestra keys create NAME"
MALFORMED = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What a body raises where it is read as what it is not; pydantic's error is a ValueError."""


class Called(Record):
    """One tool call."""

    name: str
    arguments: dict[str, JsonValue]
    observation: str | None
    """None when the call was not made (the budget) or the tool failed."""
    cost_usd: float
    latency_s: float

    @property
    def result(self) -> str:
        """What came back, in one line: a call that failed may cost dollars, one that was not made costs none."""
        missing = "failed" if self.cost_usd else "not called"
        return missing if self.observation is None else one_line(self.observation)


class AskResponse(Record):
    """An answer and what it took."""

    question: str
    answer: str
    """Empty when a limit came first or the model failed: `stop` says which."""
    tool_calls: tuple[Called, ...]
    cost_usd: float
    latency_s: float
    """The ledger's seconds: listed latency of the tools."""
    wall_s: float
    engine: str
    version: str
    simulated: bool
    stop: str
    trace_id: str

    @classmethod
    def of(cls, question: str, text: str, made: dict[str, Any]) -> Self:
        """From an answer's text and the `orchestra` object beside it (see `orchestra.serving.wire.reply.report`)."""
        wanted = ("cost_usd", "latency_s", "wall_s", "engine", "version", "simulated", "stop", "trace_id")
        return cls(
            question=question,
            answer=text,
            tool_calls=tuple(Called.model_validate(call) for call in made["tool_calls"]),
            **{key: made[key] for key in wanted},
        )

    def lines(self) -> list[str]:
        """Plain lines for a person; no text of a model or tool in them can steer the terminal."""
        shown = [f"Q: {plain(self.question)}"]
        for call in self.tool_calls:
            arguments = one_line(", ".join(f"{key}={value!r}" for key, value in call.arguments.items()))
            shown.append(f"   {one_line(call.name)}({arguments[:100]}) → {call.result[:120]}  [${call.cost_usd:.6f}]")
        shown.append(f"A: {plain(self.answer) or f'no answer ({one_line(self.stop)})'}")
        calls = "1 tool call" if len(self.tool_calls) == 1 else f"{len(self.tool_calls)} tool calls"
        simulated = ", simulated experts" if self.simulated else ""
        bill = f"{calls}, ${self.cost_usd:.6f}, {self.latency_s:.1f} s by the ledger, {self.wall_s:.1f} s by the clock"
        return [*shown, f"   {bill}; version {one_line(self.version)}, {one_line(self.engine)}{simulated}"]


class ModelCard(Record):
    """What a gateway says of its model; every other field of its card is left out."""

    model_config = ConfigDict(extra="ignore")

    notice: str | None = None
    """What the model is, where it is a demonstration."""
    to_try: tuple[str, ...] = ()
    strongest_expert: str | None = None

    def notes(self, written: Callable[[str], str] = str) -> list[str]:
        """Plain lines for a newcomer; `written`: how a question is asked here. None without a notice."""
        if self.notice is None:
            return []
        return [f"note: {one_line(text)[:500]}" for text in (self.notice, *(f"try: {written(q)}" for q in self.to_try))]


def charged(body: dict[str, Any]) -> str:
    """The end of a failure's message where the account beside the error has dollars."""
    spent = (body.get("orchestra") or {}).get("cost_usd")
    return f"; ${spent:.6f} was charged" if spent else ""


def refused(status: int, message: str, base: str) -> OrchestraError:
    """The failure of a request that a gateway answered with an error."""
    if status >= 500:
        return ServiceError(message, where=base, fix="try again; if it stays, see .state/logs/gateway.log")
    return ConfigError(message, where=base, fix=KEY_FIX if status == 401 else "")


def gateway_url(root: Path) -> str:
    """ORCHESTRA_URL, or that of this workspace's running gateway; raises `ServiceError` when there is none."""
    url = os.environ.get("ORCHESTRA_URL", "").rstrip("/")
    found = [gateway.url for gateway in gateways(root)]
    if url or found:
        return url or found[0]
    raise ServiceError("nothing serves here", where=str(root), fix="make pipeline, or: orchestra release")


def access(root: Path, url: str | None = None) -> tuple[str, dict[str, str], bool]:
    """The gateway's address, the header with a key, and whether to check its certificate.

    The key is ORCHESTRA_API_KEY or, for this workspace's own gateway, that of its own commands. The certificate of a
    gateway on this machine names another host, so it is not checked.
    """
    base = (url or gateway_url(root)).rstrip("/")
    if not base.lower().startswith(("http://", "https://")):
        what = "a gateway's address begins with http:// or https://"
        named = one_line(base)[:200]
        raise ConfigError(what, where=named, fix=f"write http://{named.rpartition('//')[2]}")
    own = base in {gateway.url for gateway in gateways(root)}
    key = os.environ.get("ORCHESTRA_API_KEY") or (own_key(root) if own else None)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("a character in it is in no key", where="ORCHESTRA_API_KEY", fix="set the key again")
    return base, {} if key is None else {"Authorization": f"Bearer {key}"}, not own


def patience_s(root: Path, *, own: bool) -> float:
    """Seconds after which a gateway has ended a request itself: as was released here, where it is `own`."""
    from orchestra.serving.releases.state import SERVING, read

    with contextlib.suppress(OrchestraError):
        if own and (serving := read(root / SERVING)) is not None:
            return serving.parsed.deploy.gateway.patience_s
    return TIMEOUT_S


def ask(
    question: str,
    preference: Wish | None = None,
    *,
    budget_usd: Decimal | None = None,
    max_turns: int | None = None,
    domain: str | None = None,
    root: Path | str | None = None,
    url: str | None = None,
    timeout_s: float | None = None,
    check: bool = False,
) -> AskResponse:
    """Ask the gateway at `url` (default: this workspace's); a `check` is the workspace's own question, no user's.

    It may take `timeout_s`, by default until the gateway ends it itself. Raises `ConfigError` when the request is at
    fault, `ServiceError` when a server or tool is. A model that could not answer is a reply without an answer.
    """
    root = Path(root or Path.cwd())
    base, headers, verify = access(root, url)
    if check:
        headers |= mark(root, question)
    body = _body(question, preference, budget_usd, max_turns, domain)
    with connected(base, verify, timeout_s or patience_s(root, own=not verify)) as http:
        answer = http.post(base + PATH, json=body, headers=headers)
    return _read(question, base, answer)


async def ask_async(
    question: str,
    preference: Wish | None = None,
    *,
    budget_usd: Decimal | None = None,
    max_turns: int | None = None,
    domain: str | None = None,
    root: Path | None = None,
    url: str | None = None,
) -> AskResponse:
    """The same in an event loop. Cancelled, it hangs up, and the gateway ends the work."""
    root = root or Path.cwd()
    base, headers, verify = await asyncio.to_thread(access, root, url)
    answer_s = await asyncio.to_thread(patience_s, root, own=not verify)
    body = _body(question, preference, budget_usd, max_turns, domain)
    with _reached(base):
        async with httpx.AsyncClient(timeout=_timeout(answer_s), trust_env=False, verify=verify) as http:
            answer = await http.post(base + PATH, json=body, headers=headers)
    return _read(question, base, answer)


def model_card(base: str, headers: dict[str, str], verify: bool) -> ModelCard:
    """What serves there, for the three parts of `access`; raises `ServiceError`."""
    with connected(base, verify, CARD_TIMEOUT_S) as http:
        answer = http.get(f"{base}/v1/models", headers=headers)
    try:
        return ModelCard.model_validate(answer.json()["data"][0])
    except MALFORMED:
        what = f"HTTP {answer.status_code} with a body that is no list of models"
        raise ServiceError(what, where=base, fix="is it the orchestra gateway?") from None


def _timeout(answer_s: float) -> httpx.Timeout:
    return httpx.Timeout(answer_s, connect=CONNECT_S)


@contextlib.contextmanager
def connected(base: str, verify: bool, timeout_s: float = TIMEOUT_S) -> Iterator[httpx.Client]:
    """A client of the gateway; raises `ServiceError` where the request inside finds no server."""
    # Not through a proxy that the environment names: the gateway is on this machine. Its own certificate names another
    # host.
    with _reached(base), httpx.Client(timeout=_timeout(timeout_s), trust_env=False, verify=verify) as http:
        yield http


def _body(
    question: str, preference: Wish | None, budget_usd: Decimal | None, max_turns: int | None, domain: str | None
) -> dict[str, Any]:
    wish = preference if isinstance(preference, str) else json.dumps(preference, ensure_ascii=False)
    if not all(map(is_text, (question, wish, domain or ""))):
        raise ConfigError("half a surrogate pair is no text", where="the request", fix="leave that character out")
    budget = None if budget_usd is None else str(budget_usd)
    optional = {"preference": preference, "budget_usd": budget, "max_turns": max_turns, "domain": domain}
    asked = {"messages": [{"role": "user", "content": question}]}
    return {**asked, **{key: value for key, value in optional.items() if value is not None}}


@contextlib.contextmanager
def _reached(base: str) -> Iterator[None]:
    """Raises `ServiceError` where the request inside finds no server."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # The last: a name that no host can have.
        what = f"the gateway does not answer: {type(error).__name__}"
        raise ServiceError(what, where=base, fix="see .state/logs/gateway.log, or: orchestra release") from None


def _read(question: str, base: str, answer: httpx.Response) -> AskResponse:
    """The reply in a gateway's answer; raises as `ask` does."""
    try:
        found = answer.json()
        if answer.status_code == 200:
            return AskResponse.of(question, found["choices"][0]["message"]["content"], found["orchestra"])
        if found["error"]["type"] == "model_error":
            # The model's own failure is an outcome to look at: what it tried and what that cost.
            return AskResponse.of(question, "", found["orchestra"])
        message = f"{found['error']['message']}{charged(found)}"
    except MALFORMED:
        what = f"HTTP {answer.status_code} with a body that is no chat completion"
        raise ServiceError(what, where=base, fix="is it the orchestra gateway?") from None
    raise refused(answer.status_code, message, base)
