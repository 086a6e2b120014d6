"""Drift: false alarms on steady traffic, and requests until a shift is found: `python -m benchmarks.drift`.

`--judged`: the same of dollars per solved request, over a sample of requests with a verdict.
"""

import argparse
from dataclasses import dataclass

import numpy as np

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
        part = slice(max(0, end - size), end)
        tools, counts = np.unique(self.tool[part], return_counts=True)
        return Sample(
            first={TOOLS[tool]: int(count) for tool, count in zip(tools, counts, strict=True)},
            cost_usd=self.usd[part].tolist(),
            latency_s=self.seconds[part].tolist(),
            answered=int(self.answered[part].sum()),
            turns=2 * len(self.tool[part]),
            parsed=int(self.parsed[part].sum()),
            failed=int(self.failed[part].sum()),
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


def false_alarms(draw: np.random.Generator, requests: int, every: int) -> int:
    """Times at which steady traffic begins to raise an alarm, checked every so many requests."""
    reference = stream(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
    served, alarm, begun = stream(draw, requests, Traffic()), False, 0
    for end in range(MIN_EPISODES, requests, every):
        now = bool(drift(reference, served.window(end)))
        begun += now and not alarm
        alarm = now
    return begun


def delay(draw: np.random.Generator, shift: Traffic, every: int) -> float:
    """Requests from a shift, after a window of steady traffic, to the first alarm; infinite beyond three windows."""
    reference = stream(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
    before, after = stream(draw, WINDOW, Traffic()), stream(draw, 3 * WINDOW, shift)
    both = Stream(*(np.concatenate([getattr(before, name), getattr(after, name)]) for name in Stream.__annotations__))
    for passed in range(every, 3 * WINDOW + 1, every):
        if drift(reference, both.window(WINDOW + passed)):
            return passed
    return float("inf")


@dataclass(frozen=True)
class Verdicts:
    """Judged requests in their order: (requests,)."""

    usd: np.ndarray
    solved: np.ndarray

    @classmethod
    def draw(cls, draw: np.random.Generator, requests: int, traffic: Traffic) -> "Verdicts":
        """Requests that cost more are solved as often: the test must not lean on a tie between the two."""
        usd = 0.01 * traffic.usd * draw.lognormal(0, 1, requests)
        return cls(usd, draw.random(requests) < traffic.solved)

    def then(self, other: "Verdicts") -> "Verdicts":
        return Verdicts(np.concatenate([self.usd, other.usd]), np.concatenate([self.solved, other.solved]))

    def window(self, end: int, size: int = JUDGED_WINDOW) -> Judged:
        part = slice(max(0, end - size), end)
        return Judged(self.usd[part].tolist(), self.solved[part].tolist())


def judged_false_alarms(draw: np.random.Generator, verdicts: int) -> int:
    """Times at which steady traffic begins to raise the alarm, checked at every verdict."""
    evaluated = Verdicts.draw(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
    served, alarm, begun = Verdicts.draw(draw, verdicts, Traffic()), False, 0
    for end in range(MIN_EPISODES, verdicts):
        now = cost_per_solved(evaluated, served.window(end)) is not None
        begun += now and not alarm
        alarm = now
    return begun


def judged_delay(draw: np.random.Generator, shift: Traffic) -> float:
    """Verdicts from a shift, after a window of steady traffic, to the alarm; infinite beyond three windows."""
    evaluated = Verdicts.draw(draw, REFERENCE, Traffic()).window(REFERENCE, REFERENCE)
    steady, later = (Verdicts.draw(draw, n * JUDGED_WINDOW, t) for n, t in ((1, Traffic()), (3, shift)))
    both = steady.then(later)
    for passed in range(1, 3 * JUDGED_WINDOW + 1):
        if cost_per_solved(evaluated, both.window(JUDGED_WINDOW + passed)) is not None:
            return passed
    return float("inf")


def judged(months: int, verdicts: int, trials: int) -> None:
    """The table of dollars per solved."""
    draw = np.random.default_rng(0)
    alarms = [judged_false_alarms(draw, verdicts) for _ in range(months)]
    print(f"steady: {sum(alarms)} false alarms in {months} months of {verdicts} verdicts: {alarms}")
    print("| shift | median verdicts to the alarm | 95 % within |\n|---|---:|---:|")
    for name, shift in JUDGED_SHIFTS.items():
        found = sorted(judged_delay(draw, shift) for _ in range(trials))
        print(f"| {name} | {found[len(found) // 2]:g} | {found[int(0.95 * (len(found) - 1))]:g} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=6)
    parser.add_argument("--requests", type=int, default=43_200, help="a month: one a minute")
    parser.add_argument("--every", type=int, default=5, help="requests from one check to the next")
    parser.add_argument("--trials", type=int, default=40, help="of each shift")
    parser.add_argument("--judged", action="store_true", help="dollars per solved, over --verdicts a month")
    parser.add_argument("--verdicts", type=int, default=4_320, help="a month: a tenth of one request a minute")
    told = parser.parse_args()
    if told.judged:
        judged(told.months, told.verdicts, told.trials)
        return
    draw = np.random.default_rng(0)
    alarms = [false_alarms(draw, told.requests, told.every) for _ in range(told.months)]
    print(f"steady: {sum(alarms)} false alarms in {told.months} months of {told.requests} requests: {alarms}")
    print("| shift | median requests to the alarm | 95 % within |\n|---|---:|---:|")
    for name, shift in SHIFTS.items():
        found = sorted(delay(draw, shift, told.every) for _ in range(told.trials))
        print(f"| {name} | {found[len(found) // 2]:g} | {found[int(0.95 * (len(found) - 1))]:g} |")


if __name__ == "__main__":
    main()
