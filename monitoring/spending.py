"""What served answers cost: dollars for each solved request, and what experts charge against the catalogue's prices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from monitoring.drift import LEVEL, MIN_EPISODES, RATIO, Signal
from orchestra.accounting.ledger import cost_of
from orchestra.tools.catalogue.catalogue import CatalogueFile
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.types import EXACT, Component, Episode

JUDGED_WINDOW = 300
"""The latest verdicts that are compared."""
PRICE_RATIO = Decimal("1.01")
"""What is charged is known to the last digit, so 1 % is no chance; less is what a provider rounds."""
PER_SOLVED = "dollars per solved request"


@dataclass(frozen=True)
class Judged:
    """Requests with a verdict: dollars and whether it was solved, side by side."""

    cost_usd: Sequence[float]
    solved: Sequence[bool]

    @property
    def requests(self) -> int:
        return len(self.cost_usd)

    @property
    def usd_per_solved(self) -> float:
        """Infinite where nothing was solved."""
        right = sum(self.solved)
        return sum(self.cost_usd) / right if right else float("inf")


def cost_per_solved(evaluated: Judged, served: Judged) -> Signal | None:
    """A rise of dollars per solved that is beyond chance and at least `RATIO`; None for a few, or where none was solved
    at the evaluation.

    With r the evaluation's ratio, dollars - r · solved is 0 on average there. Whether it is larger among the served is
    one question about a mean: Welch's test.
    """
    from scipy.stats import ttest_ind

    if min(evaluated.requests, served.requests) < MIN_EPISODES or not any(evaluated.solved):
        return None
    usual, now = evaluated.usd_per_solved, served.usd_per_solved
    if usual == 0 or now / usual <= RATIO:
        return None
    before, after = _beyond(evaluated, usual), _beyond(served, usual)
    p_value = float(ttest_ind(after, before, equal_var=False, alternative="greater").pvalue)
    return Signal(PER_SOLVED, usual, now, p_value) if p_value < LEVEL else None


def _beyond(judged: Judged, usual: float) -> list[float]:
    """Dollars beyond what a solved request may cost, of each request."""
    return [usd - usual * solved for usd, solved in zip(judged.cost_usd, judged.solved, strict=True)]


@dataclass(frozen=True)
class Charged:
    """What one expert charged, and what today's price of the catalogue makes of the same tokens and seconds."""

    calls: int
    charged_usd: Decimal
    listed_usd: Decimal

    @property
    def ratio(self) -> float:
        """1 where both agree; infinite where something is charged that is listed as free."""
        if self.listed_usd:
            return float(self.charged_usd / self.listed_usd)
        return float("inf") if self.charged_usd else 1.0

    @property
    def moved(self) -> bool:
        return not 1 / float(PRICE_RATIO) <= self.ratio <= float(PRICE_RATIO)


def charged(episodes: Iterable[Episode], file: CatalogueFile, book: PriceBook, today: date) -> dict[str, Charged]:
    """By expert. One that the catalogue does not know, or that has no price today, is left out: `orchestra prices
    check` names it."""
    found: dict[str, Charged] = {}
    for charge in (one for episode in episodes for one in episode.charges):
        entry = file.tools.get(charge.name)
        row = None if entry is None else book.row(entry.price, today)
        if row is None or charge.component is not Component.EXPERT:
            continue
        listed = cost_of(row.price, charge.usage, seconds=charge.latency_s)
        known = found.get(charge.name, Charged(0, Decimal(0), Decimal(0)))
        found[charge.name] = Charged(
            known.calls + 1,
            EXACT.add(known.charged_usd, charge.cost_usd),
            EXACT.add(known.listed_usd, listed),
        )
    return found


def price_drift(by_tool: Mapping[str, Charged]) -> list[str]:
    """One line for each expert whose charges are not the catalogue's."""
    return [
        f"{name} charged {one.charged_usd:f} USD in {one.calls} calls, at today's price {one.listed_usd:f}"
        for name, one in sorted(by_tool.items())
        if one.moved
    ]
