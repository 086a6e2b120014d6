"""A circuit breaker: what fails again and again is left alone for a while, then tried by one call."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar

from orchestra.tools.failures import CircuitError
from orchestra.tools.rate_limits import wake

log = logging.getLogger("orchestra.tools")

Meanwhile = Callable[[], AbstractAsyncContextManager[None]]
MOST_PROBES = 3
"""Failed ones in a row, after which calls wait no more: what is down so long may stay so."""
_LONGEST_S: ContextVar[float] = ContextVar("longest_wait", default=math.inf)


@contextmanager
def longest_wait(seconds: float) -> Iterator[None]:
    """Calls within the block wait at most so long for open breakers, 0: fail at once; of nested blocks the shortest."""
    token = _LONGEST_S.set(min(seconds, _LONGEST_S.get()))
    try:
        yield
    finally:
        _LONGEST_S.reset(token)


def longest_wait_s() -> float:
    """What the blocks around a call allow; infinite outside of any."""
    return _LONGEST_S.get()


class Breaker:
    """Opens after `failures` failures in a row; after `open_s` seconds one call is let through, which decides."""

    def __init__(
        self, name: str, failures: int = 5, open_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._failures, self._open_s, self._clock = name, failures, open_s, clock
        self._row = 0
        self._why, self._lasting = "", False
        """What the last failure said, and whether no call waits: it is no failure that soon passes by itself."""
        self._probes, self._worked = 0, False
        """Probes that failed since it opened, and whether anything ever succeeded."""
        self._opened = 0.0
        self._until: float | None = None
        """When it may be tried again; None while it is closed."""
        self._probing = False
        self._waiting: list[asyncio.Future[None]] = []

    def check(self) -> None:
        """Raises `CircuitError` with the seconds to wait where `admit` would."""
        if self._until is None:
            return
        wait_s = self._wait_s()
        if wait_s > 0 or self._probing:
            when = f"in {wait_s:.1f} s" if wait_s > 0 else "once the probe under way succeeds"
            last = f", the last: {self._why}" if self._why else ""
            what = f"not asked after {self._row} failures in a row{last}; it is asked again {when}"
            raise CircuitError(what, wait_s=wait_s, where=self._name)

    def admit(self) -> bool:
        """Let a call through, and say whether it is the probe; raises `CircuitError`.

        Every admitted call must end in one of `succeeded`, `failed` or `ended`.
        """
        self.check()
        self._probing = self._until is not None
        return self._probing

    async def admitted(self, most_s: float, meanwhile: Meanwhile = nullcontext) -> bool:
        """The same, once the time is over or the probe has ended; raises `CircuitError` as soon as `most_s` seconds
        cannot be enough. Each wait is within `meanwhile`, whose end may take long: none is a probe until then."""
        ends = self._clock() + most_s
        while True:
            try:
                return self.admit()
            except CircuitError as refused:
                left_s = ends - self._clock()
                if not self.may_close(left_s):
                    raise
                wait_s = refused.wait_s or left_s
            async with meanwhile():
                await self._changed(wait_s)

    def may_close(self, within_s: float) -> bool:
        """Whether a call may be let through within so many seconds, and succeed."""
        return not self._lasting and self._wait_s() < within_s

    def succeeded(self) -> None:
        """It works: closed."""
        if self._until is not None:
            down_s = self._clock() - self._opened
            log.warning("%s: it answers again, after %.0f s; the last failure: %s", self._name, down_s, self._why)
        self._probes, self._worked = 0, True
        self._row, self._until, self._probing, self._lasting = 0, None, False, False
        self._tell()

    def failed(self, probe: bool, why: str = "", *, lasting: bool = False, unreachable: bool = False) -> None:
        """Count a failure; what fails that was let through before it opened changes nothing.

        Nothing waits while a `lasting` one is the last, as with a wrong key, after `MOST_PROBES` failed probes, and
        where it is `unreachable` and never worked.
        """
        if self._until is not None and not probe:
            return
        self._probes += probe
        self._row, self._why = self._row + 1, why
        self._lasting = lasting or self._probes >= MOST_PROBES or (unreachable and not self._worked)
        if self._until is None and self._row >= self._failures:
            self._opened = self._clock()
            meanwhile = "calls fail at once" if self._lasting else "calls that may wait do"
            what = "%s: not asked for %g s after %d failures in a row, then by one call each %g s until it answers; %s"
            args = (self._name, self._open_s, self._row, self._open_s, meanwhile)
            log.warning(what + "; the last failure: %s", *args, why)
        if probe or self._row >= self._failures:
            self._until, self._probing = self._clock() + self._open_s, False
            self._tell()

    def ended(self, probe: bool) -> None:
        """The call ended without telling anything (cancelled, refused by a cap): another may be the probe."""
        if probe:
            self._probing = False
            self._tell()

    def _wait_s(self) -> float:
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    async def _changed(self, most_s: float) -> None:
        """Wait until it opens, closes or another may be the probe; so long at most."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await asyncio.wait([mine], timeout=most_s)
        finally:
            self._waiting.remove(mine)

    def _tell(self) -> None:
        for waiter in tuple(self._waiting):
            with suppress(RuntimeError):  # Its loop is closed.
                waiter.get_loop().call_soon_threadsafe(wake, waiter)
