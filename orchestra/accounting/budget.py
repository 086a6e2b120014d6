"""A cap on dollars over everything that spends, and the ledger file behind it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TextIO

from orchestra.accounting.ledger import K, Spending, current_phase, parts
from orchestra.errors import BudgetError
from orchestra.files.jsonl import end_with_a_line, stream_jsonl
from orchestra.types import EXACT, Charge, Component, add_up


class SpendingCap(Protocol):
    """What books every charge and may refuse the next call: a run's `Budget`, or that of a caller of the gateway."""

    cap_usd: Decimal | None

    def hold(self, worst_usd: Decimal) -> AbstractContextManager[None]: ...

    async def room(self, worst_usd: Decimal) -> None: ...

    def book(self, charge: Charge) -> None: ...


class HeldBack:
    """A call's worst case, held back within the block, but for waits before anything was sent."""

    def __init__(self, budget: SpendingCap, worst_usd: Decimal) -> None:
        self._budget, self._worst_usd, self._holds = budget, worst_usd, ExitStack()
        self._held = self._sent = False

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        self._holds.__exit__(kind, error, trace)

    def attempt(self) -> None:
        """Call it before anything is sent: from now on it is held until the block ends. Raises `BudgetError`."""
        self.take()
        self._sent = True

    def take(self) -> None:
        """Hold it, unless it is held; raises `BudgetError`."""
        if not self._held:
            self._holds.enter_context(self._budget.hold(self._worst_usd))
            self._held = True

    def give_back(self) -> None:
        """Hold nothing from now on."""
        self._held = False
        self._holds.close()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Hold nothing within the block, unless something was sent; then wait for room and hold it again, or raise
        `BudgetError`."""
        if not self._sent:
            self.give_back()
        yield
        if not self._held:
            await self._budget.room(self._worst_usd)
            self.take()


class Budget:
    """A cap on dollars, and the ledger of what was spent under it: a file that a later run goes on with.

    Calls that run at the same time are each held back at their worst until they are booked, so that together they
    cannot cross the cap either. One budget is shared by everything that spends, in whichever thread; without a cap it
    only books. What it spends is a part of what the budget `within` which it is may spend: that one's cap holds too,
    and it books the same.
    """

    def __init__(
        self,
        path: Path,
        cap_usd: Decimal | None,
        root_phase: str = "",
        others: Iterable[Path] = (),
        within: "Budget | None" = None,
    ) -> None:
        """`others`: ledgers of other processes, which count against the cap too."""
        self.path, self.cap_usd, self._root, self._within = path, cap_usd, root_phase, within
        self._lock = threading.RLock()
        self._held = Decimal(0)
        self._waiting: list[asyncio.Future[None]] = []
        self._file: TextIO | None = None
        files = [file for file in (path, *others) if file.exists()]
        booked = (one for file in files for one in stream_jsonl(file, Charge, fix="restore the ledger", whole=True))
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
        with self._lock:
            self.check(worst_usd)
            self._held = EXACT.add(self._held, worst_usd)
        try:
            with nullcontext() if self._within is None else self._within.hold(worst_usd):
                yield
        finally:
            with self._lock:
                self._held = EXACT.subtract(self._held, worst_usd)
                waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    # It may wait in another thread's loop, which nothing else wakes.
                    one.get_loop().call_soon_threadsafe(_wake, one)

    async def room(self, worst_usd: Decimal) -> None:
        """Wait for calls under way while only what is held for them stands before the cap: most cost less than that.

        Hold at once afterwards, and wait while holding nothing. Those that wait may go on after another was refused.
        """
        while (ended := self._ended(worst_usd)) is not None:
            await ended

    def book(self, charge: Charge) -> None:
        """Write a charge to the ledger, under the present phase."""
        if self._within is not None:
            self._within.book(charge)
        name = "/".join(part for part in (self._root, *current_phase()) if part)
        line, key = charge.model_copy(update={"phase": name}).model_dump_json() + "\n", (name, charge.component)
        with self._lock:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self.path.exists():
                    end_with_a_line(self.path)
                # A line each, at once: what was spent is known also after a kill.
                self._file = self.path.open("a", encoding="utf-8", buffering=1)
            self._file.write(line)
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

    def _ended(self, worst_usd: Decimal) -> "asyncio.Future[None] | None":
        """Done when a call under way ends, where only those stand before this cap or the one around it; else None."""
        with self._lock:
            if not self._fits(self._held, worst_usd) and self._fits(worst_usd):
                ended = asyncio.get_running_loop().create_future()
                self._waiting.append(ended)
                return ended
        return None if self._within is None else self._within._ended(worst_usd)

    def _by(self, name: Callable[[tuple[str, Component]], K]) -> dict[K, Spending]:
        found: dict[K, Spending] = {}
        for key, part in self._parts.items():
            found[name(key)] = found.get(name(key), Spending()) + part
        return found


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
