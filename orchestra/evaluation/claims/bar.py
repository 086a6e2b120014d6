"""A claim before it is measured: what it is called, its threshold, and its measure."""

from dataclasses import dataclass
from typing import Literal

from orchestra.evaluation.claims.measures import Measured

Unit = Literal["share", "points", "times", "utility", "minutes", "cents", "seconds"]
Sign = Literal["≥", "≤", ">"]


@dataclass(frozen=True)
class Bar:
    """One row of the claims table to be."""

    name: str
    sign: Sign
    threshold: float
    unit: Unit
    measure: Measured
    headline: bool = False
    """Whether the README shows it."""

    def met(self, value: float | None) -> bool:
        if value is None:
            return False
        if self.sign == "≤":
            return value <= self.threshold
        return value > self.threshold if self.sign == ">" else value >= self.threshold
