"""The gate: whether a candidate may replace the champion, and every check behind the answer."""

import math
from collections.abc import Callable, Mapping
from operator import ge, le

from pydantic import ConfigDict

from orchestra.config.schema import Promote
from orchestra.types import Record

MAX_FAILED_SHARE = 0.05
"""Above this share of episodes lost to infrastructure, the other measurements are not evidence."""


class Evidence(Record):
    """What was measured of one checkpoint, and on what."""

    # A measure that is not finite must reach the gate, which refuses it with a reason.
    model_config = ConfigDict(allow_inf_nan=True)

    checkpoint_hash: str
    data_hash: str
    """Hash of everything but the policy that decides a score: held-out examples, answer book, corpus, prices."""
    metrics: dict[str, float | None]
    """accuracy, valid, cost_usd, cost_ratio, accuracy_gain, accuracy_gain_high, failed_share."""


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


class Decision(Record):
    """Promoted or refused, and why."""

    promoted: bool
    reasons: tuple[GateCheck, ...]

    @property
    def name(self) -> str:
        """The end state's name."""
        return "Promoted" if self.promoted else "Rejected"

    @property
    def failed(self) -> tuple[GateCheck, ...]:
        return tuple(check for check in self.reasons if not check.passed)


def gate(evidence: Evidence, thresholds: Promote, champion: Evidence | None = None) -> Decision:
    """Every check, in the order a person asks them; promoted when all pass.

    A metric that is missing or not finite fails its check. Too small a gain over the SFT model is refused when chance
    does not explain it (the whole paired interval lies below), or when it is short by more than the margin. Of a
    champion measured on other data (it is lost, or it would have been measured again) the decision says so.
    """
    metrics = evidence.metrics
    wanted, margin = thresholds.min_accuracy_gain, thresholds.accuracy_gain_margin
    checks = [
        _check("infrastructure failures", metrics, "failed_share", le, MAX_FAILED_SHARE, "share of episodes lost"),
        _check("accuracy", metrics, "accuracy", ge, thresholds.min_accuracy, "share of examples solved"),
        _check("valid turns", metrics, "valid", ge, thresholds.min_valid, "share of turns that parse"),
        _check("cost", metrics, "cost_ratio", le, thresholds.max_cost_ratio, "dollars against always-strongest"),
        _check(
            "gain over SFT",
            metrics,
            "accuracy_gain",
            ge,
            wanted - margin,
            f"accuracy less the SFT model's on the same examples, where {wanted:g} less a margin of {margin:g} will do",
        ),
        _check(
            "gain over SFT, interval",
            metrics,
            "accuracy_gain_high",
            ge,
            wanted,
            "upper end of that gain's paired 95 % bootstrap interval",
        ),
        *_against(evidence, champion, thresholds),
    ]
    return Decision(promoted=all(check.passed for check in checks), reasons=tuple(checks))


def _against(evidence: Evidence, champion: Evidence | None, thresholds: Promote) -> list[GateCheck]:
    """The checks against the champion, or the one line that says why there are none."""
    if champion is None:
        return [_note("champion", "there is no champion to compare with")]
    whose = "the champion's" if champion.data_hash == evidence.data_hash else "the champion's (measured on other data)"
    best = champion.metrics.get("accuracy")
    cost = champion.metrics.get("cost_usd")
    metrics = evidence.metrics
    return [
        _check(
            "accuracy against champion",
            metrics,
            "accuracy",
            ge,
            None if best is None else best - thresholds.champion_accuracy_margin,
            f"{whose} accuracy less {thresholds.champion_accuracy_margin:g}",
        ),
        _check(
            "cost against champion",
            metrics,
            "cost_usd",
            le,
            None if cost is None else cost * thresholds.champion_cost_ratio,
            f"dollars per example, at most {thresholds.champion_cost_ratio:g} times {whose}",
        ),
    ]


def _check(
    name: str,
    metrics: Mapping[str, float | None],
    metric: str,
    passes: Callable[[float, float], bool],
    bar: float | None,
    meaning: str,
) -> GateCheck:
    measured = metrics.get(metric)
    wanted = "at least" if passes is ge else "at most"
    if bar is None or not math.isfinite(bar):
        return GateCheck(
            name=name,
            measured=_finite(measured),
            bar=None,
            passed=False,
            reason=f"no usable bar for {metric} ({meaning})",
        )
    if measured is None:
        return GateCheck(
            name=name, measured=None, bar=bar, passed=False, reason=f"{metric} ({meaning}) was not measured"
        )
    if not math.isfinite(measured):
        return GateCheck(name=name, measured=None, bar=bar, passed=False, reason=f"{metric} ({meaning}) is {measured}")
    passed = bool(passes(measured, bar))
    said = f"{meaning}: {measured:.4g}, {wanted} {bar:.4g} wanted"
    return GateCheck(name=name, measured=measured, bar=bar, passed=passed, reason=said)


def _note(name: str, reason: str) -> GateCheck:
    return GateCheck(name=name, measured=None, bar=None, passed=True, reason=reason)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
