"""The claims table: what the method promises, measured over training seeds."""

from collections.abc import Mapping, Sequence

from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import BASELINES, STRONGEST
from orchestra.evaluation.claims.arms import BASE, OUTCOME, PUBLISHED, SFT
from orchestra.evaluation.claims.bar import Bar, Unit
from orchestra.evaluation.claims.measures import SeedResult as SeedResult
from orchestra.evaluation.claims.measures import (
    cost_over,
    equal_cost,
    gain,
    largest_share,
    price_rows,
    saved,
    used_where_best,
    utility_gain,
)
from orchestra.evaluation.claims.seeds import LEVEL, Measure, first, over_runs, over_seeds
from orchestra.evaluation.probes.base import PROBES
from orchestra.statistics.intervals import Interval
from orchestra.types import Category, Example, Record

HEADLINE_RIVAL = "knn_router"
"""The rule whose utility the README compares with."""
MINUTES = 20.0
TIMES = "\u00d7"
USED = 0.8
"""Every kind of tool must be called in at least this share of the examples that it is best for."""


class Claim(Record):
    """One row of the table."""

    name: str
    bar: str
    """E.g. "≥ 5 points"."""
    value: float | None
    """Mean over the seeds; None when it could not be measured."""
    low: float | None
    high: float | None
    """Interval over seeds and examples; of 95 % for all claims of the table together (Bonferroni)."""
    holds: bool
    """Whether the mean meets the bar."""
    per_seed: tuple[float | None, ...]
    unit: Unit = "share"
    clear: bool = False
    """Whether the whole corrected interval meets the bar."""
    headline: bool = False
    """Whether the README shows it."""


def claims(
    results: Sequence[SeedResult], examples: Sequence[Example], *, bootstrap: int = 1000, seed: int = 0
) -> list[Claim]:
    """Every row of the table, in its order; `examples` are the held-out ones that all seeds were measured on.

    Raises `DataError` without a seed or when a policy was not measured.
    """
    if not results:
        raise DataError("no seed was measured", where="claims", fix="train at least one")
    by_id = {example.id: example for example in examples}
    probed = [bar for probe in PROBES.values() for bar in probe.bars]
    bars = [*_against_strongest(), *_against_rivals(by_id), *_against_arms(by_id, results), *probed, *_collapse(by_id)]
    level = corrected(len(bars) + 1)
    found = [_measured(bar, results, bootstrap, seed, level) for bar in bars]
    minutes = [result.minutes for result in results]
    time = Bar("time: from the shipped base to the result", "≤", MINUTES, "minutes", lambda result: Measure({}, first))
    return [*found, _claim(time, over_runs(minutes, level), tuple(minutes))]


def corrected(count: int) -> float:
    """The level of each of `count` intervals that all hold the truth together as often as `LEVEL` says."""
    return 1 - (1 - LEVEL) / count


