"""Mean dollars within a limit: the multiplier of each kind of preference, by dual ascent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestra.config.reward import Constraint
from orchestra.types import Episode


@dataclass(frozen=True)
class Limit:
    """What a dollar costs in one group: `multiplier` for each time that `usd` is spent."""

    usd: float
    multiplier: float

    def spent(self, episode: Episode) -> float:
        """Dollars as a negative number, in units of the limit: -1 where an episode spends just that."""
        return -float(episode.cost_usd) / self.usd


@dataclass
class Multipliers:
    """The multipliers m of max E[reward] subject to E[dollars] ≤ usd, for each kind of preference that has a limit.

    After every step, m ← min(most, max(0, m + rate · (mean dollars / usd - 1))). They are part of the training's state:
    `measures` goes into its history, from which `restore` takes them.
    """

    constraint: Constraint | None
    values: dict[str, float] = field(default_factory=dict)
    """By kind."""

    def __post_init__(self) -> None:
        self.values = {kind: self.values.get(kind, 0.0) for kind in (self.constraint.usd if self.constraint else {})}

    def limit(self, kind: str) -> Limit | None:
        """Of a kind of preference; None where its dollars have no limit."""
        if self.constraint is None or kind not in self.constraint.usd:
            return None
        return Limit(self.constraint.usd[kind], self.values[kind])

    def ascend(self, spent: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, float]:
        """One step of dual ascent on a step's episodes: (share, dollars) of each, by kind; kinds without any stay.

        Returns the mean dollars by kind.
        """
        means = {}
        for kind in self.values:
            rows = spent.get(kind, ())
            total = sum(share for share, _ in rows)
            if self.constraint is None or total <= 0:
                continue
            means[kind] = sum(share * usd for share, usd in rows) / total
            moved = self.values[kind] + self.constraint.rate * (means[kind] / self.constraint.usd[kind] - 1)
            self.values[kind] = min(self.constraint.most, max(0.0, moved))
        return means

    def measures(self) -> dict[str, float]:
        """What is logged at every step."""
        return {f"multiplier/{kind}": value for kind, value in self.values.items()}

    def restore(self, row: Mapping[str, float]) -> None:
        """Take up the multipliers of a training's last step."""
        for kind in self.values:
            self.values[kind] = row.get(f"multiplier/{kind}", self.values[kind])
