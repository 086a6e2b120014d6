"""Controlled re-evaluations: the same examples with one thing changed, to see whether the policy reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from orchestra.config import Rollout
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.run import Contender, OnProgress
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example, Record

ProbeName = Literal["price", "preference", "unseen"]


class Trial(Record):
    """One variant of an example, attempted once."""

    probe: ProbeName
    variant: str
    """price: low, high · preference: neutral, prefer/train, prefer/heldout, avoid/…, cheap/…, fast/… · unseen: known,
    unseen, strongest."""
    example_id: str
    """Of the example that the variant was made from."""
    tool: str | None = None
    """Catalogue entry of the expert that is re-priced, preferred or avoided."""
    outcome: Outcome


class ProbeResults(Record):
    """Every trial of one policy."""

    trials: tuple[Trial, ...]

    def of(self, probe: ProbeName) -> list[Trial]:
        return [trial for trial in self.trials if trial.probe == probe]


def run_probes(
    contender: Contender,
    examples: Sequence[Example],
    toolkit: Toolkit,
    limits: Rollout,
    *,
    price_spread: float,
    seed: int,
    count: int,
    file: Path,
    on_progress: OnProgress | None = None,
) -> ProbeResults:
    """Every probe of one policy on the first `count` topic examples of `examples` (about 15 episodes each).

    `file` collects episodes as in `run.evaluate`, so a killed run continues; keep it in a folder of that checkpoint.
    `price_spread` is that of the profile's synthesize section.
    """
    raise NotImplementedError
