"""The data page: one HTML file in which a person reads what the data is, what was refused, and why."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestra.types import Example
from orchestra.validation.plots import Plot
from orchestra.validation.survey import Uses

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 2
"""Examples of each category and split."""
REFUSED_SHOWN = 10

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{margin-bottom:.2rem} .badge{padding:.1rem .6rem;border-radius:.4rem;color:#fff;background:#b42318}
.badge.yes{background:#1a7f37} .note{background:#fff4ce;padding:.4rem .8rem;border-radius:.4rem}
table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #d0d7de;padding:.25rem .6rem;text-align:right;vertical-align:top}
th:first-child,td:first-child,td.text{text-align:left}
td.pass{color:#1a7f37} td.fail{color:#b42318;font-weight:600} td.warn{color:#9a6700;font-weight:600}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(26rem,1fr));gap:1rem} img{max-width:100%}
article{border:1px solid #d0d7de;border-radius:.4rem;padding:.2rem .8rem;margin:.5rem 0;min-width:0}
article p{margin:.3rem 0} code{font-size:.85rem;overflow-wrap:anywhere} small,li{color:#57606a}
</style></head><body>
<h1>{{ title }} <span class="badge {{ 'yes' if not stopped }}">{{ 'Refused' if stopped else 'Passed' }}</span></h1>
<p>{{ stopped or sentence }}</p>
{% if simulated %}<p class="note">The experts in this data are simulated stand-ins.</p>{% endif %}
<h2>Counts</h2>
{{ grid(counts) }}
<h2>Warnings</h2>
{% if warnings %}<ul>{% for warning in warnings %}<li>{{ warning }}</li>{% endfor %}</ul>
{% else %}<p>None.</p>{% endif %}
<h2>What was refused, and why</h2>
{% if reasons %}{{ grid(reasons) }}
<p>The first of them; all are in data/quarantine/rows.jsonl:</p>
<ul>{% for row, why in refused %}<li><code>{{ row }}</code> {{ why }}</li>{% endfor %}</ul>
{% else %}<p>No row.</p>{% endif %}
<h2>Distributions of what passed</h2>
<div class="two">
{% for plot in plots %}<img alt="{{ plot.name }}" src="data:image/svg+xml;base64,{{ encoded(plot.svg) }}">
{% endfor %}</div>
<h2>Tools</h2>
<p>Examples that offer a tool, and examples whose known solution calls it.</p>
{{ grid(tools) }}
<h2>Examples</h2>
{% for category, shown in examples.items() %}<h3>{{ category }}</h3>
<div class="two">{% for split, found in shown.items() %}<div><b>{{ split }}</b>
{% for example in found %}<article>
<p>{{ example.instruction }}</p>
{% set preference = example.preference %}
<p><small>{{ preference.kind }}</small> {% if preference.words %}“{{ preference.words }}”{% endif %}

<small>P: {{ weights(example) }}</small></p>
<table><tr><th>tool</th><th>$ a call</th><th>seconds</th><th></th></tr>
{% for spec in example.toolbox %}<tr>
<td>{{ spec.name }}{% if spec.name != spec.tool %} <small>{{ spec.tool }}</small>{% endif %}</td>
<td>{{ '%.6f' % spec.call_usd }}</td><td>{{ '%.1f' % spec.latency_s }}</td>
<td class="text">{{ spec.description }}</td></tr>
{% endfor %}</table>
{% for call in example.verifier.golden_calls %}<p><code>{{ call.name }}({{ arguments(call) }})</code></p>{% endfor %}
<p>{{ example.verifier.kind }} answer: <b>{{ answer(example) }}</b>
<small>{{ [example.topic, 'hard' if example.hard else '', example.id]|select|join(' · ') }}</small></p>
</article>{% endfor %}</div>{% endfor %}</div>
{% endfor %}
<h2>Rules</h2>
<table><tr><th>data</th><th></th><th></th><th></th><th></th></tr>
{% for rule in rules %}<tr><td>{{ rule.suite }}</td><td class="text"><code>{{ rule.column }}</code></td>
<td class="text">{{ rule.reason }}</td>
<td class="text">{{ rule.severity }}</td><td class="{{ rule.mark }}">{{ rule.found }}</td></tr>
{% endfor %}</table>
<h2>What exactly</h2>
<table>{% for name, value in facts.items() %}<tr><td>{{ name }}</td><td class="text"><code>{{ value }}</code></td></tr>
{% endfor %}</table>
</body></html>
"""
GRID = """{% macro grid(table) %}<table>
<tr>{% for cell in table[0] %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for line in table[1:] %}<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endmacro %}"""
Table = list[list[str]]
"""A header and lines."""


