"""The toolbox of a served request: the basic tools, a handful of experts, and the fitting tools of its domain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestra.errors import CallError, ToolError
from orchestra.serving.wire.errors import bad_request
from orchestra.serving.wire.request import PreferenceSpec
from orchestra.tools.catalogue.entry import DECENT
from orchestra.tools.search.corpus import words
from orchestra.types import Preference, ToolKind, ToolSpec

if TYPE_CHECKING:
    from orchestra.serving.episodes.frames import PromptFrames
    from orchestra.tools.catalogue.catalogue import Catalogue
    from orchestra.tools.toolkit import Toolkit

DOMAIN_TOOLS = 6
"""Tools of the request's domain that are offered, the fitting ones first: a longer prompt costs every turn."""

STATED = {"cheap": "keep it cheap.", "fast": "be quick.", "accurate": "it must be right."}
"""Words for the preference kinds that a caller may name instead of using own words; those the policy was trained on."""
PREFER = "use {x} if you can."
"""Words for a tool that a caller prefers; the policy was trained on them too."""
LIKED, CARELESS = 0.5, 0.1
"""A weight above the first is a preference; dollars and seconds that weigh less than the second do not matter."""
_AGAINST = re.compile(
    r"(?i)\b(?:no|not|never|none|neither|nor|without|avoid\w*|skip\w*|except\w*|exclud\w*|but|instead|rather|other\w*|"
    r"leave|leaving|ban|bann\w*|forbid\w*|refus\w*|against|bad|worse|worst)\b|n['\u2019]t\b|\b(?:do|does|wo|ca|should)nt\b"
)
"""Wishes with one of these words may be against the expert that they name."""


