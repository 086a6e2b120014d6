"""The most that one call of a tool can cost, known before it is made: what a cap has to have left."""

import math
from decimal import Decimal

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ConfigError
from orchestra.tools.catalogue.entry import Entry
from orchestra.types import EXACT, ToolSpec, Usage

SPREAD = 1.25
"""A simulated expert's reply and time are at most this much over the expected ones."""
OVERHEAD_TOKENS = 200
"""What a provider's template may add to a request's own tokens."""


PROMPT_BYTES = 1000
"""What an expert is told about its role, and a request's settings, at most."""


def worst_usd(spec: ToolSpec, entry: Entry | None = None, said_bytes: int = 0, attempts: int = 1) -> Decimal:
    """Dollars at most. `entry`: of the catalogue, None for a domain's tool; `said_bytes`: what the call may send, as
    JSON; `attempts`: how often a model or a search may be asked, since a lost reply may be billed.

    No token is shorter than a byte, no reply longer than `max_output_tokens`, nothing runs longer than its deadline.
    Raises `ConfigError` for a model whose replies have no limit: no cap can be kept with it.
    """
    price = spec.price.model_copy(update={"cached_input_per_million": None})
    if entry is None:
        return cost_of(price, Usage(), seconds=spec.latency_s)
    if entry.implementation == "simulated":
        usage = entry.usage.model_copy(update={"output_tokens": math.ceil(entry.usage.output_tokens * SPREAD)})
        return cost_of(price, usage, seconds=spec.latency_s * SPREAD + 0.001)
    seconds = max(spec.latency_s, entry.deadline_s if price.per_second else 0.0)
    if entry.implementation != "openai":
        once = cost_of(price, entry.usage, seconds=seconds)
        return EXACT.multiply(once, Decimal(attempts)) if entry.implementation == "web_search" else once
    if entry.max_output_tokens is None:
        what = f"a cap of dollars is set, and replies of {spec.tool} have no limit"
        raise ConfigError(what, where="the catalogue", fix=f"give tools.{spec.tool} max_output_tokens")
    read = said_bytes + PROMPT_BYTES + OVERHEAD_TOKENS
    once = cost_of(price, Usage(input_tokens=read, output_tokens=entry.max_output_tokens), seconds=seconds)
    return EXACT.multiply(once, Decimal(attempts))
