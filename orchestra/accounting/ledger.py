"""The ledger: spending by component, phase and name, in exact decimal dollars that add up to the cent."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from pathlib import Path
from typing import TypeVar

from orchestra.types import EXACT, Charge, Component, Price, Usage, add_up

MILLION = Decimal(1_000_000)
LEDGERS, RANK = ".state/ledger", "-rank"
"""Where the stages of runs book, and what parts a run's name from the number of its rank in a file's name."""
K = TypeVar("K", bound=Hashable)
_PHASE: ContextVar[tuple[str, ...]] = ContextVar("phase", default=())


def cost_of(price: Price, usage: Usage, *, calls: int = 1, seconds: float = 0.0) -> Decimal:
    """Dollars of `calls` calls that used `usage` and ran `seconds` under `price`."""
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    cached_rate = price.input_per_million if price.cached_input_per_million is None else price.cached_input_per_million
    with localcontext(EXACT):
        tokens = (
            price.input_per_million * (usage.input_tokens - cached)
            + cached_rate * cached
            + price.output_per_million * usage.output_tokens
        ) / MILLION
        return tokens + price.per_call * calls + price.per_second * Decimal(str(round(seconds, 6)))


def at_price(charge: Charge, price: Price, drawn: Price | None = None) -> Decimal:
    """Dollars of a call under another price than the one `drawn`.

    A call that the tool refused is charged per call only, though its seconds are noted; the seconds of a failed one are
    charged per second only. Where such a part is free, nothing tells them from another call.
    """
    if drawn is not None and charge.usage == Usage():
        if drawn.per_second and charge.cost_usd == drawn.per_call:
            return price.per_call
        if drawn.per_call and charge.cost_usd == cost_of(drawn, Usage(), calls=0, seconds=charge.latency_s):
            return cost_of(price, Usage(), calls=0, seconds=charge.latency_s)
    return cost_of(price, charge.usage, seconds=charge.latency_s)


def run_of(file: Path) -> str:
    """The run that a file of `LEDGERS` is of, its own or one of its ranks'."""
    return file.stem.partition(RANK)[0]


def total(charges: Iterable[Charge]) -> Decimal:
    """The sum of the parts."""
    return add_up(charge.cost_usd for charge in charges)


def by_component(charges: Iterable[Charge]) -> dict[Component, Decimal]:
    """Dollars by component; the values add up to `total` exactly."""
    return {component: part.cost_usd for component, part in parts(charges, lambda charge: charge.component).items()}


@dataclass(frozen=True, slots=True)
class Spending:
    """What some calls spent together. Parts add up exactly: dollars, seconds, tokens, calls."""

    calls: int = 0
    simulated: int = 0
    """Calls of simulated experts, which no provider charges for."""
    cache_hits: int = 0
    """Calls that read some of their input from a cache."""
    input_tokens: int = 0
    cached_input_tokens: int = 0
    """The part of `input_tokens` read from a cache."""
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    seconds: Decimal = Decimal(0)
    """Each call's to a microsecond, as they are priced."""

    @classmethod
    def of(cls, charge: Charge) -> "Spending":
        usage = charge.usage
        return cls(
            calls=1,
            simulated=int(charge.simulated),
            cache_hits=int(usage.cached_input_tokens > 0),
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=charge.cost_usd,
            seconds=Decimal(str(round(charge.latency_s, 6))),
        )

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(
            calls=self.calls + other.calls,
            simulated=self.simulated + other.simulated,
            cache_hits=self.cache_hits + other.cache_hits,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=EXACT.add(self.cost_usd, other.cost_usd),
            seconds=EXACT.add(self.seconds, other.seconds),
        )

    def as_json(self) -> dict[str, int | str]:
        """Its figures by name, the decimal ones as text, so that nothing is lost."""
        return {name: value if isinstance(value, int) else f"{value:f}" for name, value in asdict(self).items()}


def parts(charges: Iterable[Charge], key: Callable[[Charge], K]) -> dict[K, Spending]:
    """Charges grouped and added up, in the order of their first ones."""
    found: dict[K, Spending] = {}
    for charge in charges:
        name = key(charge)
        found[name] = found.get(name, Spending()) + Spending.of(charge)
    return found


def current_phase() -> tuple[str, ...]:
    """The phases of the blocks around this call, the outermost first."""
    return _PHASE.get()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """What is booked within the block belongs to this phase, below that of an outer block."""
    token = _PHASE.set((*_PHASE.get(), name))
    try:
        yield
    finally:
        _PHASE.reset(token)