@dataclass(frozen=True)
class ToolChoice:
    """The tools that a request allows. It holds for everything that an answer calls, not for the model alone."""

    prefer: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    """None: all."""
    named: frozenset[str] = frozenset()
    """Experts that the user's own words ask for. They are offered; whether one is asked, the policy decides."""

    @classmethod
    def of(cls, wanted: PreferenceSpec, catalogue: Catalogue | None = None) -> ToolChoice:
        """Without a `catalogue`, no names are looked for in the words."""
        liked = {name for name, weight in wanted.tools.items() if weight > LIKED}
        allowed = None if wanted.tools_allowed is None else frozenset(wanted.tools_allowed)
        words = wanted.words or ""
        named: Iterable[str] = ()
        if catalogue is not None and words and not _AGAINST.search(words):
            named = _named(words, catalogue.names(ToolKind.EXPERT))
        return cls(frozenset({*wanted.prefer, *liked}), frozenset(wanted.avoid), allowed, frozenset(named))

    def allows(self, name: str) -> bool:
        return name not in self.avoid and (self.allowed is None or name in self.allowed)

    def contrary(self, own: Iterable[str]) -> list[str]:
        """Tools that are preferred and yet ruled out; `tools_allowed` does not concern the caller's `own`."""
        possible = {*(self.prefer if self.allowed is None else self.allowed), *own} - self.avoid
        return sorted(self.prefer - possible)

    def barred(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the catalogue's tools that nothing may call."""
        return frozenset(name for name in names if not self.allows(name))


FREE = ToolChoice()


def experts(catalogue: Catalogue, count: int, choice: ToolChoice = FREE) -> list[str]:
    """`count` experts: those preferred or else the strongest, those that the words name, then the cheapest that cover
    topics not yet covered, then the cheapest."""
    names = [name for name in catalogue.names(ToolKind.EXPERT) if choice.allows(name)]
    cost = {name: catalogue.spec(name).call_usd for name in names}
    by_cost = sorted(names, key=lambda name: (cost[name], name))
    chosen = [name for name in names if name in choice.prefer][:count]
    if not chosen:
        chosen = sorted(names, key=lambda name: (-catalogue.strength(name), cost[name]))[:1]
    chosen += [name for name in names if name in choice.named - {*chosen}][: max(0, count - len(chosen))]
    covered: set[str] = set()
    for name in by_cost:
        topics = {topic for topic in catalogue.topics if catalogue.skill(name, topic) >= DECENT}
        if name not in chosen and len(chosen) < count and topics - covered:
            chosen.append(name)
            covered |= topics
    chosen += [name for name in by_cost if name not in chosen][: max(0, count - len(chosen))]
    return chosen


def toolbox(
    toolkit: Toolkit,
    question: str,
    domain: str | None,
    expert_count: int,
    choice: ToolChoice = FREE,
    own: Sequence[ToolSpec] = (),
) -> tuple[ToolSpec, ...]:
    """The tools of one request, at the price book's prices: the catalogue's that its choice allows, and the caller's
    own, which stand for a tool of the catalogue with the same name.

    A preferred tool takes a place first: that of the domain's tool that fits least, then that of a basic tool. Raises
    `ApiError` 400 where there are fewer places than preferred tools.
    """
    catalogue, named = toolkit.catalogue, {spec.name for spec in own}
    tools = {} if domain is None else toolkit.domain(domain).tools
    basic = [name for name in catalogue.names(ToolKind.BASIC) if choice.allows(name)]
    actions = [name for name in tools if choice.allows(name)]
    chosen = experts(catalogue, expert_count, choice)
    fitting = [] if domain is None else _fitting(toolkit, question, domain, actions)
    usual = [*chosen, *basic, *fitting]
    strong = [name for name in catalogue.names(ToolKind.EXPERT) if choice.allows(name)]
    liked = [name for name in (*strong, *basic, *actions) if name in choice.prefer - named]
    if len(liked) > len(usual):
        what = f"{len(liked)} tools are preferred, and {len(usual)} are offered at a time: prefer fewer"
        raise bad_request(what, "preference.prefer")
    # As many as without a preference, since a longer prompt costs every turn; the last of the usual ones make room.
    kept = {*liked, *[name for name in usual if name not in liked][: len(usual) - len(liked)]} - named
    order = dict.fromkeys((*chosen, *strong, *basic, *(name for name in actions if name in liked), *fitting))
    specs = [
        catalogue.domain_spec(domain, tools[name]) if domain is not None and name in tools else catalogue.spec(name)
        for name in order
        if name in kept
    ]
    return (*specs, *own)


class Shelf:
    """The toolboxes of one release, whose prices stay as they are: their parts are made once, and so is the toolbox of
    plain requests."""

    def __init__(self, toolkit: Toolkit, frames: PromptFrames) -> None:
        """`frames` are told of what will be offered again."""
        self._toolkit, self._frames = toolkit, frames
        self._plain: dict[int, tuple[ToolSpec, ...]] = {}
        self._domains: dict[tuple[str, int], dict[str, ToolSpec]] = {}

    def toolbox(
        self,
        question: str,
        domain: str | None,
        expert_count: int,
        choice: ToolChoice = FREE,
        own: Sequence[ToolSpec] = (),
    ) -> tuple[ToolSpec, ...]:
        """As the function `toolbox`."""
        if own or choice != FREE:
            return toolbox(self._toolkit, question, domain, expert_count, choice, own)
        plain = self._offered(expert_count)
        if domain is None:
            return plain
        specs = self._specs(domain, expert_count)
        return (*plain, *(specs[name] for name in _fitting(self._toolkit, question, domain, list(specs))))

    def prepare(self, domains: Iterable[str], expert_count: int) -> None:
        """Make the parts of these domains' toolboxes, and the checks of all tools' arguments, before the first request
        for one: all requests under way would wait for a check that is made."""
        catalogue = self._toolkit.catalogue
        specs = [catalogue.spec(name) for name in catalogue.entries]
        for domain in domains:
            specs += self._specs(domain, expert_count).values()
        for spec in specs:
            with suppress(CallError, ToolError):  # A schema that is none is told by the calls of its tool.
                self._toolkit.check(spec, {})

    def _offered(self, expert_count: int) -> tuple[ToolSpec, ...]:
        """The toolbox of plain requests, which no question changes."""
        if expert_count not in self._plain:
            self._plain[expert_count] = self._frames.keep(toolbox(self._toolkit, "", None, expert_count))
        return self._plain[expert_count]

    def _specs(self, domain: str, expert_count: int) -> dict[str, ToolSpec]:
        """A domain's tools by name, which are offered after the plain toolbox."""
        if (domain, expert_count) not in self._domains:
            catalogue, tools = self._toolkit.catalogue, self._toolkit.domain(domain).tools
            specs = {name: catalogue.domain_spec(domain, tool) for name, tool in tools.items()}
            self._frames.keep_rows(self._offered(expert_count), tuple(specs.values()))
            self._domains[domain, expert_count] = specs
        return self._domains[domain, expert_count]


def known_tools(toolkit: Toolkit, domain: str | None) -> list[str]:
    """The names that a request's choice of tools may hold, its own besides."""
    return [*toolkit.catalogue.entries, *(() if domain is None else toolkit.domain(domain).tools)]


def _fitting(toolkit: Toolkit, question: str, domain: str, allowed: Sequence[str]) -> list[str]:
    """Those of the domain's tools whose names and descriptions share most with the question."""
    if len(allowed) <= DOMAIN_TOOLS:
        return list(allowed)
    tools = toolkit.domain(domain).tools
    weights = _weights(tuple((name, tools[name].description) for name in allowed))
    asked = _terms(question)
    fit = {name: sum(weight for term, weight in own if term in asked) for name, own in weights.items()}
    return sorted(allowed, key=lambda name: -fit[name])[:DOMAIN_TOOLS]


@lru_cache(64)
def _weights(tools: tuple[tuple[str, str], ...]) -> dict[str, tuple[tuple[str, float], ...]]:
    """Of each tool's terms, by its name; `tools` are names and descriptions."""
    terms = {name: _terms(f"{name.replace('_', ' ')} {description}") for name, description in tools}
    # A word that many tools share tells them apart little.
    found = Counter(term for own in terms.values() for term in own)
    return {name: tuple((term, 1 / found[term]) for term in sorted(own)) for name, own in terms.items()}


def _terms(text: str) -> frozenset[str]:
    return frozenset(word.removesuffix("s") for word in words(text))


def spelt(wanted: PreferenceSpec, catalogue: Catalogue) -> PreferenceSpec:
    """The same, with the words as the policy knows them: a kind such as `Cheap!` as `cheap`, and an expert such as
    `GPT 5` by its name in the toolbox."""
    words = (wanted.words or "").strip()
    kind = words.strip(".!").lower()
    if not words:
        return wanted
    if kind in (*STATED, "neutral"):
        return wanted.model_copy(update={"words": kind})
    for name, found in _named(words, catalogue.names(ToolKind.EXPERT)).items():
        words = found.sub(name, words)
    return wanted.model_copy(update={"words": words or None})


def _named(words: str, names: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Those of the names that the words hold in any case, with blanks or nothing for hyphens; and how to find each.

    `gpt-5-mini` does not hold `gpt-5`.
    """
    found = {}
    for name in sorted(names, key=len, reverse=True):
        parts = map(re.escape, re.split(r"[-_ ]|(?<=[a-z]{2})(?=\d)", name))
        pattern = re.compile(rf"(?i)(?<![\w.-]){'[-_ ]?'.join(parts)}(?![\w-]|\.\w)")
        words, count = pattern.subn(" ", words)
        if count:
            found[name] = pattern
    return found


def preference(wanted: PreferenceSpec) -> Preference:
    """What the policy is told: a kind (cheap, fast, accurate, neutral) or the user's own words, then what the parts of
    a structured preference say. The weights matter in training only."""
    kind = (wanted.words or "neutral").strip()
    said = [STATED.get(kind, "" if kind in ("", "neutral") else kind)]
    kind = kind if kind in STATED else ("stated" if said[0] else "neutral")
    leading = _leading(wanted)
    if leading is not None and not said[0]:
        kind, said = leading, [STATED[leading]]
    liked = dict.fromkeys([*wanted.prefer, *(name for name, weight in wanted.tools.items() if weight > LIKED)])
    said += [PREFER.format(x=name) for name in liked]
    weights = {
        "outcome": 1.0 if wanted.outcome is None else wanted.outcome,
        "compute": 0.3 if wanted.compute is None else wanted.compute,
        "latency": 0.1 if wanted.latency is None else wanted.latency,
    }
    return Preference(kind=kind, words=" ".join(filter(None, said)), tools=wanted.tools, **weights)


def _leading(wanted: PreferenceSpec) -> str | None:
    """The kind that the stated weights come to; None where none stands out."""
    compute, latency = wanted.compute or 0.0, wanted.latency or 0.0
    if max(compute, latency) >= LIKED:
        return "cheap" if compute >= latency else "fast"
    stated = (wanted.outcome, wanted.compute, wanted.latency)
    careless = compute + latency < CARELESS and wanted.compute is not None and wanted.latency is not None
    return "accurate" if careless and any(weight is not None for weight in stated) else None
