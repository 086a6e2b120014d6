"""What was spent, by whom, on what: exact decimal dollars that add up to the cent."""

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

from orchestra.errors import BudgetError
from orchestra.jsonl import read_jsonl
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


class Purse:
    """A cap on dollars, and the ledger of what was spent under it: a file that a later run goes on with."""

    def __init__(self, path: Path, cap_usd: Decimal) -> None:
        self.path, self.cap_usd = path, cap_usd
        earlier = read_jsonl(path, Charge, fix="restore the ledger") if path.exists() else []
        self.spent_usd = total(earlier)

    def check(self, worst_usd: Decimal) -> None:
        """Raises `BudgetError` when a call that costs `worst_usd` at most could cross the cap."""
        if self.spent_usd + worst_usd > self.cap_usd:
            raise BudgetError(
                f"{self.spent_usd:f} of {self.cap_usd:f} USD are spent, and the next call could cost {worst_usd:f}",
                where=str(self.path),
                fix="what was made is kept; raise the cap to go on",
            )

    def book(self, charge: Charge) -> None:
        """Write a charge to the ledger."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(charge.model_dump_json() + "\n")
        self.spent_usd += charge.cost_usd
