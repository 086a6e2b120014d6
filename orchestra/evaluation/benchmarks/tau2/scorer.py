"""Figures of tau2-bench beside pass^k: the mean of the domains, which is not the task-weighted mean."""

from collections.abc import Sequence
from decimal import Decimal

from orchestra.evaluation.benchmarks.base import Attempt, Figures, by_group
from orchestra.types import add_up


def figures(attempts: Sequence[Attempt], questions: int) -> Figures:
    """`accuracy_domains`: the mean of the domains' shares; `user_usd`: dollars of an attempt's user and judge."""
    del questions
    users = add_up(Decimal(str(attempt.details.get("user_usd", 0))) for attempt in attempts)
    found = {"user_usd": float(users / max(1, len(attempts)))}
    shares = []
    for some in by_group(attempts).values():
        verdicts = [attempt.solved for attempt in some if attempt.solved is not None]
        if verdicts:
            shares.append(sum(verdicts) / len(verdicts))
    return found | ({"accuracy_domains": sum(shares) / len(shares)} if shares else {})
