"""The gate: whether a candidate may replace the champion, and every check behind the answer.

Floors and ceilings come first: what no candidate may miss, whoever serves. Then the candidate is compared with the
incumbent on the same examples: the champion, or for the first champion the SFT model that it was trained from. It must
be no worse in accuracy and no more expensive, each by more than a margin, *and* better in at least one of the two, each
beyond chance. A candidate that is no better is promoted with a chance of at most `promote.error_level`: an improvement
has two ways to look true by chance, and each interval excludes a truth on its one side with half that chance.

With `promote.objective: utility` the comparison is of what each user gets for their own preference. Where many users
ask for cheap or fast answers or for an expert of their choice, the best policy for them is less accurate than one that
ignores them, and the rule above would refuse it.
"""

import math
from collections.abc import Callable, Mapping
from operator import ge, le

from orchestra.config.promote import Promote
from orchestra.evaluation.report import label
from orchestra.promotion.approval import Approval
from orchestra.promotion.equal_cost import EqualCost, at_equal_cost
from orchestra.promotion.evidence import Evidence, Results, cost, solved, utilities
from orchestra.statistics.intervals import Interval
from orchestra.statistics.paired import cost_ratio, difference, mean_difference
from orchestra.types import Record

BEST_IN_UTILITY = "best rule in utility"
"""Name of the check against the rules under `objective: utility`."""
LOST = "infrastructure failures"
"""Name of the check of what was lost."""
MAX_FAILED_SHARE = 0.05
"""Above this share of episodes lost to infrastructure, the other measurements are not evidence."""
AGAIN = "orchestra run --force evaluate"
"""The way out where an evaluation lost too much: the stage itself is current, so that no run repeats it by itself."""


class GateCheck(Record):
    """One line of a decision."""

    name: str
    measured: float | None
    """None: not measured."""
    bar: float | None
    """None: nothing to compare with."""
    passed: bool
    reason: str
    """One sentence for a person."""
    interval: Interval | None = None
    """Of what was measured, where chance decides."""
    note: bool = False
    """Whether it only says something, so that it is no check that passed."""


class Decision(Record):
    """Promoted or refused, and why."""

    promoted: bool
    reasons: tuple[GateCheck, ...]
    equal_cost: EqualCost | None = None
    """The best rule at the candidate's cost; None when no rule was measured."""
    approval: Approval | None = None
    """What a person is asked or said; None where nobody is asked."""

    @property
    def waits(self) -> bool:
        """Whether only a person's answer is missing."""
        return self.approval is not None and self.approval.state == "waiting"

    @property
    def name(self) -> str:
        """The end state's name."""
        return "Promoted" if self.promoted else "Waiting" if self.waits else "Rejected"

    @property
    def why(self) -> str:
        """In one line, for a log: the checks that failed, what a person said, or everything that was checked."""
        said = "" if self.approval is None or self.failed else self.approval.line
        return said or "; ".join(check.reason for check in self.failed or self.reasons)

    def answered(self, approval: Approval) -> "Decision":
        """What passed every check, with a person's word on it."""
        return self.model_copy(update={"approval": approval, "promoted": approval.state == "approved"})

    @property
    def checks(self) -> tuple[GateCheck, ...]:
        """The reasons without the notes."""
        return tuple(check for check in self.reasons if not check.note)

    @property
    def failed(self) -> tuple[GateCheck, ...]:
        return tuple(check for check in self.reasons if not check.passed)


class Incumbent(Record):
    """Whom a candidate is compared with."""

    name: str
    """For people: `the champion`, `the SFT model`."""
    evidence: Evidence


def gate(
    evidence: Evidence,
    thresholds: Promote,
    incumbent: Incumbent | None = None,
    rules: Mapping[str, Results] | None = None,
) -> Decision:
    """Every check, in the order a person asks them; promoted when all pass.

    `incumbent` None: there is nobody to compare with, and floors alone decide. `rules` are the results of the rule
    baselines, by name. What is missing or not finite fails its check with a reason.
    """
    level = 1 - thresholds.error_level
    comparable, lost = _comparable_rules(evidence, rules or {}, thresholds)
    rival = at_equal_cost(evidence.results, comparable, level)
    checks = [*_floors(evidence, thresholds), *lost]
    if thresholds.objective == "utility":
        checks += _by_utility(evidence, incumbent, comparable, thresholds)
    else:
        checks += [] if rival is None else [_against_rules(rival, thresholds.rule_margin)]
        checks += [] if incumbent is None else _against(evidence, incumbent, thresholds)
    return Decision(promoted=all(check.passed for check in checks), reasons=tuple(checks), equal_cost=rival)


