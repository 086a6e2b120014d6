"""Benchmark results on the decision page: a section of its own, which later results replace."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from orchestra.evaluation.benchmarks.report import Summary
from orchestra.promotion.parts import rendered
from orchestra.promotion.sections import Table
from orchestra.promotion.template import MACROS

NOTHING: Table = (("benchmark",), [])
SECTION = (
    MACROS
    + """
<section data-part="benchmarks">
<h2 id="benchmarks">Benchmarks</h2>
{% if table[1] %}{{ grid('Benchmarks', table, texts=(1, 8, 9)) }}
<p class="soft">pass^k: all of k trials solve it. Only whole results are comparable with published ones.</p>
{% else %}<p>None was measured yet: <code>orchestra evaluate --benchmark NAME --model VERSION</code>.</p>
{% endif %}</section>"""
)


def results_table(summaries: Sequence[Summary], versions: Mapping[str, str]) -> Table:
    """A row for each result; `versions` names registered checkpoints by their hashes."""
    header = ("benchmark", "model", "solved", "95 % interval", "pass^k", "per attempt", "s", "without a verdict")
    rows = []
    for one in sorted(summaries, key=lambda one: (one.benchmark, versions.get(one.checkpoint, ""), one.model)):
        model = versions.get(one.checkpoint, one.model) + (" (simulated experts)" if one.simulated else "")
        spread = one.interval
        ends = "—" if spread is None or spread.low is None or spread.high is None else _ends(spread.low, spread.high)
        judge = one.judge or "rules"
        if one.protocol_judge is not None:
            judge += f" (not the protocol's {one.protocol_judge})"
        if one.agreement is not None and one.agreement.kappa is not None:
            judge += f", κ {one.agreement.kappa:.2f} with {one.agreement.second}"
        rows.append(
            (
                f"{one.benchmark} ({one.questions} x {one.trials}{f'; {one.variant}' if one.variant else ''})",
                model,
                "—" if one.accuracy is None else f"{100 * one.accuracy:.1f} %",
                ends,
                "; ".join(f"{rate.k}: {100 * (rate.all.value or 0):.1f} %" for rate in one.rates) or "—",
                f"{100 * one.cost_usd:.3f} ¢",
                f"{one.latency_s:.1f}",
                f"{one.failures} of {one.failures + one.scored}",
                judge,
                "yes" if one.whole else "no",
            )
        )
    return (*header, "judge", "whole"), rows


def section(table: Table) -> Markup:
    """Its HTML."""
    return rendered(SECTION, table=table)


def _ends(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"
