"""The figures of the decision page, from an evaluation's episodes: who was asked, what was paid, what went wrong."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from orchestra.accounting.ledger import parts
from orchestra.types import Charge, Episode, Example

Table = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]
"""Header and rows."""
PRICES = ((0.0, 0.5, "under half the usual price"), (0.5, 2.0, "half to double"), (2.0, float("inf"), "over double"))
"""Bins of an expert's price in one example over its median price in all of them."""
SHOWN_EPISODES = 10
MOST_KINDS = 12


def by_preference(models: Mapping[str, Sequence[Episode]], examples: Mapping[str, Example]) -> Table:
    """Accuracy, cents and seconds of each model, by the kind of preference that users state."""
    kinds = Counter(examples[one.example_id].preference.kind for one in next(iter(models.values()), ()) if one.counted)
    header = ("users ask for", "examples", *(f"{name}: {what}" for name in models for what in ("solved", "¢", "s")))
    rows = []
    for kind, count in kinds.most_common():
        row = [kind, str(count)]
        for episodes in models.values():
            found = [e for e in episodes if e.counted and examples[e.example_id].preference.kind == kind]
            row += [
                _percent([e.solved for e in found]),
                _number([100 * float(e.cost_usd) for e in found], 2),
                _number([e.latency_s for e in found], 1),
            ]
        rows.append(tuple(row))
    return header, rows


def by_price(models: Mapping[str, Sequence[Episode]], examples: Mapping[str, Example]) -> Table:
    """How often an expert that is offered is asked, by its price in that example over its usual one."""
    prices: dict[str, list[float]] = {}
    for example in examples.values():
        for spec in example.experts:
            prices.setdefault(spec.tool, []).append(float(spec.call_usd))
    usual = {tool: median(found) for tool, found in prices.items()}
    asked: dict[tuple[str, str], list[bool]] = {}
    for name, episodes in models.items():
        for episode in episodes:
            counts = episode.tool_counts
            for spec in examples[episode.example_id].experts if episode.counted else ():
                if usual[spec.tool] > 0:
                    ratio = float(spec.call_usd) / usual[spec.tool]
                    label = next(label for low, high, label in PRICES if low <= ratio < high)
                    asked.setdefault((label, name), []).append(spec.name in counts)
    header = ("an expert at", "offers", *(f"{name} asks it in" for name in models))
    rows = []
    for _, _, label in PRICES:
        found = [asked.get((label, name), []) for name in models]
        if any(found):
            rows.append((label, str(len(found[0])), *(_percent(one) for one in found)))
    return header, rows


def by_component(models: Mapping[str, Sequence[Episode]]) -> Table:
    """Cents per example by component of the ledger; failures of infrastructure are left out, as in every mean."""
    models = {name: [one for one in found if one.counted] for name, found in models.items()}
    spent = {
        name: {
            str(part): told.cost_usd for part, told in parts(_charges(found), lambda charge: charge.component).items()
        }
        for name, found in models.items()
    }
    names = sorted({part for found in spent.values() for part in found})
    rows = [
        (
            part.replace("_", " "),
            *(f"{100 * float(spent[m].get(part, 0)) / max(1, len(models[m])):.4f}" for m in models),
        )
        for part in names
    ]
    totals = (f"{100 * float(sum(spent[m].values())) / max(1, len(models[m])):.4f}" for m in models)
    return ("component", *(f"{name}, ¢ per example" for name in models)), [*rows, ("total", *totals)]


def failures(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> Table:
    """What was not solved, by how the episode ended, the verdict, and the category."""
    found = Counter(
        (one.stop.value.replace("_", " "), _why(one), examples[one.example_id].category.value.replace("_", " "))
        for one in episodes
        if not one.solved
    )
    rows = [(*kind, str(count)) for kind, count in found.most_common(MOST_KINDS)]
    left = sum(count for _, count in found.most_common()[MOST_KINDS:])
    return ("ended", "verdict", "category", "episodes"), [*rows, *([("others", "", "", str(left))] if left else [])]


def to_read(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> list[Episode]:
    """`SHOWN_EPISODES` episodes, half of them unsolved where there are as many, of categories and wishes in turn."""
    chosen: list[Episode] = []
    for solved, wanted in ((False, SHOWN_EPISODES // 2), (True, SHOWN_EPISODES)):
        groups: dict[tuple[str, str], list[Episode]] = {}
        for one in episodes:
            if one.counted and one.solved is solved:
                example = examples[one.example_id]
                groups.setdefault((example.category.value, example.preference.kind), []).append(one)
        turn = [one for row in _in_turn(list(groups.values())) for one in row]
        chosen += turn[: wanted - len(chosen)]
    return chosen


def _in_turn(groups: Sequence[Sequence[Episode]]) -> Iterable[list[Episode]]:
    for index in range(max(map(len, groups), default=0)):
        yield [group[index] for group in groups if index < len(group)]


def _charges(episodes: Sequence[Episode]) -> Iterable[Charge]:
    return (charge for episode in episodes for charge in episode.charges)


def _why(episode: Episode) -> str:
    return "infrastructure failed" if episode.verdict is None else episode.verdict.why.split(":")[0][:60]


def _percent(values: Sequence[bool]) -> str:
    return f"{100 * fmean(values):.1f} %" if values else "—"


def _number(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f}" if values else "—"
