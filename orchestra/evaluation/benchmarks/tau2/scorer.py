"""Figures of tau2-bench beside pass^k: those of each domain, and the means of domains that published figures are."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import fmean

from orchestra.evaluation.benchmarks.base import Attempt, Figures, by_group
from orchestra.statistics.trials import pass_all
from orchestra.types import add_up

PUBLISHED = ("airline", "retail", "telecom")
"""The domains of the paper's figure for the benchmark; mock is the package's own test, and banking came later."""


def figures(attempts: Sequence[Attempt], questions: int) -> Figures:
    """`accuracy_domains`: the mean of the domains' shares; `accuracy_published`: that of airline, retail and telecom,
    where all three were asked; `user_usd`: dollars of an attempt's user and judge.

    `pass_all_K/DOMAIN` is pass^k of one domain, as the official package gives it: domain by domain.
    """
    del questions
    users = add_up(Decimal(str(attempt.details.get("user_usd", 0))) for attempt in attempts)
    found, shares = {"user_usd": float(users / max(1, len(attempts)))}, dict[str, float]()
    for domain, some in by_group(attempts).items():
        verdicts: dict[str, list[bool]] = {}
        for attempt in some:
            if attempt.solved is not None:
                verdicts.setdefault(attempt.item, []).append(attempt.solved)
        if verdicts:
            shares[domain] = fmean(solved for trials in verdicts.values() for solved in trials)
            found |= {f"pass_all_{k}/{domain}": value for k, value in _pass_rates(verdicts).items()}
    if shares:
        found["accuracy_domains"] = fmean(shares.values())
    if all(domain in shares for domain in PUBLISHED):
        found["accuracy_published"] = fmean(shares[domain] for domain in PUBLISHED)
    return found


def _pass_rates(verdicts: Mapping[str, Sequence[bool]]) -> dict[int, float]:
    """By k, up to the fewest trials that a task has; none for one trial, whose pass^1 is the accuracy."""
    counts = [(sum(found), len(found)) for found in verdicts.values()]
    most = min(trials for _, trials in counts)
    ks = range(1, most + 1) if most > 1 else ()
    return {k: fmean(pass_all(successes, trials, k) for successes, trials in counts) for k in ks}
