"""A key's dollars: reserved before each call and booked after it, atomically over every gateway."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from sqlite3 import Connection

from orchestra.accounting.budget import SpendingCap
from orchestra.errors import BudgetError
from orchestra.serving.shared.database import LEASE_S, Database
from orchestra.serving.shared.keys import PERIODS, period_of
from orchestra.types import Charge, Turn, add_up

HOLD_S = LEASE_S
"""Seconds after which what a killed gateway held back is free again."""
FORGET_S = 3600.0
"""Seconds after which its row is deleted then: a gateway that stood still for a while goes on with it."""
ROOM_S = 5.0
"""Seconds that a request waits for others' calls before its first turn; it holds a place meanwhile."""
PAID_ROOM_S = 660.0
"""Seconds that one waits which has paid for turns: to refuse it wastes them. An expert's call may take 600 s."""
LOOK_S = 0.05
"""Seconds between two looks whether others' calls have ended."""


def renew_holds(database: Database) -> None:
    """Keep what this process's calls hold back."""
    if database.held:
        rows = [(time.time() + HOLD_S, held) for held in tuple(database.held)]
        with database.change() as store:
            store.executemany("UPDATE holds SET until = ? WHERE id = ?", rows)


class KeyBudget:
    """One request's view of its key's budget, as `orchestra.accounting.budget.Budget` is one of a run."""

    def __init__(self, database: Database, key_id: str) -> None:
        self._database, self._key = database, key_id
        self._paid = False
        """Whether the request has cost something."""
        with database.look() as store:
            row = store.execute("SELECT budget_usd, period FROM keys WHERE id = ?", (key_id,)).fetchone()
        self.cap_usd = None if row is None or row[0] is None else Decimal(row[0])
        self._ends = row is not None and row[1] in PERIODS and row[1] != "total"
        """Whether another period follows the present one."""

    @contextlib.contextmanager
    def hold(self, worst_usd: Decimal) -> Iterator[None]:
        """Keep a call's worst case back while it runs; raises `BudgetError`."""
        if self.cap_usd is None:
            yield
            return
        with self._database.change() as store:
            self._check(store, worst_usd)
            now = time.time()
            store.execute("DELETE FROM holds WHERE key = ? AND until < ?", (self._key, now - FORGET_S))
            row = (self._key, f"{worst_usd:f}", now + HOLD_S)
            held = store.execute("INSERT INTO holds (key, usd, until) VALUES (?, ?, ?)", row).lastrowid
        self._database.held.add(held)
        try:
            yield
        finally:
            self._database.held.discard(held)
            with self._database.change() as store:
                store.execute("DELETE FROM holds WHERE id = ?", (held,))

    async def room(self, worst_usd: Decimal) -> None:
        """Wait a while, and longer once turns are paid, where only what is held for calls under way stands before the
        cap: most cost less than that."""
        if self.cap_usd is None:
            return
        until = time.monotonic() + (PAID_ROOM_S if self._paid else ROOM_S)
        while time.monotonic() < until:
            with self._database.look() as store:
                spent, held = self._state(store)
            if add_up((spent, worst_usd)) > self.cap_usd or add_up((spent, held, worst_usd)) <= self.cap_usd:
                return
            await asyncio.sleep(LOOK_S)

    async def check(self, worst_usd: Decimal) -> None:
        """Raises `BudgetError` as `hold` would after `room`; nothing is held."""
        await self.room(worst_usd)
        if self.cap_usd is not None:
            with self._database.look() as store:
                self._check(store, worst_usd)

    def book(self, charge: Charge) -> None:
        """Count a charge."""
        self._paid = True
        self._add(charge.cost_usd)

    def _add(self, usd: Decimal) -> None:
        with self._database.change() as store:
            spent, present = self._spent(store)
            store.execute(
                "UPDATE keys SET spent_usd = ?, spent_in = ? WHERE id = ?",
                (f"{add_up((spent, usd)):f}", present, self._key),
            )

    def _check(self, store: Connection, worst_usd: Decimal) -> None:
        spent, held = self._state(store)
        if self.cap_usd is None or add_up((spent, held, worst_usd)) <= self.cap_usd:
            return
        under_way = f", {held:f} are held for calls under way" if held else ""
        what = f"{spent:f} of {self.cap_usd:f} USD are spent{under_way}, and the next call could cost {worst_usd:f}"
        # What is held for calls under way comes back, for the most part.
        passes = add_up((spent, worst_usd)) <= self.cap_usd
        larger = "ask for a larger budget" + (", or wait for the next period" if self._ends else "")
        fix = "try again when they have ended" if passes else larger
        refused = BudgetError(what, where=f"key {self._key}", fix=fix)
        refused.retryable = passes
        raise refused

    def _state(self, store: Connection) -> tuple[Decimal, Decimal]:
        """What is spent in the period, and what is held for calls under way."""
        rows = store.execute("SELECT usd FROM holds WHERE key = ? AND until > ?", (self._key, time.time())).fetchall()
        return self._spent(store)[0], add_up(Decimal(row[0]) for row in rows)

    def _spent(self, store: Connection) -> tuple[Decimal, str]:
        """What is spent in the present period, and its name."""
        row = store.execute("SELECT spent_usd, spent_in, period FROM keys WHERE id = ?", (self._key,)).fetchone()
        present = period_of(row[2] if row[2] in PERIODS else "total", time.time())
        return Decimal(row[0]) if row[1] == present else Decimal(0), present


class RequestSpending:
    """What a request is charged, which its key's budget, if there is one, holds back, books and may refuse."""

    def __init__(self, budget: SpendingCap | None) -> None:
        self._budget = budget
        self.cap_usd = None if budget is None else budget.cap_usd
        self._booked: list[Charge] = []

    def hold(self, worst_usd: Decimal) -> contextlib.AbstractContextManager[None]:
        """As the budget's."""
        return contextlib.nullcontext() if self._budget is None else self._budget.hold(worst_usd)

    async def room(self, worst_usd: Decimal) -> None:
        """As the budget's."""
        if self._budget is not None:
            await self._budget.room(worst_usd)

    def book(self, charge: Charge) -> None:
        """Count a charge."""
        self._booked.append(charge)
        if self._budget is not None:
            self._budget.book(charge)

    def with_cut(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns, and one with what was charged besides where another one was cut."""
        rest = self._booked[sum(len(turn.charges) for turn in turns) :]
        cut = [Turn(ids=(), text="", parse_error="the turn was cut", charges=tuple(rest))] if rest else []
        return [*turns, *cut]