@dataclass(frozen=True)
class Rule:
    """A rule of the suites, as a person reads it."""

    suite: str
    column: str
    reason: str
    """What a breach means."""
    severity: str
    passed: bool
    count: int
    """Rows that break it."""

    @property
    def found(self) -> str:
        return "kept" if self.passed else f"broken by {self.count} rows" if self.count else "broken"

    @property
    def mark(self) -> str:
        return "pass" if self.passed else "warn" if self.severity == "warning" else "fail"


@dataclass(frozen=True)
class Findings:
    """What the validation said."""

    refused: Mapping[str, Sequence[str]]
    """Reasons by row."""
    reasons: Sequence[tuple[str, int]]
    """Refused rows by first reason."""
    warnings: Sequence[str]
    rules: Sequence[Rule]
    stopped: str | None
    """Why the data must not be used."""
    facts: Mapping[str, str] = field(default_factory=dict)


def chosen(passed: "pd.DataFrame") -> dict[str, dict[int, str]]:
    """The rows to show: by split, line number and category. The first of each category, with different preferences."""
    kinds = passed.drop_duplicates(["split", "category", "preference"])
    shown = kinds.groupby(["split", "category"], sort=False).head(SHOWN)
    found: dict[str, dict[int, str]] = {}
    for row, split, category in zip(shown["row"], shown["split"], shown["category"], strict=True):
        found.setdefault(str(split), {})[int(str(row).rpartition(":")[2])] = str(category)
    return found


def page(
    every: "pd.DataFrame",
    passed: "pd.DataFrame",
    uses: Mapping[str, Uses],
    examples: Mapping[str, Mapping[str, Sequence[Example]]],
    findings: Findings,
    drawn: Sequence[Plot],
    *,
    simulated: bool,
) -> str:
    """The whole page. `every` has a row for each line (`flatten.COLUMNS`), `passed` those that nothing refuses;
    `examples` are by category and split; `drawn` are the plots of what passed.

    Nothing of it depends on when, where or by whom it was made.
    """
    from jinja2 import Environment, StrictUndefined

    splits = list(uses)
    refused, total = len(findings.refused), len(every)
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(GRID + TEMPLATE)
    return template.render(
        title=f"Data: {len(passed)} examples",
        stopped=findings.stopped,
        sentence=f"{total - refused} of {total} rows passed, {refused} refused, {len(findings.warnings)} warnings.",
        simulated=simulated,
        counts=_counts(every, passed, splits),
        warnings=findings.warnings,
        reasons=[["reason", "rows"], *([reason, str(count)] for reason, count in findings.reasons)]
        if findings.reasons
        else [],
        refused=[(row, "; ".join(why)) for row, why in list(findings.refused.items())[:REFUSED_SHOWN]],
        plots=drawn,
        tools=_tools(uses),
        examples=examples,
        rules=findings.rules,
        facts=findings.facts,
        encoded=lambda svg: base64.b64encode(svg.encode()).decode(),
        weights=_weights,
        arguments=lambda call: json.dumps(call.arguments, ensure_ascii=False)[1:-1],
        answer=lambda example: example.verifier.answer or ", ".join(example.verifier.communicate) or "—",
    )


def _counts(every: "pd.DataFrame", passed: "pd.DataFrame", splits: Sequence[str]) -> Table:
    """Rows of each split, refused and passed, and those that passed by category, domain and hardness."""

    def line(name: str, frame: "pd.DataFrame") -> list[str]:
        found = frame["split"].value_counts()
        return [name, *(str(int(found.get(split, 0))) for split in splits)]

    lines = [line("rows", every), line("refused", every.drop(passed.index)), line("passed", passed)]
    for column in ("category", "domain"):
        for value in sorted(passed[column].dropna().unique()):
            lines.append(line(f"{column} {value}", passed[passed[column] == value]))
    lines.append(line("hard topic questions", passed[passed["hard"] == 1]))
    lines.append(line("with a preference", passed[passed["preference"] != "neutral"]))
    return [["", *splits], *lines]


def _tools(uses: Mapping[str, Uses]) -> Table:
    names = sorted({name for used in uses.values() for name in used.offered})
    header = ["tool", *(f"{split}, {what}" for split in uses for what in ("offered", "needed"))]
    return [header] + [
        [name, *(str(count) for used in uses.values() for count in (used.offered[name], used.needed[name]))]
        for name in names
    ]


def _weights(example: Example) -> str:
    preference = example.preference
    weights: dict[str, Any] = {
        "outcome": preference.outcome,
        "compute": preference.compute,
        "latency": preference.latency,
        **preference.tools,
    }
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
