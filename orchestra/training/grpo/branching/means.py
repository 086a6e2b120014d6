"""What each choice earned lately: the reward of a single group says little about a choice.

Whether an expert knows the answer to one question is chance: in a group, two choices differ by 0.4 through that alone,
and by 0.05 in the mean. A policy that follows each group in turn settles on what luck preferred last. Here a choice is
paid what it earned in the mean of the last groups whose thoughts said the same up to the choice, beside a share of
what it earned in its own group. That is a critic with one number for each choice.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

ROUNDS = 8
"""Alternations of the least-squares fit; the means then change by less than a thousandth."""
PRIOR = 4
"""Groups of no difference that every choice begins with, so that one lucky group does not decide."""

Key = tuple[str, str]
"""The kind of preference, and what the thought says before the choice."""
Gains = Mapping[str, float]
"""The reward of each choice of a group, less the group's mean; at least one choice."""


class ChoiceMeans:
    """The gains of the last `groups` groups of each key."""

    def __init__(self, groups: int, own: float) -> None:
        self.groups, self.own = groups, own
        self._tried: defaultdict[Key, deque[dict[str, float]]] = defaultdict(lambda: deque(maxlen=groups))

    def add(self, key: Key, gains: Gains) -> None:
        """Count a group in."""
        self._tried[key].append(dict(gains))

    def means(self, key: Key) -> dict[str, float]:
        """The mean gain of each choice.

        Groups try different choices, so their means are not comparable as they are. The fit is `gain = group + choice`
        by least squares.
        """
        tried = self._tried[key]
        found = {choice: 0.0 for gains in tried for choice in gains}
        for _ in range(ROUNDS):
            left: defaultdict[str, list[float]] = defaultdict(list)
            for gains in tried:
                level = fmean(gain - found[choice] for choice, gain in gains.items())
                for choice, gain in gains.items():
                    left[choice].append(gain - level)
            found = {choice: sum(each) / (len(each) + PRIOR) for choice, each in left.items()}
        return found

    def learn(self, groups: Sequence[tuple[Key, Gains]]) -> list[dict[str, float]]:
        """Count the groups of a step in; what each is to learn from, in order.

        That is the means of its choices, and the share `own` of what the group differs by.
        """
        for key, gains in groups:
            self.add(key, gains)
        means = {key: self.means(key) for key, _ in groups}
        return [self._smoothed(means[key], gains) for key, gains in groups]

    def _smoothed(self, means: Gains, gains: Gains) -> dict[str, float]:
        level = fmean(means[choice] for choice in gains)
        middle = fmean(gains.values())
        found = {}
        for choice, gain in gains.items():
            mean = means[choice] - level
            found[choice] = mean + self.own * (gain - middle - mean)
        return found

    def state(self) -> list[tuple[Key, list[dict[str, float]]]]:
        """Everything counted, to be written as JSON."""
        return [(key, list(tried)) for key, tried in self._tried.items()]

    def restore(self, state: Iterable[tuple[Iterable[str], Iterable[Gains]]]) -> None:
        """Take up what `state` gave."""
        self._tried.clear()
        for (kind, said), tried in state:
            self._tried[kind, said].extend(dict(gains) for gains in tried)
