"""The dollars of a training by its ledger: each that is booked is told once, of a step or of a check.

Episodes would tell another sum: copies of a greedy one cost nothing, and those whose later turns are tried are paid for
and kept in no group.
"""

from collections.abc import Mapping
from decimal import Decimal

from orchestra.accounting.budget import Budget
from orchestra.types import EXACT, add_up

CHECKS = "watch"
"""The phase of development checks."""


class StepSpending:
    """What one process books, counted from where it was asked last; ask while nothing is played."""

    def __init__(self, budget: Budget, stage: str, told: Mapping[bool, Decimal] | None = None) -> None:
        """`stage`: the phase that the budget puts before all others. `told`: what of this ledger an earlier attempt has
        told, of checks (True) and of steps (False)."""
        self._budget, self._stage = budget, stage
        self._told = {False: Decimal(0), True: Decimal(0), **(told or {})}

    def steps(self) -> Decimal:
        """Dollars of episodes and of what was tried for them; also those of a killed attempt that logged no step."""
        return self._since(checks=False)

    def checks(self) -> Decimal:
        """Dollars of development checks."""
        return self._since(checks=True)

    def _since(self, *, checks: bool) -> Decimal:
        parts = ((name.split("/"), part) for name, part in self._budget.by_phase().items())
        booked = add_up(
            part.cost_usd for (stage, *rest), part in parts if stage == self._stage and (rest[:1] == [CHECKS]) is checks
        )
        before, self._told[checks] = self._told[checks], booked
        return EXACT.subtract(booked, before)
