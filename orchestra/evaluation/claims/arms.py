"""The arms of the experiment: the base, the SFT model, and GRPO with several rewards, side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.claims.bar import Unit
from orchestra.evaluation.claims.measures import Measured, SeedResult, counted, largest_share, worth
from orchestra.evaluation.claims.seeds import Measure, first, over_seeds
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes.base import PROBES
from orchestra.evaluation.report import REFERENCE, TRAINED
from orchestra.statistics.intervals import Interval
from orchestra.types import Example, Record

if TYPE_CHECKING:
    from orchestra.config.schema import Params


class Arm(Record):
    """One column of the page."""

    name: str
    """As the page calls it, and the policy's name in `SeedResult.outcomes`."""
    overrides: dict[str, str] | None = None
    """What its GRPO changes of params.yaml, value by `section.key`; None where nothing is trained."""
    measured: Mapping[str, str] = Field(default_factory=dict)
    """What its evaluation and its probes change."""


BASE, SFT = Arm(name="base"), Arm(name=REFERENCE)
RULED = Arm(name="base, choices by rule", measured={"evaluate.by_rule": "true"})
OUTCOME = Arm(name="outcome alone", overrides={"grpo.reward": "outcome"})
PUBLISHED = Arm(name="published Eq. 1-3", overrides={"grpo.published": "true"})
OURS = Arm(name=TRAINED, overrides={})
ARMS = (BASE, RULED, SFT, OUTCOME, PUBLISHED, OURS)
ABLATIONS = (
    Arm(name="outcome, dollars, seconds", overrides={"grpo.reward": "efficiency"}),
    Arm(name="malformed left out", overrides={"grpo.malformed": "drop"}),
    Arm(name="each part normalised", overrides={"grpo.normalise": "normalise_then_sum", "grpo.scale": "group"}),
    Arm(name="solved alone pay", overrides={"grpo.spent": "solved"}),
    Arm(name="first choices alone", overrides={"grpo.branch.later": "0"}),
    Arm(name="sampled, not branched", overrides={"grpo.branch": "null"}),
)
"""Further columns of `--ablations`; one that is configured already is ours and gets no column."""
TITLES = {REFERENCE: "SFT", TRAINED: "**ours**"}


def trained_arms(params: "Params", ablations: bool) -> tuple[Arm, ...]:
    """Every arm that is trained, ours last."""
    configured = {f"grpo.{key}": str(value) for key, value in params.grpo.model_dump(mode="json").items()}
    if params.grpo.branch is None or params.grpo.branch.later == 0:
        configured["grpo.branch.later"] = "0"
    if params.grpo.branch is None:
        configured["grpo.branch"] = "null"
    extra = [arm for arm in ABLATIONS if not (arm.overrides or {}).items() <= configured.items()]
    return (OUTCOME, PUBLISHED, *(extra if ablations else ()), OURS)


class ArmRow(Record):
    """One number of every arm."""

    name: str
    unit: Unit
    cells: dict[str, Interval]
    """By arm: the mean over its seeds and the 95 % interval."""


def side_by_side(
    columns: Mapping[str, Sequence[SeedResult]], examples: Mapping[str, Example], *, bootstrap: int, seed: int
) -> list[ArmRow]:
    """`columns`: every arm's results, in which it stands as the trained policy."""
    rows: list[tuple[str, Unit, Measured]] = [
        ("accuracy", "share", _mean(lambda one: float(bool(one.solved)))),
        ("cents an example", "cents", _mean(lambda one: 100 * one.cost_usd)),
        ("seconds an example", "seconds", _mean(lambda one: one.latency_s)),
        ("utility", "utility", _utility(examples)),
        *((bar.name, bar.unit, bar.measure) for probe in PROBES.values() for bar in probe.bars),
        ("largest share of calls to one tool", "share", largest_share),
    ]
    found = []
    for name, unit, measure in rows:
        cells = {
            arm: over_seeds([measure(result) for result in results], bootstrap, seed)[0]
            for arm, results in columns.items()
        }
        found.append(ArmRow(name=name, unit=unit, cells=cells))
    return found


def markdown(rows: Sequence[ArmRow], show: Callable[[float | None, Unit], str], *, intervals: bool = True) -> str:
    """The table; 95 % intervals in brackets."""
    arms = list(rows[0].cells)
    lines = [f"| | {' | '.join(TITLES.get(arm, arm) for arm in arms)} |", "| --- |" + " ---: |" * len(arms)]
    for row in rows:
        cells = [_cell(row.cells[arm], row.unit, show, intervals) for arm in arms]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(interval: Interval, unit: Unit, show: Callable[[float | None, Unit], str], intervals: bool) -> str:
    value = show(interval.value, unit)
    if not intervals or interval.low is None:
        return value
    return f"{value} [{show(interval.low, unit)}, {show(interval.high, unit)}]"


def _mean(value: Callable[[Outcome], float]) -> Measured:
    return lambda result: Measure({key: (value(one),) for key, one in counted(result, TRAINED).items()}, first)


def _utility(examples: Mapping[str, Example]) -> Measured:
    def measure(result: SeedResult) -> Measure:
        value = worth(result, STRONGEST, examples)
        return Measure({key: (value(one),) for key, one in counted(result, TRAINED).items()} if value else {}, first)

    return measure