def markdown(found: Sequence[Claim]) -> str:
    """The whole table; a bar that the mean meets while the interval crosses it is marked "yes, not clearly"."""
    seeds = max((len(claim.per_seed) for claim in found), default=0)
    lines = [
        f"| claim | bar | mean of {seeds} seeds | corrected interval | each seed | holds |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for claim in found:
        each = " · ".join(show(value, claim.unit) for value in claim.per_seed)
        lines.append(f"| {' | '.join([*_measure_cells(claim), each, _verdict(claim)])} |")
    return "\n".join(lines) + "\n"


def headlines(found: Sequence[Claim]) -> str:
    """The rows that the README shows, without the seeds' own values."""
    lines = ["| claim | bar | mean | corrected interval | holds |", "| --- | --- | ---: | ---: | --- |"]
    for claim in found:
        if claim.headline:
            lines.append(f"| {' | '.join([*_measure_cells(claim), _verdict(claim)])} |")
    return "\n".join(lines) + "\n"


def details(results: Sequence[SeedResult]) -> str:
    """An expert's share of calls at its low and at its high price, over all seeds, as a table."""
    lines = [
        "| expert | trials | share of calls at low price | at high | falls by |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    rows = [row for result in results for row in price_rows(result.probes)]
    for tool in sorted({tool for _, tool, _ in rows}):
        own = [row for _, name, row in rows if name == tool]
        low_x, low, high_x, high = (sum(column) for column in zip(*own, strict=True))
        at_low, at_high = (low_x / low if low else None), (high_x / high if high else None)
        fall = 1 - at_high / at_low if at_low and at_high is not None else None
        cells = " | ".join(show(value, "share") for value in (at_low, at_high, fall))
        lines.append(f"| {tool} | {len(own)} | {cells} |")
    return "\n".join(lines) + "\n"


def show(value: float | None, unit: Unit) -> str:
    """A number as the table writes it."""
    if value is None:
        return "—"
    match unit:
        case "share":
            return f"{100 * value:.1f} %"
        case "points":
            return f"{100 * value:+.1f}"
        case "times":
            return f"{value:.2f}{TIMES}"
        case "utility":
            return f"{value:+.3f}"
        case "minutes" | "seconds":
            return f"{value:.1f}"
        case "cents":
            return f"{value:.2f}"


def _measure_cells(claim: Claim) -> list[str]:
    span = "—" if claim.low is None else f"{show(claim.low, claim.unit)} to {show(claim.high, claim.unit)}"
    return [claim.name, claim.bar, show(claim.value, claim.unit), span]


def _verdict(claim: Claim) -> str:
    return ("yes" if claim.clear else "yes, not clearly") if claim.holds else "**no**"


def _measured(bar: Bar, results: Sequence[SeedResult], bootstrap: int, seed: int, level: float) -> Claim:
    interval, per_seed = over_seeds([bar.measure(result) for result in results], bootstrap, seed, level)
    return _claim(bar, interval, per_seed)


def _claim(bar: Bar, interval: Interval, per_seed: tuple[float | None, ...]) -> Claim:
    shown = {"points": f"{100 * bar.threshold:g} points", "minutes": f"{bar.threshold:g} minutes"}
    shown |= {
        "share": f"{100 * bar.threshold:g} %",
        "times": f"{bar.threshold:g}{TIMES}",
        "utility": f"{bar.threshold:g}",
    }
    return Claim(
        name=bar.name,
        bar=f"{bar.sign} {shown[bar.unit]}",
        value=interval.value,
        low=interval.low,
        high=interval.high,
        holds=bar.met(interval.value),
        per_seed=per_seed,
        unit=bar.unit,
        clear=bar.met(interval.low) and bar.met(interval.high),
        headline=bar.headline,
    )


def _against_strongest() -> list[Bar]:
    return [
        Bar("accuracy above the strongest expert's", "≥", 0.0, "points", gain(STRONGEST), True),
        Bar("dollars as a share of the strongest expert's", "≤", 0.30, "share", cost_over(STRONGEST), True),
    ]


def _against_rivals(examples: Mapping[str, Example]) -> list[Bar]:
    rivals = {name: entry.rival for name, entry in BASELINES.items() if entry.rival is not None}
    bars = [
        Bar(f"utility above {label}'s", ">", 0.0, "utility", utility_gain(name, examples), name == HEADLINE_RIVAL)
        for name, label in rivals.items()
    ]
    return bars + [
        Bar(f"accuracy at equal cost above {label}'s", ">", 0.0, "points", equal_cost(name))
        for name, label in rivals.items()
    ]


def _against_arms(examples: Mapping[str, Example], results: Sequence[SeedResult]) -> list[Bar]:
    """What GRPO adds to the models it started from, and over other rewards; of the arms that were measured."""
    outcome, published = OUTCOME.name, PUBLISHED.name
    bars = {
        outcome: [
            Bar("dollars as a share of outcome alone's", "≤", 0.70, "share", cost_over(outcome), True),
            Bar("accuracy above outcome alone's", "≥", -0.01, "points", gain(outcome), True),
        ],
        published: [
            Bar("utility above the published reward's", ">", 0.0, "utility", utility_gain(published, examples), True)
        ],
    }
    for arm, label in ((BASE, "the base"), (SFT, "the SFT model")):
        bars[arm.name] = [
            Bar(f"accuracy above {label}'s, or dollars saved", "≥", 0.08, "points", gain(arm.name), arm == BASE),
            Bar(f"dollars saved against {label}, or accuracy above", "≥", 0.40, "share", saved(arm.name), arm == BASE),
            Bar(f"no accuracy lost against {label}", "≥", 0.0, "points", gain(arm.name)),
            Bar(f"utility above {label}'s", ">", 0.0, "utility", utility_gain(arm.name, examples), True),
        ]
    measured = [arm for arm in (BASE.name, SFT.name, outcome, published) if all(arm in r.outcomes for r in results)]
    return [bar for arm in measured for bar in bars[arm]]


def _collapse(examples: Mapping[str, Example]) -> list[Bar]:
    def used(what: str, *categories: Category) -> Bar:
        return Bar(
            f"no collapse: {what} used where it is best", "≥", USED, "share", used_where_best(examples, categories)
        )

    return [
        Bar("no collapse: largest share of calls to one tool", "≤", 0.60, "share", largest_share),
        used("calculator or code", Category.ARITHMETIC),
        used("search", Category.FACT, Category.TWO_HOP),
        used("domain tools", Category.LOOKUP, Category.CHANGE),
        used("experts", Category.TOPIC),
    ]