def _floors(evidence: Evidence, limits: Promote) -> list[GateCheck]:
    """The checks that no candidate may miss; a limit of None is no check."""
    count = len(evidence.results)
    wanted = [
        (LOST, "failed_share", le, MAX_FAILED_SHARE, "share of episodes lost"),
        ("accuracy", "accuracy", ge, limits.min_accuracy, "share of examples solved"),
        ("valid turns", "valid", ge, limits.min_valid, "share of turns that parse"),
        ("cost", "cost_ratio", le, limits.max_cost_ratio, "dollars against always-strongest"),
        ("dollars", "cost_usd", le, limits.max_cost_usd, "dollars per example"),
        ("latency", "latency_p95_s", le, limits.max_latency_p95_s, "seconds that 95 % of the examples stay within"),
        ("preference score", "preference", ge, limits.min_preference, "Eq. 5-6 per example, the SFT model near 1"),
        ("safety set", "safety_failed", le, limits.max_safety_failures, "injection cases that did not hold"),
    ]
    enough = GateCheck(
        name="examples",
        measured=float(count),
        bar=float(limits.min_examples),
        passed=count >= limits.min_examples,
        reason=f"examples with a verdict: {count}, at least {limits.min_examples} wanted",
    )
    checked = (_check(name, evidence.metrics, metric, passes, bar, said) for name, metric, passes, bar, said in wanted)
    return [enough, *(_with_way_out(check) for check in checked if check is not None)]


def _with_way_out(check: GateCheck) -> GateCheck:
    """The same, and what to do where too many episodes were lost: that says nothing about the candidate."""
    if check.passed or check.name != LOST:
        return check
    return check.model_copy(update={"reason": f"{check.reason}: {AGAIN}"})


def _comparable_rules(
    evidence: Evidence, rules: Mapping[str, Results], limits: Promote
) -> tuple[Mapping[str, Results], list[GateCheck]]:
    """The rules with a verdict on enough of the candidate's examples, and a failed check about the others.

    A rule whose experts were down could not be the better one, and would hide the rules that are: the comparison is on
    the examples that all have.
    """
    # Of a candidate with fewer, the check of its examples speaks.
    wanted = min(limits.min_examples, len(evidence.results))
    shared = {name: len(evidence.results.keys() & found.keys()) for name, found in rules.items()}
    few = {name: count for name, count in shared.items() if count < wanted}
    if not few:
        return rules, []
    said = ", ".join(f"{label(name)} {count}" for name, count in few.items())
    reason = f"examples with a verdict of a rule too: {said}; {wanted} wanted: {AGAIN}"
    check = GateCheck(
        name="rules measured", measured=float(min(few.values())), bar=float(wanted), passed=False, reason=reason
    )
    return {name: found for name, found in rules.items() if name not in few}, [check]


def _against_rules(rival: EqualCost, margin: float) -> GateCheck:
    """Refused only where the rule is better beyond chance: then it is the better product, and needs no training."""
    gain, bar = rival.gain, 0.0 - margin
    said = (
        f"accuracy less that of {rival.name} at equal cost: {_points(gain)}; refused when the whole interval lies "
        f"below {100 * bar:g} points"
    )
    passed = gain.high is not None and gain.high >= bar
    return GateCheck(
        name="best rule at equal cost", measured=gain.value, bar=bar, passed=passed, reason=said, interval=gain
    )


def _against(evidence: Evidence, incumbent: Incumbent, limits: Promote) -> list[GateCheck]:
    """The checks against the incumbent, or the one line that says why they cannot be made."""
    other, whose = incumbent.evidence, incumbent.name
    if why := _incomparable(evidence, incumbent, limits):
        return [GateCheck(name="comparable", measured=None, bar=None, passed=False, reason=why)]
    level = 1 - limits.error_level
    gain = difference(solved(evidence.results), solved(other.results), level)
    spent = cost_ratio(cost(evidence.results), cost(other.results), level)
    accurate = gain.low is not None and gain.low > limits.accuracy_gain
    cheaper = spent.high is not None and spent.high < 1 - limits.saving
    better = [name for name, holds in (("more accurate", accurate), ("cheaper", cheaper)) if holds]
    chance = f"at an error level of {100 * limits.error_level:g} %"
    return [
        GateCheck(
            name=f"accuracy against {whose}",
            measured=gain.value,
            bar=-limits.accuracy_margin,
            passed=gain.low is not None and gain.low >= -limits.accuracy_margin,
            reason=f"accuracy less that of {whose} on the same examples: {_points(gain)}; the whole interval must lie "
            f"above {-100 * limits.accuracy_margin:g} points",
            interval=gain,
        ),
        GateCheck(
            name=f"dollars against {whose}",
            measured=spent.value,
            bar=1 + limits.cost_margin,
            passed=spent.high is not None and spent.high <= 1 + limits.cost_margin,
            reason=f"dollars over those of {whose} on the same examples: {_times(spent)}; the whole interval must lie "
            f"below {1 + limits.cost_margin:g}",
            interval=spent,
        ),
        GateCheck(
            name=f"better than {whose}",
            measured=None,
            bar=None,
            passed=bool(better),
            reason=f"{' and '.join(better)} than {whose} beyond chance, {chance}"
            if better
            else f"neither more accurate nor cheaper than {whose} beyond chance, {chance}",
        ),
    ]


