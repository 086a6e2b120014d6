"""The measures of the claims: numbers of one training seed as functions of means over examples."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import STRONGEST, frontier
from orchestra.evaluation.claims.seeds import Measure, accuracy_at, first
from orchestra.evaluation.outcomes import Outcome, unit, utility
from orchestra.evaluation.probes.trials import ProbeResults, Trial
from orchestra.evaluation.report import TRAINED
from orchestra.types import Category, Example, Record, ToolKind

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Values = NDArray[float64]


class SeedResult(Record):
    """What one training seed reached; every seed on the same held-out examples. Save it as JSON, one file a seed."""

    seed: int
    minutes: float
    """Training, from the shipped base to the trained checkpoint (sft and grpo), wall clock."""
    dollars: float
    """Spent by training's rollouts, the policy's own tokens included (simulated experts at their prices)."""
    outcomes: dict[str, tuple[Outcome, ...]]
    """`outcomes.outcomes(episodes, examples)` by policy: grpo, sft, every rule of `baselines.base.rivals`."""
    probes: ProbeResults


Measured = Callable[[SeedResult], Measure]


def gain(rival: str) -> Measured:
    """Accuracy less the rival's."""
    return lambda result: Measure(_columns(result, TRAINED, rival, _solved), lambda m: m[:, 0] - m[:, 1])


def cost_over(rival: str) -> Measured:
    """Dollars over the rival's."""
    return lambda result: Measure(_columns(result, TRAINED, rival, _cost), lambda m: ratio(m[:, 0], m[:, 1]))


def used_where_best(examples: Mapping[str, Example], categories: tuple[Category, ...]) -> Measured:
    """Share of the categories' examples in which a tool of the kind they need was called."""

    def measure(result: SeedResult) -> Measure:
        own = {key: one for key, one in counted(result, TRAINED).items() if examples[key].category in categories}
        return Measure({key: (float(_used_best(one, examples[key])),) for key, one in own.items()}, first)

    return measure


def saved(before: str) -> Measured:
    """Share of the dollars of `before` that the trained model does not spend."""
    return lambda result: Measure(_columns(result, before, TRAINED, _cost), lambda m: 1 - ratio(m[:, 1], m[:, 0]))


def utility_gain(rival: str, examples: Mapping[str, Example]) -> Measured:
    """Utility less the rival's, in always-strongest's units."""

    def measure(result: SeedResult) -> Measure:
        value = worth(result, STRONGEST, examples)
        if value is None:
            return Measure({}, first)
        return Measure(_columns(result, TRAINED, rival, value), lambda m: m[:, 0] - m[:, 1])

    return measure


def worth(result: SeedResult, yardstick: str, examples: Mapping[str, Example]) -> Callable[[Outcome], float] | None:
    """Utility of an outcome in the units of a policy's dollars and seconds; None where that one spent nothing."""
    measured = unit(_of(result, yardstick))
    return None if measured is None else lambda one: utility(one, examples[one.example_id].preference, measured)


def equal_cost(rival: str) -> Measured:
    """Accuracy less the rival's at the trained model's own cost, on the frontier traced by the rival's knob."""

    def above(means: "Values") -> "Values":
        import numpy as np

        ours, settings = means[:, :2], means[:, 2:].reshape(len(means), -1, 2)
        rivals = [accuracy_at(points, cost) for points, cost in zip(settings, ours[:, 0], strict=True)]
        return np.asarray(ours[:, 1] - np.asarray(rivals), dtype=np.float64)

    def measure(result: SeedResult) -> Measure:
        found = [counted(result, name) for name in (TRAINED, *frontier(rival))]
        shared = [key for key in found[0] if all(key in outcomes for outcomes in found)]
        rows = {
            key: tuple(value for outcomes in found for value in (_cost(outcomes[key]), _solved(outcomes[key])))
            for key in shared
        }
        return Measure(rows, above)

    return measure


def price_fall(result: SeedResult) -> Measure:
    """How much an expert's share of calls falls, relative to that at its low price, pooled over suited experts."""
    rows: dict[str, tuple[float, ...]] = {}
    for example_id, _, row in price_rows(result.probes):
        before = rows.get(example_id, (0.0,) * 4)
        rows[example_id] = tuple(a + b for a, b in zip(before, row, strict=True))
    return Measure(rows, lambda m: 1 - ratio(ratio(m[:, 2], m[:, 3]), ratio(m[:, 0], m[:, 1])))


