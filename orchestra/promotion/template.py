"""The HTML of the decision page: no script, nothing fetched, for a phone, for print, by day and by night."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d0d7de;--good:#1a7f37;--bad:#b42318;
--warn:#fff4ce;--a:#0550ae;--b:#8a4b00;--c:#57606a}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b3;--paper:#0d1117;--line:#3d444d;--good:#56d364;
--bad:#ff7b72;--warn:#3a2f00;--a:#79c0ff;--b:#ffb757;--c:#9da7b3}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem;color:var(--ink);
background:var(--paper)}
h1{font-size:1.6rem;margin:.4rem 0} h2{font-size:1.2rem;margin:1.8rem 0 .4rem} a{color:var(--a)}
:focus-visible{outline:3px solid var(--a);outline-offset:2px}
.skip{position:absolute;left:-99rem} .skip:focus{position:static}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;padding:0;margin:.5rem 0}
.badge{padding:.1rem .6rem;border-radius:.4rem;border:2px solid var(--bad);color:var(--bad);white-space:nowrap}
.badge.yes{border-color:var(--good);color:var(--good)}
.note{background:var(--warn);padding:.4rem .8rem;border-radius:.4rem}
.wide{overflow-x:auto} table{border-collapse:collapse;margin:.5rem 0;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:right;vertical-align:top}
th:first-child,td:first-child,.text{text-align:left} .pass{color:var(--good)} .fail{color:var(--bad);font-weight:600}
tr.ours td{font-weight:600} small,footer,li,.soft{color:var(--soft)} nav li{color:inherit}
code,pre{font:.85rem/1.45 ui-monospace,monospace;overflow-wrap:anywhere;white-space:pre-wrap;margin:.2rem 0}
details{border:1px solid var(--line);border-radius:.4rem;padding:.3rem .8rem;margin:.5rem 0} summary{cursor:pointer}
svg{width:100%;max-width:46rem;height:auto;display:block} svg text{font-size:13px;fill:var(--ink)}
svg .small{font-size:12px;fill:var(--soft)} svg .end{text-anchor:end} svg .mid{text-anchor:middle}
svg .grid{stroke:var(--line);stroke-width:.6} svg .line{fill:none;stroke:var(--soft);stroke-dasharray:4 3}
svg .lead{stroke-width:.6;opacity:.6} svg path{stroke:currentColor;fill:none}
svg .thick{fill:none;stroke:currentColor;stroke-width:1.6}
svg circle,svg rect{fill:currentColor} svg .trained,svg .bar0{color:var(--a)} svg .champion,svg .bar1{color:var(--b)}
svg .model,svg .bar2{color:var(--good)} svg .rule{color:var(--c)} svg .oracle{color:var(--bad)}
svg .trained text{font-weight:700}
@media print{:root{--ink:#000;--soft:#333;--paper:#fff;--line:#999;--warn:#fff;--good:#0a5c22;--bad:#8f1a10}
nav,.skip{display:none} body{max-width:none;padding:0;font-size:11pt} h2{break-after:avoid}
tr,svg,details{break-inside:avoid}
.wide{overflow:visible} table{font-size:.8rem}
details::details-content{content-visibility:visible;display:block;height:auto}}
"""
MACROS = """{% macro grid(name, table, ours='', texts=()) %}
<div class="wide" tabindex="0" role="region" aria-label="{{ name }}">
<table><thead><tr>{% for cell in table[0] %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for line in table[1] %}<tr{% if line[0] == ours %} class="ours"{% endif %}>{% for cell in line %}
<td{% if loop.index0 in texts %} class="text"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endmacro %}"""
TEMPLATE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
{{ named }}
<style>{{ style }}</style></head><body>
"""
    + MACROS
    + """
<a class="skip" href="#why">Skip to the reasons</a>
<header><h1>{{ title }} {{ badge }}</h1>
{{ answer }}
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{% if simulated %}<p class="note">Everything here was made with {{ simulated }}.</p>{% endif %}</header>
<nav aria-label="Sections"><ul>{% for anchor, name in sections %}<li><a href="#{{ anchor }}">{{ name }}</a></li>
{% endfor %}</ul></nav>
<main>
<h2 id="why">Why</h2>
<p class="soft">{{ rule }}</p>
<div class="wide" tabindex="0" role="region" aria-label="Checks"><table><thead><tr><th scope="col">check</th>
<th scope="col">passed</th><th scope="col">measured</th><th scope="col">interval</th><th scope="col">limit</th>
<th scope="col" class="text">reason</th></tr></thead><tbody>
{% for check in decision.reasons %}<tr><td>{{ check.name }}</td>
<td class="{{ 'pass' if check.passed else 'fail' }}">{{ mark(check) }}</td><td>{{ number(check.measured) }}</td>
<td>{{ between(check.interval) }}</td><td>{{ number(check.bar) }}</td><td class="text">{{ check.reason }}</td></tr>
{% endfor %}</tbody></table></div>
<h2 id="compare">How it compares</h2>
{{ grid('Comparison', compared, ours) }}
<p class="soft">p: two-sided, of the difference in accuracy on the same examples, corrected for {{ claims }} comparisons
(Holm).</p>
{{ grid('Accuracy by category', categories, ours) }}
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
<h2 id="frontier">Cost and accuracy</h2>
{{ frontier }}
<h2 id="rule">Why not a rule?</h2>
<p>{{ why_not }}</p>
{{ benchmarks }}
<h2 id="tools">Tools before and after training</h2>
{{ tools }}
<h2 id="preferences">Response to preferences</h2>
{{ grid('Response to preferences', preferences) }}
<h2 id="prices">Response to prices</h2>
{{ grid('Response to prices', prices) }}
<h2 id="dollars">Dollars by component</h2>
{{ grid('Dollars by component', components) }}
{% if training %}<h2 id="training">Training</h2>
{% for figure in training %}{{ figure }}{% endfor %}{% endif %}
<h2 id="failures">What was not solved</h2>
{{ grid('What was not solved', failures, texts=(1, 2)) }}
<h2 id="safety">Safety set</h2>
{% if safety %}<p>{{ safety[0] }}</p>
{% if safety[1][1] %}{{ grid('Cases that failed', safety[1], texts=(1, 2, 3)) }}{% endif %}
{% else %}<p>It was not tried.</p>{% endif %}
<h2 id="episodes">Episodes to read</h2>
{% for one in episodes %}<details><summary>{{ one.summary }}</summary>
<p>{{ one.instruction }}{% if one.wish %} <em>{{ one.wish }}</em>{% endif %}</p>
<p class="soft">Offered: {{ one.offered }}</p>
<ol>{% for turn in one.turns %}<li><pre>{{ turn.text }}</pre>{% if turn.observation is not none %}<p>reply:</p>
<pre>{{ turn.observation }}</pre>{% endif %}<small>{{ turn.spent }}</small></li>{% endfor %}</ol>
<p>{{ one.end }}</p></details>
{% endfor %}
<h2 id="lineage">Lineage</h2>
{{ lineage }}
<h2 id="history">Versions</h2>
{{ history }}
<h2 id="facts">What exactly</h2>
<div class="wide" tabindex="0" role="region" aria-label="What exactly"><table><tbody>
{% for name, value in facts.items() %}<tr><td>{{ name }}</td><td class="text"><code>{{ value }}</code></td></tr>
{% endfor %}</tbody></table></div>
</main></body></html>
"""
)
