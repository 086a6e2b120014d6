"""Drift: false alarms on steady traffic, and requests until a shift is found: `python -m benchmarks.drift`.

`--judged`: the same of dollars per solved request, over a sample of requests with a verdict.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from benchmarks.command import run_benchmark, usage
from monitoring.drift import MIN_EPISODES, WINDOW, Sample, drift
from monitoring.spending import JUDGED_WINDOW, Judged, cost_per_solved

TOOLS = ("strongest", "cheap", "search", "none")
REFERENCE = 1024
"""Evaluated episodes of the embedded profile."""


@dataclass(frozen=True)
class Traffic:
    """A made-up model's requests; dollars and seconds are lognormal, times these factors."""

    mix: tuple[float, ...] = (0.3, 0.5, 0.15, 0.05)
    usd: float = 1.0
    seconds: float = 1.0
    answered: float = 0.96
    parsed: float = 0.99
    failed: float = 0.01
    solved: float = 0.8


SHIFTS = {
    "15 % of requests go to another tool": Traffic(mix=(0.15, 0.65, 0.15, 0.05)),
    "collapse: 97 % to one tool": Traffic(mix=(0.02, 0.97, 0.01, 0.0)),
    "dollars x 1.5": Traffic(usd=1.5),
    "dollars x 2": Traffic(usd=2.0),
    "seconds x 1.5": Traffic(seconds=1.5),
    "answered: 96 % to 86 %": Traffic(answered=0.86),
    "turns that parse: 99 % to 94 %": Traffic(parsed=0.94),
    "an expert is out: 1 % to 10 % lost": Traffic(failed=0.10),
}


JUDGED_SHIFTS = {
    "solved: 80 % to 60 %": Traffic(solved=0.6),
    "solved: 80 % to 50 %": Traffic(solved=0.5),
    "dollars x 1.5": Traffic(usd=1.5),
    "dollars x 2": Traffic(usd=2.0),
    "dollars x 1.5, solved: 80 % to 70 %": Traffic(usd=1.5, solved=0.7),
}


@dataclass(frozen=True)
class Stream:
    """Requests in their order: (requests,)."""

    tool: np.ndarray
    usd: np.ndarray
    seconds: np.ndarray
    answered: np.ndarray
    parsed: np.ndarray
    failed: np.ndarray

    def window(self, end: int, size: int = WINDOW) -> Sample:
        """The latest `size` requests before `end`."""
        part = np.arange(max(0, end - size), end)
        # What a tool's failure ended counts as that alone.
        kept = part[~self.failed[part]]
        tools, counts = np.unique(self.tool[kept], return_counts=True)
        return Sample(
            first={TOOLS[tool]: int(count) for tool, count in zip(tools, counts, strict=True)},
            cost_usd=self.usd[kept].tolist(),
            latency_s=self.seconds[kept].tolist(),
            answered=int(self.answered[kept].sum()),
            turns=2 * len(kept),
            parsed=int(self.parsed[kept].sum()),
            failed=len(part) - len(kept),
        )


def stream(draw: np.random.Generator, requests: int, traffic: Traffic) -> Stream:
    return Stream(
        tool=draw.choice(len(TOOLS), requests, p=traffic.mix),
        usd=0.01 * traffic.usd * draw.lognormal(0, 1, requests),
        seconds=5 * traffic.seconds * draw.lognormal(0, 0.7, requests),
        answered=draw.random(requests) < traffic.answered,
        parsed=draw.binomial(2, traffic.parsed, requests),
        failed=draw.random(requests) < traffic.failed,
    )


@dataclass(frozen=True)
class Verdicts:
    """Judged requests in their order: (requests,)."""

    usd: np.ndarray
    solved: np.ndarray

    def window(self, end: int, size: int = JUDGED_WINDOW) -> Judged:
        """The latest `size` requests before `end`."""
        part = slice(max(0, end - size), end)
        return Judged(self.usd[part].tolist(), self.solved[part].tolist())


def verdicts(draw: np.random.Generator, requests: int, traffic: Traffic) -> Verdicts:
    """Requests that cost more are solved as often: the test must not lean on a tie between the two."""
    usd = 0.01 * traffic.usd * draw.lognormal(0, 1, requests)
    return Verdicts(usd, draw.random(requests) < traffic.solved)


@dataclass(frozen=True)
class Alarm:
    """What is watched, and when that raises an alarm."""

    unit: str
    draw: Callable[[np.random.Generator, int, Traffic], Stream | Verdicts]
    window: int
    raised: Callable[[Any, Any], bool]
    """Whether a window of served requests differs from the evaluation's."""

    def false(self, draw: np.random.Generator, requests: int, every: int) -> int:
        """Times at which steady traffic begins to raise an alarm, checked every so many requests."""
        reference = self.draw(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
        served, alarm, begun = self.draw(draw, requests, Traffic()), False, 0
        for end in range(MIN_EPISODES, requests, every):
            now = self.raised(reference, served.window(end))
            begun += now and not alarm
            alarm = now
        return begun

    def delay(self, draw: np.random.Generator, shift: Traffic, every: int) -> float:
        """Requests from a shift, after a window of steady traffic, to an alarm; infinite beyond three windows."""
        reference = self.draw(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
        before, after = self.draw(draw, self.window, Traffic()), self.draw(draw, 3 * self.window, shift)
        names = [field.name for field in fields(before)]
        both = type(before)(*(np.concatenate([getattr(before, name), getattr(after, name)]) for name in names))
        for passed in range(every, 3 * self.window + 1, every):
            if self.raised(reference, both.window(self.window + passed)):
                return passed
        return float("inf")


USUAL = Alarm("requests", stream, WINDOW, lambda reference, now: bool(drift(reference, now)))
PER_SOLVED = Alarm(
    "verdicts", verdicts, JUDGED_WINDOW, lambda reference, now: cost_per_solved(reference, now) is not None
)


def main(given: Sequence[str] | None = None) -> None:
    parser = usage(__doc__)
    parser.add_argument("--months", type=int, default=6)
    parser.add_argument("--requests", type=int, default=43_200, help="a month: one a minute")
    parser.add_argument("--every", type=int, default=5, help="requests from one check to the next")
    parser.add_argument("--trials", type=int, default=40, help="of each shift")
    parser.add_argument("--judged", action="store_true", help="dollars per solved, over --verdicts a month")
    parser.add_argument("--verdicts", type=int, default=4_320, help="a month: a tenth of one request a minute")
    told = parser.parse_args(given)
    alarm, shifts, count, every = (
        (PER_SOLVED, JUDGED_SHIFTS, told.verdicts, 1) if told.judged else (USUAL, SHIFTS, told.requests, told.every)
    )
    draw = np.random.default_rng(0)
    alarms = [alarm.false(draw, count, every) for _ in range(told.months)]
    print(f"steady: {sum(alarms)} false alarms in {told.months} months of {count} {alarm.unit}: {alarms}")
    print(f"| shift | median {alarm.unit} to the alarm | 95 % within |\n|---|---:|---:|")
    for name, shift in shifts.items():
        found = sorted(alarm.delay(draw, shift, every) for _ in range(told.trials))
        print(f"| {name} | {found[len(found) // 2]:g} | {found[int(0.95 * (len(found) - 1))]:g} |")


if __name__ == "__main__":
    run_benchmark(main)
