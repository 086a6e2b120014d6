"""The bias of policies in their choice of experts: calls to the strongest one on offer, to its family, to their own.

The method's paper reports it for untrained orchestrators: GPT-5 sends 98 % of its calls to GPT-5 or GPT-5-mini, and
Qwen3-8B sends 73 % to GPT-5.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra.evaluation.report import SIMULATED, blank_figure, label
from orchestra.statistics.intervals import Interval, paired_ratio
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.types import Episode, Example, Record

ALL = "all"
HEADER = ("policy", "preference", "calls", "to the strongest", "to that one's family", "to the policy's family")
Counts = Mapping[str, float]
"""Of calls to experts, by example."""


class ExpertShares(Record):
    """How one policy's calls to experts fall, over all examples or those of one kind of preference."""

    policy: str
    preference: str
    """The kind, or `all`."""
    calls: int
    strongest: Interval
    """Share of calls to the expert of the toolbox with the best published accuracy alone."""
    family: Interval
    """Share of calls to models of that expert's family, itself included."""
    own: Interval = Interval()
    """Share of calls to models of the policy's own family; empty for rules, which are of none."""


class BiasAnalysis(Record):
    """Every policy of one evaluation: bias.json."""

    simulated: bool
    examples: int
    shares: tuple[ExpertShares, ...]


def family(model: str) -> str:
    """The family in a model's name: the letters that it begins with, its provider left out (`openai/gpt-5`: gpt)."""
    found = re.match(r"[a-z]+", model.rpartition("/")[2].lower())
    return found[0] if found else model


@dataclass(frozen=True)
class Chooser:
    """A policy that chooses experts."""

    name: str
    family: str | None
    """Of its own model; None for rules, which are no model."""


def shares(
    chooser: Chooser,
    episodes: Iterable[Episode],
    examples: Mapping[str, Example],
    catalogue: Catalogue,
    bootstrap: int,
    seed: int,
) -> list[ExpertShares]:
    """Over all examples first, then by kind of preference."""
    counted: dict[str, dict[str, dict[str, float]]] = {}
    for episode in episodes:
        example = examples[episode.example_id]
        for group in (ALL, example.preference.kind):
            for what, count in _counts(episode, example, catalogue, chooser.family).items():
                of = counted.setdefault(group, {}).setdefault(what, {})
                of[example.id] = of.get(example.id, 0.0) + count

    def row(group: str, found: Mapping[str, Counts]) -> ExpertShares:
        def share(what: str) -> Interval:
            return paired_ratio(found[what], found["calls"], bootstrap, seed)

        calls = round(sum(found["calls"].values()))
        named = {"strongest": share("strongest"), "family": share("family")}
        return ExpertShares(
            policy=chooser.name,
            preference=group,
            calls=calls,
            **named,
            own=share("own") if chooser.family else Interval(),
        )

    return [row(group, found) for group, found in sorted(counted.items(), key=lambda item: (item[0] != ALL, item[0]))]


def table(analysis: BiasAnalysis) -> list[tuple[str, ...]]:
    """Cells under `HEADER`, a row for each policy and kind of preference."""
    rows: list[tuple[str, ...]] = [HEADER]
    for one in analysis.shares:
        told = (_percent(one.strongest), _percent(one.family), _percent(one.own))
        rows.append((label(one.policy), one.preference.replace("_", " "), str(one.calls), *told))
    return rows


def plot(analysis: BiasAnalysis, file: Path) -> None:
    """Both shares of every policy over all examples, with intervals."""
    overall = [one for one in analysis.shares if one.preference == ALL and one.strongest.value is not None]
    figure, axes = blank_figure(8, 1.2 + 0.45 * len(overall))
    names = [label(one.policy) for one in overall]
    for offset, what in ((-0.18, "strongest"), (0.18, "family")):
        found: Sequence[Interval] = [getattr(one, what) for one in overall]
        values = [one.value or 0.0 for one in found]
        sides = [
            [max(0.0, value - (one.low or 0.0)) for one, value in zip(found, values, strict=True)],
            [max(0.0, (one.high or 0.0) - value) for one, value in zip(found, values, strict=True)],
        ]
        places = [index + offset for index in range(len(names))]
        said = "the strongest expert" if what == "strongest" else "that one's family"
        axes.barh(places, values, height=0.34, xerr=sides, label=f"calls to {said}", capsize=2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of calls to experts")
    axes.set_title("Bias" + (f" ({SIMULATED})" if analysis.simulated else ""))
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(file, bbox_inches="tight")


def metrics(analysis: BiasAnalysis) -> dict[str, float]:
    """Shares over all examples, for MLflow, by policy."""
    found = {}
    for one in (one for one in analysis.shares if one.preference == ALL):
        for what, share in (("strongest", one.strongest), ("family", one.family), ("own", one.own)):
            if share.value is not None:
                found[f"{one.policy}.{what}".replace("@", "_").replace(":", "_")] = share.value
    return found


def _counts(episode: Episode, example: Example, catalogue: Catalogue, own: str | None) -> dict[str, float]:
    """Calls to experts in one episode: in all, to the strongest on offer, to its family, to `own`."""
    experts = {spec.name: spec.tool for spec in example.experts}
    families = {tool: family(catalogue.entry(tool).price) for tool in experts.values()}
    made = [(experts[name], count) for name, count in episode.tool_counts.items() if name in experts]
    best = max(experts.values(), key=catalogue.strength, default="")

    def calls(which: Iterable[str]) -> float:
        wanted = set(which)
        return float(sum(count for tool, count in made if tool in wanted))

    return {
        "calls": calls(families),
        "strongest": calls([best]),
        "family": calls(tool for tool, one in families.items() if one == families.get(best)),
        "own": calls(tool for tool, one in families.items() if one == own),
    }


def _percent(share: Interval) -> str:
    if share.value is None or share.low is None or share.high is None:
        return "—"
    return f"{100 * share.value:.1f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
