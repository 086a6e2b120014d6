"""Which tools an example is offered, and at what price: a random subset and a random price schedule."""

import math
import random
from collections.abc import Mapping
from datetime import date

from orchestra.config.schema import Synthesize
from orchestra.synthesis.draft import Draft
from orchestra.tools.catalogue.catalogue import Catalogue, DomainToolLike
from orchestra.tools.catalogue.entry import DECENT
from orchestra.types import Category, ToolKind, ToolSpec

FRONTIER = 0.57
"""Experts at least this strong on the whole are the strongest tier."""
FRONTIER_SHARE, DECENT_SHARE = 0.95, 0.95
"""How often a toolbox has one of each; at least one of the two is always there."""
SUITED = (1, 2, 3, 3)
"""How many of the smaller ones that suit the topic are offered, each as likely: their prices and answers differ."""
STRONGEST_SHARE = 0.9
"""How often the expert of the strongest tier is the very strongest."""
SPARE_SHARE = 0.5
"""How often a basic tool that is not needed is offered."""
DISTRACTORS = 3
"""Domain tools offered besides those needed, at most."""


def dated(catalogue: Catalogue, params: Synthesize, rng: random.Random) -> tuple[Catalogue, date | None]:
    """The catalogue at the prices of one of `synthesize.price_dates`, and that day; as it is where none is named."""
    if not params.price_dates:
        return catalogue, None
    day = rng.choice(params.price_dates)
    return catalogue.on(day), day


def sample_toolbox(
    draft: Draft,
    catalogue: Catalogue,
    domain_tools: Mapping[str, DomainToolLike],
    params: Synthesize,
    rng: random.Random,
) -> tuple[ToolSpec, ...]:
    """A shuffled toolbox that can solve the draft, every price multiplied by its own log-uniform factor."""
    low, high = params.experts_per_toolbox
    # A domain's tools already make a long prompt.
    count = rng.randint(low, high) if draft.domain is None else low
    topic = draft.topic if draft.category is Category.TOPIC and draft.topic else rng.choice(catalogue.topics)
    names = [*_experts(catalogue, topic, count, rng), *_basics(catalogue, draft, rng)]
    spread = math.log(params.price_spread)

    def price_factor() -> float:
        return math.exp(rng.uniform(-spread, spread))

    def latency_factor() -> float:
        return math.exp(rng.uniform(-0.2, 0.2))

    specs = [catalogue.spec(name, price_factor=price_factor(), latency_factor=latency_factor()) for name in names]
    if draft.domain is not None:
        specs += [
            catalogue.domain_spec(
                draft.domain, domain_tools[name], price_factor=price_factor(), latency_factor=latency_factor()
            )
            for name in _domain_tools(draft, domain_tools, rng)
        ]
    rng.shuffle(specs)
    return tuple(specs)


def _experts(catalogue: Catalogue, topic: str, count: int, rng: random.Random) -> list[str]:
    every = catalogue.names(ToolKind.EXPERT)
    frontier = [name for name in every if catalogue.strength(name) >= FRONTIER]
    decent = [name for name in every if name not in frontier and catalogue.skill(name, topic) >= DECENT]
    with_frontier = bool(frontier) and rng.random() < FRONTIER_SHARE
    with_decent = bool(decent) and (not with_frontier or rng.random() < DECENT_SHARE)
    chosen: list[str] = []
    if with_frontier or (frontier and not with_decent):
        strongest = max(frontier, key=catalogue.strength)
        chosen.append(strongest if rng.random() < STRONGEST_SHARE else rng.choice(frontier))
    if with_decent:
        chosen += rng.sample(decent, min(len(decent), rng.choice(SUITED)))
    others = [
        name for name in every if name not in chosen and name not in frontier and (with_decent or name not in decent)
    ]
    rng.shuffle(others)
    return (chosen + others)[: max(count, len(chosen))]


def _basics(catalogue: Catalogue, draft: Draft, rng: random.Random) -> list[str]:
    every = catalogue.names(ToolKind.BASIC)
    return [name for name in every if name in draft.tools_needed or rng.random() < SPARE_SHARE]


def _domain_tools(draft: Draft, domain_tools: Mapping[str, DomainToolLike], rng: random.Random) -> list[str]:
    needed = [name for name in draft.tools_needed if name in domain_tools]
    others = [name for name in domain_tools if name not in needed]
    return needed + rng.sample(others, min(len(others), rng.randint(1, DISTRACTORS)))
