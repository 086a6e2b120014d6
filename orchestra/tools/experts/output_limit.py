"""How a request bounds its reply: the parameter's name, which differs by provider, and a look whether it holds."""

import logging
from collections.abc import Iterable
from typing import Any, get_args

from orchestra.tools.catalogue.entry import LimitParameter
from orchestra.types import Usage

log = logging.getLogger("orchestra.tools")


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
            "try limit_parameter: %s in its provider's entries of the catalogue",
            self._name, longest, most, other,
        )  # fmt: skip
