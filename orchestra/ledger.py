"""What was spent, by whom, in which phase, on what: exact decimal dollars that add up to the cent."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from pathlib import Path
from typing import TextIO, TypeVar

from orchestra.errors import BudgetError
from orchestra.jsonl import read_jsonl
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
class Part:
    """What some calls spent together. Parts add up exactly: dollars, seconds, tokens, calls."""

    calls: int = 0
    simulated: int = 0
    """Calls of simulated experts: nobody paid for those."""
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
    def of(cls, charge: Charge) -> "Part":
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

    def __add__(self, other: "Part") -> "Part":
        return Part(
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


def parts(charges: Iterable[Charge], key: Callable[[Charge], K]) -> dict[K, Part]:
    """Charges grouped and added up, in the order of their first ones."""
    found: dict[K, Part] = {}
    for charge in charges:
        name = key(charge)
        found[name] = found.get(name, Part()) + Part.of(charge)
    return found


@contextmanager
def phase(name: str) -> Iterator[None]:
    """What is booked within the block belongs to this phase, below that of an outer block."""
    token = _PHASE.set((*_PHASE.get(), name))
    try:
        yield
    finally:
        _PHASE.reset(token)


class Purse:
    """A cap on dollars, and the ledger of what was spent under it: a file that a later run goes on with.

    Calls that run at the same time are each held back at their worst until they are booked, so that together they
    cannot cross the cap either. One purse is shared by everything that spends; without a cap it only books.
    """

    def __init__(self, path: Path, cap_usd: Decimal | None, root_phase: str = "") -> None:
        self.path, self.cap_usd, self._root = path, cap_usd, root_phase
        self._held = Decimal(0)
        self._waiting: list[asyncio.Future[None]] = []
        self._file: TextIO | None = None
        self._parts: dict[tuple[str, Component], Part] = {}
        if path.exists():
            booked = read_jsonl(path, Charge, fix="restore the ledger")
            self._parts = parts(booked, lambda charge: (charge.phase, charge.component))
        self.spent_usd = add_up(part.cost_usd for part in self._parts.values())

    def check(self, worst_usd: Decimal) -> None:
        """Raises `BudgetError` when a call that costs `worst_usd` at most could cross the cap."""
        if self._fits(self._held, worst_usd):
            return
        held = f", {self._held:f} held for calls under way" if self._held else ""
        raise BudgetError(
            f"{self.spent_usd:f} of {self.cap_usd:f} USD are spent{held}, and the next call could cost {worst_usd:f}",
            where=str(self.path),
            fix="what was made is kept; raise the cap to go on",
        )

    @contextmanager
    def hold(self, worst_usd: Decimal) -> Iterator[None]:
        """Keep a call's worst case back while it runs; raises `BudgetError` as `check` does. Book within the block."""
        self.check(worst_usd)
        self._held = EXACT.add(self._held, worst_usd)
        try:
            yield
        finally:
            self._held = EXACT.subtract(self._held, worst_usd)
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    async def room(self, worst_usd: Decimal) -> None:
        """Wait for calls under way while only what is held for them stands before the cap: most cost less than that.

        Hold at once afterwards, and wait while holding nothing. Those that wait may go on after another was refused.
        """
        while not self._fits(self._held, worst_usd) and self._fits(worst_usd):
            ended = asyncio.get_running_loop().create_future()
            self._waiting.append(ended)
            await ended

    def book(self, charge: Charge) -> None:
        """Write a charge to the ledger, under the present phase."""
        name = "/".join(part for part in (self._root, *_PHASE.get()) if part)
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A line each, at once: what was spent is known also after a kill.
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._file.write(charge.model_copy(update={"phase": name}).model_dump_json() + "\n")
        key = (name, charge.component)
        self._parts[key] = self._parts.get(key, Part()) + Part.of(charge)
        self.spent_usd = EXACT.add(self.spent_usd, charge.cost_usd)

    def by_component(self) -> dict[Component, Part]:
        """What each component spent; dollars add up to `spent_usd` exactly, as those of `by_phase` do."""
        return self._by(lambda key: key[1])

    def by_phase(self) -> dict[str, Part]:
        """What was spent in each phase."""
        return self._by(lambda key: key[0])

    def summary(self) -> str:
        """Dollars and calls in one line, the dearest component first."""
        found = sorted(self.by_component().items(), key=lambda item: -item[1].cost_usd)
        shown = ", ".join(f"{name} {part.cost_usd:.4f} in {part.calls}" for name, part in found)
        simulated = ", simulated experts" if any(part.simulated for _, part in found) else ""
        return f"{self.spent_usd:.4f} USD{simulated}" + (f" ({shown} calls)" if shown else "")

    def close(self) -> None:
        """Close the file; the next booking opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fits(self, *usd: Decimal) -> bool:
        """Whether so much more stays under the cap."""
        return self.cap_usd is None or add_up((self.spent_usd, *usd)) <= self.cap_usd

    def _by(self, name: Callable[[tuple[str, Component]], K]) -> dict[K, Part]:
        found: dict[K, Part] = {}
        for key, part in self._parts.items():
            found[name(key)] = found.get(name(key), Part()) + part
        return found
