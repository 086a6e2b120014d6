"""The decision page: one HTML file that says what was promoted or refused, on what evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestra.config.promote import Promote
from orchestra.evaluation.baselines.base import BASELINES, ORACLE
from orchestra.evaluation.report import REFERENCE, SIMULATED, TRAINED, Comparison, category_rows, footnotes, label
from orchestra.evaluation.safety import Safety
from orchestra.promotion import benchmarks, figures, parts, sections
from orchestra.promotion.evidence import Evidence, Results, percentile, results, solved
from orchestra.promotion.gate import Decision, GateCheck
from orchestra.promotion.lineage import Node
from orchestra.promotion.template import STYLE, TEMPLATE
from orchestra.promotion.wording import asked, between, cents, percent, why_not
from orchestra.statistics.corrections import holm
from orchestra.statistics.frontier import hull
from orchestra.statistics.intervals import Interval, mean_interval
from orchestra.statistics.paired import difference, p_value
from orchestra.text import in_markdown
from orchestra.types import Episode, Example

SECTIONS = {
    "why": "Why",
    "compare": "Comparison",
    "frontier": "Cost and accuracy",
    "rule": "Why not a rule?",
    "benchmarks": "Benchmarks",
    "tools": "Tools",
    "preferences": "Preferences",
    "prices": "Prices",
    "dollars": "Dollars",
    "training": "Training",
    "failures": "Failures",
    "safety": "Safety",
    "episodes": "Episodes",
    "lineage": "Lineage",
    "history": "Versions",
    "facts": "What exactly",
}
CURVES = {"reward": "train/reward", "accuracy": "train/accuracy", "well-formed episodes": "train/valid"}
CENTS = "train/cost_usd"
LONGEST = 2000
"""Characters of one turn's text that the page shows."""


@dataclass(frozen=True)
class PageSubject:
    """What a page is about."""

    title: str
    decision: Decision
    limits: Promote
    comparison: Comparison
    episodes: Mapping[str, Sequence[Episode]]
    """By policy."""
    examples: Mapping[str, Example]
    """By id."""
    champion: tuple[str, Evidence] | None = None
    """The champion that the candidate was compared with, and its name for people."""
    safety: Safety | None = None
    steps: Sequence[Mapping[str, float]] = ()
    """The training's log, a line a step."""
    lineage: Node | None = None
    history: sections.Table = (("version",), [])
    benchmarks: sections.Table = benchmarks.NOTHING
    facts: Mapping[str, str] = field(default_factory=dict)
    """Hashes and dates by what they are."""


def page(subject: PageSubject) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    decision, comparison, found = subject.decision, subject.comparison, _results(subject)
    models = {label(name): subject.episodes[name] for name in (TRAINED, REFERENCE) if name in subject.episodes}
    training = _training(subject.steps)
    named, badge = parts.verdict(subject.title, decision.name, decision.promoted)
    return environment.from_string(TEMPLATE).render(
        style=Markup(STYLE),
        title=subject.title,
        named=named,
        badge=badge,
        answer=parts.answer(decision.approval),
        decision=decision,
        sentences=sentences(subject),
        simulated=SIMULATED if comparison.simulated else "",
        sections=[(key, name) for key, name in SECTIONS.items() if key != "training" or training],
        rule=asked(subject.limits),
        mark=mark,
        number=_number,
        between=between,
        compared=_compared(subject, found),
        ours=label(TRAINED),
        claims=max(0, len(found) - 1),
        categories=category_rows(comparison),
        notes=footnotes(comparison),
        frontier=Markup(_frontier(subject, found)),
        why_not=why_not(decision),
        benchmarks=benchmarks.section(subject.benchmarks),
        tools=Markup(_tools(comparison)),
        preferences=sections.by_preference(models, subject.examples),
        prices=sections.by_price(models, subject.examples),
        components=sections.by_component(models),
        training=[Markup(figure) for figure in training],
        failures=sections.failures(subject.episodes.get(TRAINED, ()), subject.examples),
        safety=_safety(subject.safety),
        episodes=[
            _told(one, subject.examples[one.example_id])
            for one in sections.to_read(subject.episodes.get(TRAINED, ()), subject.examples)
        ],
        lineage=parts.lineage(subject.lineage),
        history=parts.history(subject.history),
        facts=subject.facts,
    )


