"""How the decision page words figures, what the gate asks of a candidate, and why no rule serves in its place."""

from orchestra.config.promote import Promote
from orchestra.promotion.gate import BEST_IN_UTILITY, Decision
from orchestra.statistics.intervals import Interval


def asked(limits: Promote) -> str:
    """What a candidate must be better in, in a few sentences."""
    level = f"A candidate that is no better passes with a chance of at most {100 * limits.error_level:g} %."
    against = "Against the champion (the SFT model where there is none)"
    if limits.objective == "utility":
        compared = (
            f"{against} its utility must be higher, beyond chance: what each user gets, weighed by their own "
            "preference. The best rule may not be better in utility, beyond chance."
        )
    else:
        compared = (
            f"{against} its accuracy may be at most {100 * limits.accuracy_margin:g} points lower and its dollars at "
            f"most {100 * limits.cost_margin:g} % higher, beyond chance. It must be better in one of the two, beyond "
            "chance."
        )
    said = f"A candidate must keep every floor and ceiling. {compared} {level}"
    return said + (" A person must approve what passes." if limits.approval == "required" else "")


def why_not(decision: Decision) -> str:
    """How the candidate compares with the best rule: at its dollars, and in utility where the gate goes by that."""
    by_utility = next((check for check in decision.reasons if check.name == BEST_IN_UTILITY), None)
    said = _at_equal_cost(decision)
    return said if by_utility is None else f"{said} The gate goes by {by_utility.reason}."


def _at_equal_cost(decision: Decision) -> str:
    rival = decision.equal_cost
    if rival is None:
        return "No rule was measured, so that nothing says whether one would do."
    gain, ends = rival.gain, between(rival.gain, percent=True)
    if gain.value is None or gain.low is None or gain.high is None:
        return "The best rule at equal cost could not be compared."
    better = gain.low > 0
    outcome = (
        "the candidate is better beyond chance"
        if better
        else "the rule is better beyond chance"
        if gain.high < 0
        else "chance explains the difference"
    )
    return (
        f"Why not {rival.name}? It is the best rule for the candidate's dollars: it costs {cents(rival.cost_usd)} and "
        f"solves {percent(rival.accuracy)}. The candidate solves {100 * abs(gain.value):.1f} points "
        f"{'fewer' if gain.value < 0 else 'more'} (difference {ends}), so {outcome}."
    )


def percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.1f} %"


def cents(usd: float | None) -> str:
    return "—" if usd is None else f"{100 * usd:.3f} ¢"


def between(interval: Interval | None, *, percent: bool = False) -> str:
    """The ends of an interval; empty where it is not known."""
    if interval is None or interval.low is None:
        return ""
    scale = 100 if percent else 1
    high = "any" if interval.high is None else f"{scale * interval.high:.3g}"
    return f"{scale * interval.low:.3g} to {high}"
