"""Tests whether the served model still behaves as evaluated: scipy's tests over the latest episodes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestra.types import Episode, StopReason

MIN_EPISODES = 50
"""Below it nothing is said."""
WINDOW = 500
"""The latest episodes that are compared: what is older is no news."""
CHECKS_A_MONTH = 8640
"""One in five minutes."""
TESTS = 8
"""Those of `drift`, and that of dollars per solved (monitoring/spending.py)."""
LEVEL = 1 / (CHECKS_A_MONTH * TESTS)
"""Error level of each test (Bonferroni): steady traffic raises one false alarm a month at most, on average.
`python -m benchmarks.drift` measures fewer, since windows overlap."""
RATIO, SHARE, TOP_SHARE = 1.2, 0.03, 0.9
"""What is too small to matter, however sure: a ratio of means, a difference of shares. And the share of one tool."""


@dataclass(frozen=True)
class Sample:
    """What is compared of a set of episodes; failures of infrastructure count in `failed` only."""

    first: Mapping[str, int]
    """Episodes by the tool that they called first, `none` where they called none."""
    cost_usd: Sequence[float]
    latency_s: Sequence[float]
    answered: int
    """Episodes that ended with an answer."""
    turns: int
    parsed: int
    failed: int
    """Episodes that a tool's failure ended."""

    @property
    def episodes(self) -> int:
        return len(self.cost_usd)

    @property
    def requests(self) -> int:
        """Those that a tool's failure ended among them."""
        return self.episodes + self.failed


@dataclass(frozen=True)
class Signal:
    """One difference that is beyond chance and large enough to matter."""

    name: str
    reference: float
    current: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.name}: {self.current:.4g}, at evaluation {self.reference:.4g} (p = {self.p_value:.1g})"


def sample(episodes: Iterable[Episode]) -> Sample:
    """Summarise episodes, but for those that their callers ended: they left, or a call is theirs to run."""
    every = [one for one in episodes if one.stop not in (StopReason.CANCELLED, StopReason.HANDED_OVER)]
    counted = [one for one in every if one.stop is not StopReason.TOOL_FAILURE]
    turns = [turn for one in counted for turn in one.turns]
    return Sample(
        first=Counter(next(iter(one.tool_counts), "none") for one in counted),
        cost_usd=[float(one.cost_usd) for one in counted],
        latency_s=[float(one.latency_s) for one in counted],
        answered=sum(one.stop is StopReason.ANSWERED for one in counted),
        turns=len(turns),
        parsed=sum(turn.parse_error is None for turn in turns),
        failed=len(every) - len(counted),
    )


def alike(evaluated: Sequence[tuple[Episode, bool]], served: Sequence[tuple[Episode, bool]]) -> list[Episode]:
    """The first evaluated episodes of each kind, with the served ones' share of a domain's tasks; True: one is.

    How many requests name a domain is the callers' doing. Beside a whole evaluation, the same model looks like another
    one to callers who name none: the domains' tools are missing, and dollars are more. All of them where too few of a
    kind that is served were evaluated.
    """
    kinds = {kind: [one for one, of_domain in evaluated if of_domain is kind] for kind in (True, False)}
    counts = {kind: sum(of_domain is kind for _, of_domain in served) for kind in kinds}
    parts = [len(kinds[kind]) / count for kind, count in counts.items() if count]
    shares = {kind: round(min(parts, default=0) * count) for kind, count in counts.items()}
    if sum(shares.values()) < MIN_EPISODES:
        return [one for one, _ in evaluated]
    return [one for kind, found in kinds.items() for one in found[: shares[kind]]]


def drift(reference: Sample, current: Sample) -> list[Signal]:
    """What differs of served episodes from evaluated ones, beyond chance and by enough; empty for a few.

    Mann-Whitney for dollars and seconds, chi-squared for the mix of tools, Fisher's exact test for shares. What is lost
    to tools is told also where nothing else is left to compare.
    """
    if min(reference.requests, current.requests) < MIN_EPISODES:
        return []
    lost = ((one.failed, one.requests) for one in (reference, current))
    found = [_share("share lost to tools", *lost, fewer=False)]
    if min(reference.episodes, current.episodes) >= MIN_EPISODES:
        found += _behaviour(reference, current)
    return [signal for signal in found if signal is not None and signal.p_value < LEVEL]


def _behaviour(reference: Sample, current: Sample) -> list[Signal | None]:
    """Of the episodes that no tool's failure ended."""
    served, before = current.episodes, reference.episodes
    return [
        _mix(reference.first, current.first),
        _collapse(reference.first, current.first),
        _amount("dollars an episode", reference.cost_usd, current.cost_usd),
        _amount("seconds an episode", reference.latency_s, current.latency_s),
        _share("share answered", (reference.answered, before), (current.answered, served), fewer=True),
        _share(
            "share of turns that parse",
            (reference.parsed, reference.turns),
            (current.parsed, current.turns),
            fewer=True,
        ),
    ]


def _mix(reference: Mapping[str, int], current: Mapping[str, int]) -> Signal | None:
    """Another mix of tools; its figure is the share of episodes that would have to go elsewhere."""
    from scipy.stats import chi2_contingency

    whole = Counter(reference) + Counter(current)
    smaller = min(sum(reference.values()), sum(current.values())) / whole.total()
    # The test wants five expected in every cell.
    common = [name for name, count in whole.items() if count * smaller >= 5]
    rows = [[counts.get(name, 0) for name in common] for counts in (reference, current)]
    rest = [sum(counts.values()) - sum(row) for counts, row in zip((reference, current), rows, strict=True)]
    # A row of rare tools only would be empty without them.
    if sum(rest) * smaller >= 5 or not all(map(sum, rows)):
        rows = [[*row, left] for row, left in zip(rows, rest, strict=True)]
    if len(rows[0]) < 2:
        return None
    shares = [[count / sum(row) for count in row] for row in rows]
    moved = sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2
    p_value = float(chi2_contingency(rows).pvalue)
    return Signal("mix of tools (share that moved)", 0.0, moved, p_value) if moved > 2 * SHARE else None


def _collapse(reference: Mapping[str, int], current: Mapping[str, int]) -> Signal | None:
    """Nearly every episode calls the same tool first, which was not so at the evaluation."""
    from scipy.stats import binomtest

    name = max(current, key=lambda one: current[one])
    served, before = sum(current.values()), reference.get(name, 0) / sum(reference.values())
    if before > TOP_SHARE or current[name] <= TOP_SHARE * served:
        return None
    p_value = float(binomtest(current[name], served, max(before, 0.5), alternative="greater").pvalue)
    return Signal(f"share of {name} (collapse onto one tool)", before, current[name] / served, p_value)


def _amount(name: str, reference: Sequence[float], current: Sequence[float]) -> Signal | None:
    from scipy.stats import mannwhitneyu

    before, now = _mean(reference), _mean(current)
    if before == 0 or 1 / RATIO <= now / before <= RATIO:
        return None
    return Signal(name, before, now, float(mannwhitneyu(reference, current).pvalue))


def _share(name: str, reference: tuple[int, int], current: tuple[int, int], *, fewer: bool) -> Signal | None:
    """A share that fell (`fewer`) or rose; each pair is how many of how many."""
    from scipy.stats import fisher_exact

    if not reference[1] or not current[1]:
        return None
    before, now = reference[0] / reference[1], current[0] / current[1]
    if (before - now if fewer else now - before) <= SHARE:
        return None
    table = [[count, total - count] for count, total in (reference, current)]
    return Signal(name, before, now, float(fisher_exact(table, alternative="greater" if fewer else "less").pvalue))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
