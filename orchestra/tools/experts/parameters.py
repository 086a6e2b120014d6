"""Parameters of requests to models: settings over our own, the output limit by its name, refusals that name one."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from orchestra.tools.failures import EndpointError, RequestError
from orchestra.tools.rate_limits import LimitParameter
from orchestra.types import Usage

log = logging.getLogger("orchestra.tools")

FIXED = frozenset({"model", "messages", "tools"})
"""Parameters that no setting takes out of a request."""
NOT_TAKEN = re.compile("not support|unsupported|unknown|unrecogni|permitted", re.IGNORECASE)
"""How a refusal of a parameter, not of its value, is worded."""


class OutputLimit:
    """The output limit of one model's requests."""

    def __init__(self, name: str, parameter: LimitParameter = "max_completion_tokens") -> None:
        self._name, self.parameter, self._told = name, parameter, False

    def of(self, most: int | None) -> dict[str, Any]:
        """The limit as a request says it; None: nothing."""
        return {} if most is None else {self.parameter: most}

    def check(self, attempts: Iterable[Usage | None], most: int | None) -> None:
        """Warn, once, of a reply that is longer than the limit: what it costs may cross a cap."""
        longest = max((usage.output_tokens for usage in attempts if usage is not None), default=0)
        if most is None or longest <= most or self._told:
            return
        self._told = True
        (other,) = set(get_args(LimitParameter)) - {self.parameter}
        log.warning(
            "%s: a reply has %d tokens, and its limit was %d, so caps of dollars may be crossed — "
            "say limit_parameter: %s for its provider in the catalogue's providers",
            self._name, longest, most, other,
        )  # fmt: skip


def with_settings(body: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The request with these settings over what it says; what they set to null is not sent."""
    return {name: value for name, value in {**body, **settings}.items() if value is not None or name not in settings}


def name_refused(error: EndpointError, body: Mapping[str, Any], settings: str = "settings") -> None:
    """Where the endpoint refused a parameter of this request, say in the error which setting leaves it out; empty: none
    does."""
    sent = [name for name in body if name not in FIXED and re.search(rf"\b{name}\b", error.what)]
    if not isinstance(error, RequestError) or not sent:
        return
    limits = get_args(LimitParameter)
    if sent[0] not in limits:
        by = f"leave it out by {settings}: {{{sent[0]}: null}}"
        error.advise(by if settings else f"name a model that takes {sent[0]}")
    elif NOT_TAKEN.search(error.what):
        (other,) = set(limits) - {sent[0]}
        error.advise(f"say limit_parameter: {other} for its provider in the catalogue's providers")
