"""Any OpenAI-compatible chat endpoint: a deadline, bounded retries, a circuit breaker, typed errors and a cassette.

Requests go through the official `openai` SDK: authentication, pooled connections and the kinds of HTTP failure are its.
Retries are ours, since a budget has to agree to each attempt and is told which may be billed, and so is reading the
reply, since the SDK takes any JSON for a completion. litellm would add no provider that is needed, for all speak this
protocol, and it sees every key of an installation: its releases 1.82.7 and 1.82.8 stole them (BerriAI/litellm issue
24521, March 2026).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from orchestra.text import credentials, one_line, without
from orchestra.tools.chat.breaker import Breaker, Meanwhile, longest_wait_s
from orchestra.tools.chat.reply import SPEAKS, ChatReply, is_of, read_reply
from orchestra.tools.chat.retries import RETRIED, TIMED_OUT, PassingError, attempts_made, retry_after_s, retrying
from orchestra.tools.failures import (
    CircuitError,
    DeadlineError,
    EndpointError,
    Failure,
    ReplyError,
    RequestError,
    Unusable,
)
from orchestra.tools.rate_limits import PerLoop, RateLimiter
from orchestra.tools.replay.cassette import Cassette, Slot
from orchestra.types import Usage

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("orchestra.tools")

OURS = frozenset({400, 413, 422})
"""HTTP statuses that say that the request is wrong, not that the endpoint is down."""
NO_CREDIT = '"insufficient_quota"'
"""How OpenAI says, with status 429, that no wait helps."""
FIXES = {
    401: "check its key",
    402: "add credit at the provider",
    403: "check its key, and what the provider lets it do",
    404: "check the model's name, and the address, which ends with /v1",
    429: "ask less at once: the catalogue's providers, concurrency and requests_per_minute",
}
"""What to do about an HTTP status."""
CONNECT_S = 10.0
OnAttempt = Callable[[], None]
OnLost = Callable[[Usage | None], None]


@dataclass
class _Left:
    """What a call may still use."""

    attempts: int
    asking_s: float
    waiting_s: float
    """For the breaker."""


class Chat:
    """Asks one model at one address (`url`, up to `/v1`). One client per event loop, its connections pooled."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        key: str = "",
        deadline_s: float = 300,
        attempts: int | None = None,
        backoff_s: float = 0.5,
        cassette: Cassette | None = None,
        entry: str = "",
        provider: RateLimiter | None = None,
        billed: frozenset[int] = frozenset(),
        own_counts: bool = False,
    ) -> None:
        """`attempts`: None for the provider's. `entry`: what of the catalogue decides a reply, for the cassette.
        `billed`: HTTP statuses of refusals that may be billed all the same. `own_counts`: as `Cassette.slot` says."""
        self.name, self.model = name, model
        self._url, self._key, self._entry, self._billed, self._own_counts = url, key, entry, billed, own_counts
        self._secrets = [one for one in (key, *credentials(url)) if one]
        """Never shown or kept, wherever an endpoint may repeat them."""
        self._provider = provider or RateLimiter()
        limits = self._provider.limits
        self.attempts = limits.attempts if attempts is None else attempts
        """How often one request is sent at most."""
        self._breaker = Breaker(name, limits.failures, limits.open_s)
        self._deadline_s, self._backoff_s, self._cassette = deadline_s, backoff_s, cassette
        self._answered = {""}
        """Models that answered, as they name themselves."""
        self._client: PerLoop[Any] = PerLoop(self._connect)

    async def ask(
        self,
        body: dict[str, Any],
        *,
        on_attempt: OnAttempt | None = None,
        on_lost: OnLost | None = None,
        meanwhile: Meanwhile = nullcontext,
    ) -> ChatReply:
        """The reply to `body`, to which the model's name is added; raises `EndpointError` or one of its kinds.

        `on_attempt` is called before anything is sent, and may refuse by raising. `on_lost` is called after every
        attempt that gave no answer and may be billed all the same: with its usage, None where that is not known. Each
        wait for the breaker is within `meanwhile`.
        """
        body = {"model": self.model, **body}
        slot = None
        if self._cassette is not None:
            slot = self._cassette.slot(body, self._entry, secrets=self._secrets, own_counts=self._own_counts)
        if slot is not None and slot.found is not None:
            return _replayed(slot)
        lost: list[Usage | None] = []

        def note(usage: Usage | None) -> None:
            lost.append(usage)
            if on_lost is not None:
                on_lost(usage)

        try:
            reply = await self._admitted(body, on_attempt or _nothing, note, meanwhile)
        except EndpointError as error:
            error.lost = tuple(lost)
            error.hide(self._secrets)  # an endpoint, or a library that refuses a header, may repeat them
            if slot is not None:
                slot.keep(Failure.of(error))
            raise
        reply = reply.model_copy(update={"lost": tuple(lost)})
        if slot is not None:
            slot.keep(reply)
        return reply

    async def aclose(self) -> None:
        """Close the pooled connections."""
        client = self._client.pop()
        if client is not None:
            await client.close()

    async def _admitted(
        self, body: dict[str, Any], attempt: OnAttempt, lost: OnLost, meanwhile: Meanwhile
    ) -> ChatReply:
        """Ask within the provider's limits and the deadline, once the breaker lets it: for an open one, the call waits
        as long as its deadline at most. Waiting for the breaker or for a place is not the endpoint's time."""
        self._client.get()  # Its first import takes a second, which is nobody's deadline.
        left = _Left(self.attempts, self._deadline_s, min(self._deadline_s, longest_wait_s()))
        while True:
            # A call that waits here takes no place and no request from the provider's other models.
            probe = await self._let_in(left, meanwhile)
            try:
                async with self._provider.place():
                    probe = probe or self._breaker.admit()
                    await self._provider.pace()
                    probe = probe or self._breaker.admit()
                    return await self._asked(body, attempt, lost, left, probe=probe)
            except CircuitError:
                continue  # It opened while this call waited for its place, or between two of its attempts.
            finally:
                self._breaker.ended(probe)

    async def _let_in(self, left: _Left, meanwhile: Meanwhile) -> bool:
        """Whether the call is the breaker's probe; raises `CircuitError` where waiting does not help."""
        began = time.monotonic()
        try:
            return await self._breaker.admitted(left.waiting_s, meanwhile)
        except CircuitError as error:
            error.seconds = round(self._deadline_s - left.asking_s, 3)  # Of attempts before it opened.
            raise
        finally:
            left.waiting_s -= time.monotonic() - began

    async def _asked(
        self, body: dict[str, Any], attempt: OnAttempt, lost: OnLost, left: _Left, *, probe: bool
    ) -> ChatReply:
        """The reply, with the seconds of all attempts; tells the breaker how they ended. Raises `CircuitError` where it
        opens between two of them, and is to be waited for."""
        began, before_s = time.monotonic(), self._deadline_s - left.asking_s
        try:
            try:
                async with asyncio.timeout(left.asking_s):
                    reply = await self._persist(body, attempt, lost, left, probe=probe)
            except TimeoutError:
                raise DeadlineError(f"no answer within {self._deadline_s:g} s", where=self.name) from None
        except CircuitError:
            left.asking_s -= time.monotonic() - began
            raise
        except EndpointError as error:
            error.seconds = round(before_s + time.monotonic() - began, 3)
            if _is_up(error):
                self._breaker.succeeded()
            else:
                why = without(one_line(error.what), self._secrets)
                lasting = not error.retryable
                self._breaker.failed(probe, why, lasting=lasting, unreachable=error.unreachable)
            raise
        self._breaker.succeeded()
        return reply.model_copy(update={"seconds": round(before_s + time.monotonic() - began, 3)})

    async def _persist(
        self, body: dict[str, Any], attempt: OnAttempt, lost: OnLost, left: _Left, *, probe: bool
    ) -> ChatReply:
        """Attempts until one succeeds, fails for good, or no other would begin before the deadline."""

        def begins(state: "RetryCallState") -> None:
            if state.attempt_number > 1 and not probe and self._breaker.may_close(left.waiting_s):
                self._breaker.check()
            left.attempts -= 1

        retry = retrying(left.attempts, self._backoff_s, left.asking_s, self._pace, begins)
        try:
            return await retry(self._once, body, attempt, lost)
        except PassingError as error:
            what = f"{error} {attempts_made(self.attempts - left.attempts)}"
            failed = EndpointError(what, where=self.name, fix=FIXES.get(error.status, "see the endpoint's log"))
            failed.unreachable = error.unreachable
            raise failed from None

    async def _pace(self, state: "RetryCallState") -> None:
        """Another attempt is another request to the provider."""
        await self._provider.pace()

    async def _once(self, body: dict[str, Any], attempt: OnAttempt, lost: OnLost) -> ChatReply:
        import httpx2
        from openai import APIConnectionError, APIStatusError, omit

        from orchestra.tools.http_body import BodyError

        # The SDK would send what the environment holds for OpenAI to every provider.
        headers = {"OpenAI-Organization": omit, "OpenAI-Project": omit} | ({} if self._key else {"Authorization": omit})
        attempt()
        try:
            response = await self._client.get().post(
                "/chat/completions", cast_to=httpx2.Response, body=body, options={"headers": headers}
            )
        except asyncio.CancelledError:
            lost(None)
            raise
        except APIStatusError as error:
            if error.status_code in self._billed | TIMED_OUT:
                lost(None)
            raise self._refusal(error.status_code, error.response) from None
        except APIConnectionError as error:
            cause = error.__cause__ or error
            if not isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.UnsupportedProtocol):
                lost(None)
            nobody = isinstance(cause, httpx2.ConnectError | httpx2.UnsupportedProtocol)
            raise PassingError(f"{type(cause).__name__}: {cause}".rstrip(": "), unreachable=nobody) from None
        except BodyError as error:
            lost(None)
            raise ReplyError(str(error), unusable=Unusable.SHAPE, where=self.name, fix=SPEAKS) from None
        except (ValueError, httpx2.InvalidURL) as error:  # A key or an address that no request can carry.
            what = f"{type(error).__name__}: {error}"
            raise RequestError(what, where=self.name, fix="check the key and the address") from None
        try:
            raw = response.json()
        except (ValueError, RecursionError):
            lost(None)
            raise PassingError("the reply is not JSON") from None
        try:
            reply = read_reply(raw, self.name, tools="tools" in body)
        except ReplyError as error:
            lost(error.usage)
            raise
        self._note_model(raw.get("model"))
        return reply

    def _note_model(self, answered: Any) -> None:
        """Warn, once for each, of a model that answers in place of the one that is asked for."""
        if isinstance(answered, str) and answered not in self._answered:
            self._answered.add(answered)
            if not is_of(answered, self.model):
                other = without(one_line(answered), self._secrets)[:80]
                log.warning("%s: %s answers in place of %s — check the model's name", self.name, other, self.model)

    def _refusal(self, status: int, response: Any) -> Exception:
        """What an HTTP status other than 200 means."""
        said, no_credit = without(response.text, self._secrets)[:200], NO_CREDIT in response.text
        if status in RETRIED and not no_credit:
            told = f"HTTP {status}: {said}" if '"message"' in said else f"HTTP {status}"
            return PassingError(told, retry_after_s(response.headers.get("retry-after", "")), status)
        fix = FIXES.get(402 if no_credit else status, "")
        kind = RequestError if status in OURS else EndpointError
        refused = kind(f"HTTP {status}: {said}", where=self.name, fix=fix)
        refused.retryable = False
        return refused

    def _connect(self) -> Any:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

        from orchestra.tools.http_body import BOUNDED

        timeout = Timeout(None, connect=CONNECT_S)  # Everything else is ended by the deadline.
        return AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._url,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(timeout=timeout, verify=_certificates(), **BOUNDED),
        )


def _replayed(slot: Slot) -> ChatReply:
    """The recorded reply; raises the recorded failure."""
    assert slot.found is not None
    if slot.found.failure is not None:
        raise slot.found.failure.error()
    return ChatReply.model_validate(slot.found.reply).model_copy(update={"replayed": True})


def _is_up(error: EndpointError) -> bool:
    """Whether the endpoint works, and only this request or reply is of no use."""
    if isinstance(error, ReplyError):
        return error.unusable is not Unusable.SHAPE
    return isinstance(error, RequestError)


@cache
def _certificates() -> Any:
    """Read once a process: 80 ms of each client's 81."""
    import httpx2

    return httpx2.create_ssl_context()


def _nothing() -> None:
    """The default, which counts nothing."""