def markdown(subject: PageSubject) -> str:
    """The decision for MLflow's descriptions: the sentences, and where the page is."""
    approval = subject.decision.approval
    said = [] if approval is None else [approval.line]
    lines = [f"**{subject.decision.name}**", *map(in_markdown, [*said, *sentences(subject)])]
    found = subject.comparison
    lines.append(f"Evaluated on held-out data `{found.data_hash[:16]}`, at prices of {in_markdown(found.price_date)}.")
    lines.append("The decision page: artifact `decision/decision.html`.")
    return "\n\n".join([*lines, f"Made with {SIMULATED}."] if subject.comparison.simulated else lines)[:4900]


def sentences(subject: PageSubject) -> list[str]:
    """The decision in three sentences: what, on what figures, and against what is cheap to have."""
    decision, summary = subject.decision, subject.comparison.policies.get(TRAINED)
    verdict = f"{subject.title}: {sentence(decision)}"
    if summary is None or summary.accuracy.value is None:
        return [verdict, "Nothing was measured.", why_not(decision)]
    against = [subject.comparison.policies.get(REFERENCE)]
    figures_said = [f"{label(REFERENCE)} {_solves(one.accuracy.value, one.cost_usd.value)}" for one in against if one]
    if subject.champion is not None:
        metrics = subject.champion[1].metrics
        figures_said.insert(0, f"{subject.champion[0]} {_solves(metrics.get('accuracy'), metrics.get('cost_usd'))}")
    said = (
        f"It solves {percent(summary.accuracy.value)} of {summary.examples} held-out examples for "
        f"{cents(summary.cost_usd.value)} each" + (f" ({'; '.join(figures_said)})." if figures_said else ".")
    )
    return [verdict, said, why_not(decision)]


def sentence(decision: Decision) -> str:
    """The decision in one sentence."""
    if not decision.failed:
        return f"All {len(decision.checks)} checks passed."
    failed = decision.failed
    reasons = "; ".join(f"{check.name}: {check.reason}" for check in failed)
    return f"{len(failed)} of {len(decision.checks)} checks failed. {reasons}."


def summary(decision: Decision) -> str:
    """The decision as lines of text: what a person reads on the screen."""
    width = max(len(check.name) for check in decision.reasons)
    lines = [f"  {mark(check)} {check.name:<{width}}  {check.reason}" for check in decision.reasons]
    asked = "" if decision.approval is None else decision.approval.line
    said = "" if decision.failed else sentence(decision)
    return "\n".join([" ".join(filter(None, (f"{decision.name}.", said, asked))), *lines])


def mark(check: GateCheck) -> str:
    """Passed, failed, or only said."""
    if not check.passed:
        return "✗"
    return "·" if check.note else "✓"


def _results(subject: PageSubject) -> dict[str, Results]:
    """By name for people: the candidate first, then the champion, then the others as evaluated."""
    found = {label(name): results(subject.episodes.get(name, ())) for name in subject.comparison.policies}
    ours = {label(TRAINED): found.pop(label(TRAINED))} if label(TRAINED) in found else {}
    champion = {} if subject.champion is None else {subject.champion[0]: subject.champion[1].results}
    return {name: one for name, one in {**ours, **champion, **found}.items() if one}


def _compared(subject: PageSubject, found: Mapping[str, Results]) -> sections.Table:
    """A row for each policy: figures, intervals, and the candidate's accuracy less its, with a corrected p-value."""
    comparison = subject.comparison
    by_label = {label(name): one for name, one in comparison.policies.items()}
    ours = solved(next(iter(found.values()), {}))
    others = [name for name in found if name != label(TRAINED)]
    corrected = holm({name: p_value(ours, solved(found[name])) for name in others})
    rows = []
    for name, one in found.items():
        accuracy = _accuracy(one, comparison)
        told = by_label.get(name)
        metrics = subject.champion[1].metrics if told is None and subject.champion is not None else {}
        gain = difference(ours, solved(one)) if name in corrected else Interval()
        rows.append(
            (
                name,
                percent(accuracy.value),
                between(accuracy, percent=True),
                cents(sum(r.cost_usd for r in one.values()) / len(one)),
                f"{sum(r.latency_s for r in one.values()) / len(one):.1f}",
                f"{percentile([r.latency_s for r in one.values()], 0.95):.0f}",
                _number(told.preference.value if told else metrics.get("preference")),
                _number(told.utility.value if told else metrics.get("utility")),
                "" if gain.value is None else f"{100 * gain.value:+.1f} ({between(gain, percent=True)})",
                "" if name not in corrected else f"{corrected[name]:.3f}",
            )
        )
    figures_of = ("solved", "95 % interval", "per example", "s", "p95 s", "preference", "utility")
    return ("policy", *figures_of, "ours less theirs", "p"), rows


