"""What was spent, by whom, on what: exact decimal dollars that add up to the cent."""

from collections.abc import Iterable
from decimal import Decimal

from orchestra.types import Charge, Price, Usage

MILLION = Decimal(1_000_000)


def cost_of(price: Price, usage: Usage, *, calls: int = 1, seconds: float = 0.0) -> Decimal:
    """Dollars of `calls` calls that used `usage` and ran `seconds` under `price`."""
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    cached_rate = price.input_per_million if price.cached_input_per_million is None else price.cached_input_per_million
    tokens = (
        price.input_per_million * (usage.input_tokens - cached)
        + cached_rate * cached
        + price.output_per_million * usage.output_tokens
    ) / MILLION
    return tokens + price.per_call * calls + price.per_second * Decimal(str(round(seconds, 6)))


def total(charges: Iterable[Charge]) -> Decimal:
    """The sum of the parts."""
    return sum((charge.cost_usd for charge in charges), Decimal(0))


def by_component(charges: Iterable[Charge]) -> dict[str, Decimal]:
    """Dollars by component; the values add up to `total` exactly."""
    parts: dict[str, Decimal] = {}
    for charge in charges:
        parts[charge.component] = parts.get(charge.component, Decimal(0)) + charge.cost_usd
    return parts