def price_rows(probes: ProbeResults) -> list[tuple[str, str, tuple[float, float, float, float]]]:
    """Example, expert, and its calls and all calls at the low and at the high price."""
    high = {(trial.example_id, trial.tool): trial.outcome for trial in probes.of("price", "high")}
    rows = []
    for trial in probes.of("price", "low"):
        low, other, tool = trial.outcome, high[trial.example_id, trial.tool], trial.tool or ""
        if low.solved is not None and other.solved is not None:
            calls = [float(part) for one in (low, other) for part in (one.calls.get(tool, 0), sum(one.calls.values()))]
            rows.append((trial.example_id, tool, (calls[0], calls[1], calls[2], calls[3])))
    return rows


def trial_ratio(probe: str, before: str, after: str, value: Callable[[Trial], float]) -> Measured:
    """Mean value in the variant `after` over that in `before`, on the same examples."""
    return lambda result: Measure(_trials(result, probe, before, after, value), lambda m: ratio(m[:, 1], m[:, 0]))


def trial_gain(probe: str, before: str, after: str, value: Callable[[Trial], float]) -> Measured:
    """Mean value in the variant `after` less that in `before`, on the same examples."""
    return lambda result: Measure(_trials(result, probe, before, after, value), lambda m: m[:, 1] - m[:, 0])


def _trials(
    result: SeedResult, probe: str, before: str, after: str, value: Callable[[Trial], float]
) -> dict[str, tuple[float, ...]]:
    found = [
        {t.example_id: value(t) for t in result.probes.of(probe, variant) if t.outcome.solved is not None}
        for variant in (before, after)
    ]
    return {key: (value, found[1][key]) for key, value in found[0].items() if key in found[1]}


def uses(trial: Trial) -> float:
    """Whether X was called: a second call of it counts for no more."""
    return float(trial.outcome.calls.get(trial.tool or "", 0) > 0)


def largest_share(result: SeedResult) -> Measure:
    """The most called tool's share of all calls; a domain's functions count together, the stricter reading."""
    counted = [one for one in result.outcomes[TRAINED] if one.solved is not None]
    tools = sorted({_entry(tool) for one in counted for tool in one.calls})
    rows = {}
    for one in counted:
        calls = {name: 0 for name in tools}
        for tool, count in one.calls.items():
            calls[_entry(tool)] += count
        rows[one.example_id] = (*map(float, calls.values()), float(sum(calls.values())))
    return Measure(rows, lambda m: ratio(m[:, :-1].max(axis=1), m[:, -1]) if tools else m[:, -1] * 0)


def _used_best(one: Outcome, example: Example) -> bool:
    """Whether a tool of the kind that the category needs was called."""
    kinds = {spec.tool: spec.kind for spec in example.toolbox}
    match example.category:
        case Category.ARITHMETIC:
            return bool({"calculator", "python"} & set(one.calls))
        case Category.FACT | Category.TWO_HOP:
            return "search" in one.calls
        case Category.LOOKUP | Category.CHANGE:
            return any(kinds.get(tool) is ToolKind.DOMAIN for tool in one.calls)
        case Category.DIRECT:
            return not one.calls
        case Category.TOPIC:
            return any(kinds.get(tool) is ToolKind.EXPERT for tool in one.calls)


def _entry(tool: str) -> str:
    """A domain's functions count together, as in the report: the stricter reading of "a single tool"."""
    return tool.split("/")[0]


def _columns(
    result: SeedResult, first: str, second: str, value: Callable[[Outcome], float]
) -> dict[str, tuple[float, ...]]:
    """A value of two policies on the examples that both have a verdict on."""
    ours, theirs = counted(result, first), counted(result, second)
    return {key: (value(ours[key]), value(theirs[key])) for key in ours if key in theirs}


def counted(result: SeedResult, policy: str) -> dict[str, Outcome]:
    """A policy's outcomes by example, without those that infrastructure failed."""
    return {one.example_id: one for one in _of(result, policy) if one.solved is not None}


def _of(result: SeedResult, policy: str) -> tuple[Outcome, ...]:
    if policy not in result.outcomes:
        raise DataError(
            f"{policy} was not measured",
            where=f"seed {result.seed}",
            fix="evaluate every rule",
        )
    return result.outcomes[policy]


def _solved(one: Outcome) -> float:
    return float(bool(one.solved))


def _cost(one: Outcome) -> float:
    return one.cost_usd


def ratio(above: "Values", below: "Values") -> "Values":
    """NaN where there is nothing to compare with."""
    import numpy as np

    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