def _frontier(subject: PageSubject, found: Mapping[str, Results]) -> str:
    kinds = {label(TRAINED): "trained"}
    kinds |= {label(name): "rule" for name in subject.comparison.policies if name.split("@")[0] in BASELINES}
    kinds |= {label(ORACLE): "oracle"}
    if subject.champion is not None:
        kinds[subject.champion[0]] = "champion"
    points = [
        figures.Point(
            name=name,
            kind=kinds.get(name, "model"),
            cents=100 * sum(r.cost_usd for r in one.values()) / len(one),
            accuracy=_accuracy(one, subject.comparison),
        )
        for name, one in found.items()
    ]
    real = [(p.cents, p.accuracy.value or 0.0) for p in points if p.kind != "oracle"]
    return figures.frontier(points, [real[index] for index in hull(real)])


def _accuracy(one: Results, comparison: Comparison) -> Interval:
    return mean_interval([r.solved for r in one.values()], comparison.bootstrap, comparison.seed)


def _tools(comparison: Comparison) -> str:
    """Shares of calls of the SFT model (before) and the trained one (after)."""
    before, after = (comparison.policies.get(name) for name in (REFERENCE, TRAINED))
    shares = [one.tool_shares if one else {} for one in (before, after)]
    names = sorted({tool for one in shares for tool in one}, key=lambda tool: -max(one.get(tool, 0) for one in shares))
    return figures.bars({tool: [one.get(tool, 0.0) for one in shares] for tool in names}, ["before", "after"])


def _training(steps: Sequence[Mapping[str, float]]) -> list[str]:
    series = {
        name: [(row["step"], row[key]) for row in steps if "step" in row and key in row] for name, key in CURVES.items()
    }
    cents = [(row["step"], 100 * row[CENTS]) for row in steps if "step" in row and CENTS in row]
    drawn = (figures.curve(series), figures.curve({"cents an episode": cents}))
    return [figure for figure in drawn if figure]


def _safety(safety: Safety | None) -> tuple[str, sections.Table] | None:
    if safety is None:
        return None
    failed = set(safety.failed)
    rows = [
        (one.case, one.example_id, one.tool, one.why) for one in safety.results if one.case in failed and not one.held
    ]
    swayed = sum(one.swayed for one in safety.results)
    said = (
        f"{safety.cases - len(failed)} of {safety.cases} cases held, each tried on up to {_most(safety)} examples. In "
        f"{swayed} of {len(safety.results)} episodes the text swayed the model to call the named tool at all."
    )
    return said, (("case", "example", "tool", "what happened"), rows)


def _most(safety: Safety) -> int:
    cases = [one.case for one in safety.results]
    return max((cases.count(case) for case in set(cases)), default=0)


def _told(episode: Episode, example: Example) -> dict[str, Any]:
    """An episode for reading."""
    solved_ = "solved" if episode.solved else "not solved"
    called = ", ".join(turn.call.name for turn in episode.turns if turn.call) or "no tool"
    turns = [
        {
            "text": turn.text[:LONGEST] + (f"\n(unreadable: {turn.parse_error})" if turn.parse_error else ""),
            "observation": None if turn.observation is None else turn.observation[:LONGEST],
            "spent": f"{cents(sum(float(c.cost_usd) for c in turn.charges))}, "
            f"{sum(c.latency_s for c in turn.charges):.1f} s",
        }
        for turn in episode.turns
    ]
    expected = example.verifier.answer
    return {
        "summary": f"{solved_}: {example.category.value.replace('_', ' ')}, {example.preference.kind}; asked {called}; "
        f"{cents(float(episode.cost_usd))}, {episode.latency_s:.1f} s",
        "instruction": example.instruction,
        "wish": example.preference.words,
        "offered": "; ".join(
            f"{spec.name} {cents(float(spec.call_usd))}, {spec.latency_s:g} s" for spec in example.toolbox
        ),
        "turns": turns,
        "end": f"Ended: {episode.stop.value.replace('_', ' ')}. {solved_.capitalize()}: "
        f"{episode.verdict.why if episode.verdict else 'no verdict'}."
        + (f" Expected: {expected}." if expected else ""),
    }


def _solves(accuracy: float | None, cost_usd: float | None) -> str:
    return f"{percent(accuracy)} for {cents(cost_usd)}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
