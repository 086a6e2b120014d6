"""A circuit breaker: what fails again and again is left alone for a while, then tried by one call."""

import time
from collections.abc import Callable

from orchestra.tools.failures import CircuitError


class Breaker:
    """Opens after `failures` failures in a row; after `open_s` seconds one call is let through, which decides."""

    def __init__(
        self, name: str, failures: int = 5, open_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._failures, self._open_s, self._clock = name, failures, open_s, clock
        self._row = 0
        self._why = ""
        """What the last failure said."""
        self._until: float | None = None
        """When it may be tried again; None while it is closed."""
        self._probing = False

    def check(self) -> None:
        """Raises `CircuitError` with the seconds to wait where `admit` would."""
        if self._until is None:
            return
        wait_s = self._until - self._clock()
        if wait_s > 0 or self._probing:
            when = f"in {wait_s:.1f} s" if wait_s > 0 else "once the probe under way succeeds"
            last = f", the last: {self._why}" if self._why else ""
            what = f"not asked after {self._row} failures in a row{last}; it is asked again {when}"
            raise CircuitError(what, wait_s=max(0.0, wait_s), where=self._name)

    def admit(self) -> bool:
        """Let a call through, and say whether it is the probe; raises `CircuitError`.

        Every admitted call must end in one of `succeeded`, `failed` or `ended`.
        """
        self.check()
        self._probing = self._until is not None
        return self._probing

    def succeeded(self) -> None:
        """It works: closed."""
        self._row, self._until, self._probing = 0, None, False

    def failed(self, probe: bool, why: str = "") -> None:
        """Count a failure; what fails that was let through before it opened changes nothing."""
        if self._until is not None and not probe:
            return
        self._row, self._why = self._row + 1, why
        if probe or self._row >= self._failures:
            self._until, self._probing = self._clock() + self._open_s, False

    def ended(self, probe: bool) -> None:
        """The call ended without telling anything (cancelled, refused by a cap): another may be the probe."""
        if probe:
            self._probing = False
