"""Failures in OpenAI's form, each with a status, a type and a code that a client can act on."""

from __future__ import annotations

import math
import uuid
from typing import Any

from orchestra.errors import BudgetError, Fault, OrchestraError

STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 500, 502, 503)
"""Every status that is not 200."""
LEFT = 499
"""What a request counts under whose caller hung up, as other servers count it."""

REQUEST_ID = b"x-request-id"
MAX_MESSAGE, MAX_PARAM = 1_500, 200
"""Characters of an answer's message and of the field that it names: a caller's own text is not sent back whole."""


class ApiError(Exception):
    """An answer with an HTTP status other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
        super().__init__(message)
        self.status, self.message, self.kind, self.code = status, message, kind, code
        self.param = param if param is None else param[:MAX_PARAM]
        self.extra: dict[str, Any] = {}
        """What else the body holds: what a failed episode cost."""
        # Up: who comes a moment too soon is refused again. To the millisecond before: no sum of floats is exact.
        seconds = None if retry_after_s is None else max(1, math.ceil(round(retry_after_s, 3)))
        self.headers = {} if seconds is None else {"Retry-After": str(seconds)}

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error, **self.extra}


def request_id() -> str:
    """Of an answer, by which a caller can name it."""
    return f"req_{uuid.uuid4().hex}"


class StoreError(OrchestraError):
    """The gateways' shared store cannot be read or written at present."""


class CallerLeft(Exception):
    """The caller hung up: there is nobody to answer."""


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", code=code, param=param)


def unsupported(param: str, why: str, code: str = "unsupported_parameter") -> ApiError:
    """For what OpenAI's API knows and this one does not do: never taken without effect."""
    return bad_request(f"{param} is not supported: {why}", param, code)


def too_large(message: str) -> ApiError:
    return ApiError(413, message, kind="invalid_request_error", code="too_large")


def unavailable(message: str, code: str, retry_after_s: float = 5) -> ApiError:
    """For what passes by itself."""
    return ApiError(503, message, kind="service_unavailable", code=code, retry_after_s=retry_after_s)


def too_many(message: str, code: str, retry_after_s: float = 1) -> ApiError:
    """For a caller that asks for more than its share."""
    return ApiError(429, message, kind="rate_limit_error", code=code, retry_after_s=retry_after_s)


def final(error: ApiError) -> ApiError:
    """The same, which another try would only meet again: OpenAI's clients repeat all others of its status."""
    error.headers["x-should-retry"] = "false"
    return error


def spent(error: BudgetError) -> ApiError:
    """For a key whose dollars do not pay for what is asked. OpenAI's clients repeat it only where the key's other calls
    hold them: most come back."""
    if error.retryable:
        return too_many(str(error), "budget_held", 5)
    return final(ApiError(429, str(error), kind="insufficient_quota", code="insufficient_quota"))


def from_orchestra(error: OrchestraError) -> ApiError:
    """The caller's faults are 400, the store's 503, everybody else's 502."""
    if isinstance(error, StoreError):
        return unavailable(str(error), "store_failed")
    if error.fault is Fault.CALLER:
        return bad_request(str(error))
    return ApiError(502, str(error), kind=f"{error.fault.value}_error", code=type(error).__name__)
