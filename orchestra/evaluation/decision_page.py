"""The decision page: one HTML file that says what was promoted or refused, on what evidence."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.evaluation.promotion_gate import Decision, GateCheck
from orchestra.evaluation.report import HEADER, SIMULATED, Comparison, category_rows, footnotes, rows

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{margin-bottom:.2rem} .badge{padding:.1rem .6rem;border-radius:.4rem;color:#fff;background:#b42318}
.badge.yes{background:#1a7f37} .simulated{background:#fff4ce;padding:.4rem .8rem;border-radius:.4rem}
table{border-collapse:collapse;margin:1rem 0;font-size:.92rem;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #d0d7de;padding:.3rem .7rem;text-align:right}
th:first-child,td:first-child,td.text{text-align:left}
td.pass{color:#1a7f37} td.fail{color:#b42318;font-weight:600} img{max-width:100%}
code{font-size:.85rem;overflow-wrap:anywhere}
footer,li{color:#57606a;font-size:.9rem}
</style></head><body>
<h1>{{ title }} <span class="badge {{ 'yes' if decision.promoted }}">{{ decision.name }}</span></h1>
<p>{{ sentence }}</p>
{% if simulated %}<p class="simulated">Everything here was made with {{ simulated }}.</p>{% endif %}
<h2>Why</h2>
<table><tr><th>check</th><th></th><th>measured</th><th>bar</th><th></th></tr>
{% for check in decision.reasons %}<tr><td>{{ check.name }}</td>
<td class="{{ 'pass' if check.passed else 'fail' }}">{{ mark(check) }}</td>
<td>{{ number(check.measured) }}</td><td>{{ number(check.bar) }}</td><td class="text">{{ check.reason }}</td></tr>
{% endfor %}</table>
<h2>How it compares</h2>
{% for header, body in tables %}<table><tr>{% for cell in header %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for line in body %}<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% for plot in plots %}<img alt="{{ plot.name }}" src="data:image/png;base64,{{ plot.data }}">{% endfor %}
<h2>What exactly</h2>
<table>{% for name, value in facts.items() %}<tr><td>{{ name }}</td><td class="text"><code>{{ value }}</code></td></tr>
{% endfor %}</table>
</body></html>
"""


def page(
    decision: Decision, comparison: Comparison, *, title: str, facts: Mapping[str, str], plots: Sequence[Path]
) -> str:
    """The whole page, images inside. `facts` are hashes and dates by what they are; missing plots are left out."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(TEMPLATE)
    inlined = [
        {"name": plot.stem, "data": base64.b64encode(plot.read_bytes()).decode()} for plot in plots if plot.is_file()
    ]
    return template.render(
        title=title,
        decision=decision,
        sentence=sentence(decision),
        simulated=SIMULATED if comparison.simulated else "",
        mark=mark,
        number=_number,
        tables=[(HEADER, rows(comparison)), category_rows(comparison)],
        notes=footnotes(comparison),
        plots=inlined,
        facts=facts,
    )


def sentence(decision: Decision) -> str:
    """The decision in one sentence."""
    if decision.promoted:
        return f"All {len(decision.reasons)} checks passed."
    failed = decision.failed
    reasons = "; ".join(f"{check.name}: {check.reason}" for check in failed)
    return f"{len(failed)} of {len(decision.reasons)} checks failed. {reasons}."


def summary(decision: Decision) -> str:
    """The decision as lines of text: what a person reads on the screen."""
    width = max(len(check.name) for check in decision.reasons)
    lines = [f"  {mark(check)} {check.name:<{width}}  {check.reason}" for check in decision.reasons]
    return "\n".join([f"{decision.name}. {sentence(decision) if decision.promoted else ''}".strip(), *lines])


def mark(check: GateCheck) -> str:
    """Passed, failed, or only said."""
    if not check.passed:
        return "✗"
    return "✓" if check.bar is not None else "·"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
