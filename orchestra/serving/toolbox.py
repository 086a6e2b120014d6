"""The toolbox of a served request: the basic tools, a handful of experts, and the fitting tools of its domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestra.tools.catalogue.entry import DECENT
from orchestra.tools.search.corpus import words
from orchestra.types import Preference, ToolKind, ToolSpec

if TYPE_CHECKING:
    from orchestra.tools.catalogue.catalogue import Catalogue
    from orchestra.tools.toolkit import Toolkit

DOMAIN_TOOLS = 6
"""Tools of the request's domain that are offered, the fitting ones first: a longer prompt costs every turn."""

STATED = {"cheap": "keep it cheap.", "fast": "be quick.", "accurate": "it must be right."}
"""Words for the preference kinds that a caller may name instead of using own words; those the policy was trained on."""


def experts(catalogue: Catalogue, count: int) -> list[str]:
    """`count` experts: the strongest, then the cheapest that cover topics not yet covered, then the cheapest."""
    names = catalogue.names(ToolKind.EXPERT)
    cost = {name: catalogue.spec(name).call_usd for name in names}
    by_cost = sorted(names, key=lambda name: (cost[name], name))
    chosen = sorted(names, key=lambda name: (-catalogue.strength(name), cost[name]))[:1]
    covered: set[str] = set()
    for name in by_cost:
        topics = {topic for topic in catalogue.topics if catalogue.skill(name, topic) >= DECENT}
        if name not in chosen and len(chosen) < count and topics - covered:
            chosen.append(name)
            covered |= topics
    chosen += [name for name in by_cost if name not in chosen][: max(0, count - len(chosen))]
    return chosen


def toolbox(toolkit: Toolkit, question: str, domain: str | None, expert_count: int) -> tuple[ToolSpec, ...]:
    """The tools of one request, at the price book's prices."""
    catalogue = toolkit.catalogue
    names = [*experts(catalogue, expert_count), *catalogue.names(ToolKind.BASIC)]
    specs = [catalogue.spec(name) for name in names]
    if domain is not None:
        tools = toolkit.domain(domain).tools
        specs += [catalogue.domain_spec(domain, tools[name]) for name in _fitting(toolkit, question, domain)]
    return tuple(specs)


def _fitting(toolkit: Toolkit, question: str, domain: str) -> list[str]:
    """Names of the domain's tools whose names and descriptions share most with the question."""
    tools = toolkit.domain(domain).tools
    if len(tools) <= DOMAIN_TOOLS:
        return list(tools)
    terms = {name: _terms(f"{name.replace('_', ' ')} {tool.description}") for name, tool in tools.items()}
    asked = _terms(question)
    # A word that many tools share tells them apart little.
    weight = {term: 1 / sum(term in other for other in terms.values()) for own in terms.values() for term in own}
    fit = {name: sum(weight[term] for term in own & asked) for name, own in terms.items()}
    return sorted(tools, key=lambda name: -fit[name])[:DOMAIN_TOOLS]


def _terms(text: str) -> set[str]:
    return {word.removesuffix("s") for word in words(text)}


def preference(stated: str | None) -> Preference:
    """A kind (cheap, fast, accurate, neutral) or the user's own words. The weights matter in training only."""
    kind = (stated or "neutral").strip()
    said = STATED.get(kind, "" if kind in ("", "neutral") else kind)
    kind = kind if kind in STATED else ("stated" if said else "neutral")
    return Preference(kind=kind, words=said, outcome=1.0, compute=0.3, latency=0.1)
