"""A cap on dollars over everything that spends, and the ledger file behind it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Protocol, TextIO

from orchestra.accounting.ledger import K, Spending, current_phase, parts
from orchestra.errors import BudgetError
from orchestra.files.jsonl import read_jsonl
from orchestra.types import EXACT, Charge, Component, add_up


class SpendingCap(Protocol):
    """What books every charge and may refuse the next call: a run's `Budget`, or that of a caller of the gateway."""

    cap_usd: Decimal | None

    def hold(self, worst_usd: Decimal) -> AbstractContextManager[None]: ...

    async def room(self, worst_usd: Decimal) -> None: ...

    def book(self, charge: Charge) -> None: ...


class Budget:
    """A cap on dollars, and the ledger of what was spent under it: a file that a later run goes on with.

    Calls that run at the same time are each held back at their worst until they are booked, so that together they
    cannot cross the cap either. One budget is shared by everything that spends; without a cap it only books. What it
    spends is a part of what the budget `within` which it is may spend: that one's cap holds too, and it books the same.
    """

    def __init__(
        self, path: Path, cap_usd: Decimal | None, root_phase: str = "", within: "Budget | None" = None
    ) -> None:
        self.path, self.cap_usd, self._root, self._within = path, cap_usd, root_phase, within
        self._held = Decimal(0)
        self._waiting: list[asyncio.Future[None]] = []
        self._file: TextIO | None = None
        self._parts: dict[tuple[str, Component], Spending] = {}
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
            with nullcontext() if self._within is None else self._within.hold(worst_usd):
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
        while (full := self._full(worst_usd)) is not None:
            ended = asyncio.get_running_loop().create_future()
            full._waiting.append(ended)
            await ended

    def book(self, charge: Charge) -> None:
        """Write a charge to the ledger, under the present phase."""
        if self._within is not None:
            self._within.book(charge)
        name = "/".join(part for part in (self._root, *current_phase()) if part)
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A line each, at once: what was spent is known also after a kill.
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._file.write(charge.model_copy(update={"phase": name}).model_dump_json() + "\n")
        key = (name, charge.component)
        self._parts[key] = self._parts.get(key, Spending()) + Spending.of(charge)
        self.spent_usd = EXACT.add(self.spent_usd, charge.cost_usd)

    def by_component(self) -> dict[Component, Spending]:
        """What each component spent; dollars add up to `spent_usd` exactly, as those of `by_phase` do."""
        return self._by(lambda key: key[1])

    def by_phase(self) -> dict[str, Spending]:
        """What was spent in each phase."""
        return self._by(lambda key: key[0])

    def summary(self) -> str:
        """Dollars and calls in one line, the most expensive component first."""
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

    def _full(self, worst_usd: Decimal) -> "Budget | None":
        """The budget whose cap only what is held keeps from the call, if there is one."""
        if not self._fits(self._held, worst_usd) and self._fits(worst_usd):
            return self
        return None if self._within is None else self._within._full(worst_usd)

    def _by(self, name: Callable[[tuple[str, Component]], K]) -> dict[K, Spending]:
        found: dict[K, Spending] = {}
        for key, part in self._parts.items():
            found[name(key)] = found.get(name(key), Spending()) + part
        return found