def _by_utility(
    evidence: Evidence, incumbent: Incumbent | None, rules: Mapping[str, Results], limits: Promote
) -> list[GateCheck]:
    """Not below the best rule beyond chance, and above the incumbent beyond chance."""
    level, ours = 1 - limits.error_level, utilities(evidence.results)
    checks = list[GateCheck]()
    # Each rule on the examples that it shares with the candidate: its others may be easier.
    gains = {name: mean_difference(ours, own, level) for name, found in rules.items() if (own := utilities(found))}
    if gains:
        best = min(gains, key=lambda name: -math.inf if (gap := gains[name].value) is None else gap)
        gain, bar = gains[best], 0.0 - limits.rule_margin
        checks.append(
            GateCheck(
                name=BEST_IN_UTILITY,
                measured=gain.value,
                bar=bar,
                passed=gain.high is not None and gain.high >= bar,
                reason=f"utility less that of {label(best)}: {_number(gain)}; refused when the whole interval lies "
                f"below {bar:g}",
                interval=gain,
            )
        )
    if incumbent is None:
        return checks
    if why := _incomparable(evidence, incumbent, limits):
        return [*checks, GateCheck(name="comparable", measured=None, bar=None, passed=False, reason=why)]
    gain = mean_difference(ours, utilities(incumbent.evidence.results), level)
    against = GateCheck(
        name=f"utility against {incumbent.name}",
        measured=gain.value,
        bar=0.0,
        passed=gain.low is not None and gain.low > 0,
        reason=f"utility less that of {incumbent.name} on the same examples: {_number(gain)}; the whole interval must "
        f"lie above 0, at an error level of {100 * limits.error_level:g} %",
        interval=gain,
    )
    return [*checks, against]


def _incomparable(evidence: Evidence, incumbent: Incumbent, limits: Promote) -> str:
    """Why the two cannot be compared; empty when they can."""
    other, whose = incumbent.evidence, incumbent.name
    if other.price_date != evidence.price_date:
        return (
            f"{whose} was measured at the prices of {other.price_date or 'an unknown day'}, not {evidence.price_date}"
        )
    if other.data_hash != evidence.data_hash:
        return f"{whose} was measured on another version of the benchmark ({other.data_hash[:8] or 'unknown'})"
    shared = len(evidence.results.keys() & other.results.keys())
    if shared < limits.min_examples:
        return f"only {shared} examples have a verdict of both, {limits.min_examples} wanted"
    return ""


def _check(
    name: str,
    metrics: Mapping[str, float | None],
    metric: str,
    passes: Callable[[float, float], bool],
    bar: float | None,
    meaning: str,
) -> GateCheck | None:
    if bar is None:
        return None
    measured = metrics.get(metric)
    if measured is None or not math.isfinite(measured):
        said = "was not measured" if measured is None else f"is {measured}"
        return GateCheck(name=name, measured=None, bar=bar, passed=False, reason=f"{metric} ({meaning}) {said}")
    wanted = "at least" if passes is ge else "at most"
    passed = bool(passes(measured, bar))
    said = f"{meaning}: {measured:.4g}, {wanted} {bar:.4g} wanted"
    return GateCheck(name=name, measured=measured, bar=bar, passed=passed, reason=said)


def _points(interval: Interval) -> str:
    """A difference of shares in percentage points."""
    if interval.value is None or interval.low is None or interval.high is None:
        return "not known"
    return f"{100 * interval.value:+.1f} points, {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"


def _number(interval: Interval) -> str:
    if interval.value is None or interval.low is None or interval.high is None:
        return "not known"
    return f"{interval.value:+.3f}, {interval.low:+.3f} to {interval.high:+.3f}"


def _times(interval: Interval) -> str:
    if interval.value is None or interval.low is None:
        return "not known"
    return f"{interval.value:.3g}, {interval.low:.3g} to {'any' if interval.high is None else f'{interval.high:.3g}'}"
