"""When an HTTP request is sent again, and how long that waits."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import AsyncRetrying, RetryCallState

    Hook = Callable[[RetryCallState], Awaitable[None] | None]

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 531)})
"""HTTP statuses that may pass by themselves; those from 520 on are of Cloudflare, which many providers are behind."""
TIMED_OUT = frozenset({504, 524})
"""Those of a proxy that waited no longer: the model behind it may have answered, and be billed."""
MAX_BACKOFF_S = 30.0


class PassingError(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, what: str, retry_after_s: float = 0.0, status: int = 0, *, unreachable: bool = False) -> None:
        """`status`: of HTTP, 0 without one. `unreachable`: nobody listens at the address."""
        super().__init__(what + (f", it asks to wait {retry_after_s:g} s," if retry_after_s else ""))
        self.retry_after_s, self.status, self.unreachable = retry_after_s, status, unreachable


def retrying(
    attempts: int, backoff_s: float, deadline_s: float, before_sleep: Hook, before: Hook | None = None
) -> AsyncRetrying:
    """Tries again after a `PassingError`, the last of which is raised; no attempt begins after the deadline.

    `before_sleep` is called before each pause, `before` before each attempt, the first included; both may raise.
    """
    from tenacity import AsyncRetrying, before_nothing, retry_if_exception_type, stop_after_attempt, stop_before_delay

    def pause_s(state: RetryCallState) -> float:
        """Growing, never the same for two callers, and at least what the endpoint asks for."""
        error = state.outcome.exception() if state.outcome is not None else None
        own_s = min(MAX_BACKOFF_S, backoff_s * 2.0 ** (state.attempt_number - 1)) * (0.5 + random.random())
        return own_s + (error.retry_after_s if isinstance(error, PassingError) else 0.0)

    return AsyncRetrying(
        retry=retry_if_exception_type(PassingError),
        wait=pause_s,
        stop=stop_after_attempt(attempts) | stop_before_delay(deadline_s),
        before_sleep=before_sleep,
        before=before or before_nothing,
        reraise=True,
    )


def attempts_made(number: int) -> str:
    """How often it was tried, in words."""
    return f"after {number} attempt{'s' if number > 1 else ''}"


def retry_after_s(header: str) -> float:
    """Seconds that a Retry-After header asks for, as a number or a date; 0 when it says nothing."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass  # A date then: the header's other form (RFC 9110, section 10.2.3).
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0  # Neither: nothing is lost, for the pause of our own is waited anyway.
