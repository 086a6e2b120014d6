"""A corpus of private records, and questions over it that take one search or two."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.names import Names
from orchestra.tools.search.corpus import Document
from orchestra.types import Category, ToolCall

COLOURS = ("red", "blue", "green", "black", "white", "amber", "violet", "grey")
PER_WORLD = 3
"""Questions of each kind asked of one small world."""

ASK = {
    "leader": ("who leads {x}?", "who is the head of {x}?", "{x} is run by whom?", "name the leader of {x}."),
    "city": ("in which city is {x} based?", "where is {x} based?", "name the city of {x}."),
    "year": ("when was {x} founded?", "in which year did {x} start?", "give the founding year of {x}."),
    "product": ("what does {x} make?", "which product comes from {x}?", "name the product of {x}."),
    "maker": ("who makes {x}?", "which firm makes {x}?", "name the maker of {x}."),
    "colour": ("what colour is {x}?", "which colour does {x} have?", "name the colour of {x}."),
    "firm": ("which firm does {x} lead?", "what is the firm of {x}?", "name the firm that {x} runs."),
    "home": ("where does {x} live?", "in which town is {x} at home?", "name the home of {x}."),
    "teacher": ("who taught {x}?", "who was the teacher of {x}?", "{x} learned from whom?"),
    "mayor": ("who is mayor of {x}?", "who governs {x}?", "name the mayor of {x}."),
    "river": ("which river runs through {x}?", "what river is {x} on?", "name the river of {x}."),
}
"""Questions by relation; {x} is the subject, or words for it."""
THROUGH = {
    "maker": ("the maker of {x}", "the firm that makes {x}"),
    "firm": ("the firm led by {x}", "the firm that {x} leads"),
    "city": ("the city where {x} is based", "the city of {x}"),
    "leader": ("the leader of {x}", "the person who leads {x}"),
    "home": ("the home of {x}", "the town where {x} lives"),
}
"""Words for what a first hop leads to."""


@dataclass(frozen=True)
class FactWorld:
    """Facts about a few entities that know only each other: (subject, relation) → value."""

    facts: dict[tuple[str, str], str]

    @classmethod
    def make(cls, names: Names, rng: random.Random) -> "FactWorld":
        firm, product, leader, teacher, city, home = (names.new() for _ in range(6))
        facts = {
            (firm, "leader"): leader,
            (firm, "city"): city,
            (firm, "year"): str(rng.randint(1800, 2020)),
            (firm, "product"): product,
            (product, "maker"): firm,
            (product, "colour"): rng.choice(COLOURS),
            (leader, "firm"): firm,
            (leader, "home"): home,
            (leader, "teacher"): teacher,
        }
        for place in (city, home):
            facts[place, "mayor"] = names.new()
            facts[place, "river"] = names.new()
        return cls(facts)

    def documents(self, prefix: str) -> list[Document]:
        """One record a fact."""
        return [
            Document(id=f"{prefix}-{i}", title=f"{subject} {relation}", text=f"The {relation} of {subject} is {value}.")
            for i, ((subject, relation), value) in enumerate(self.facts.items())
        ]

    def one_hop(self) -> list[tuple[str, str]]:
        return list(self.facts)

    def two_hops(self) -> list[tuple[str, str, str]]:
        """(subject, first relation, second relation), where the way does not lead back."""
        return [
            (subject, first, second)
            for (subject, first), middle in self.facts.items()
            if first in THROUGH
            for (start, second), end in self.facts.items()
            if start == middle and end != subject
        ]


def fact(world: FactWorld, rng: random.Random) -> Iterator[Draft]:
    """At most `PER_WORLD` questions that one search answers."""
    for subject, relation in rng.sample(world.one_hop(), PER_WORLD):
        yield Draft(
            category=Category.FACT,
            instruction=rng.choice(ASK[relation]).format(x=subject),
            answer=world.facts[subject, relation],
            verifier="exact",
            entities=(subject,),
            golden_calls=(_search(subject, relation),),
            tools_needed=("search",),
        )


def two_hop(world: FactWorld, rng: random.Random) -> Iterator[Draft]:
    """At most `PER_WORLD` questions whose second search uses what the first one found."""
    for subject, first, second in rng.sample(world.two_hops(), PER_WORLD):
        middle = world.facts[subject, first]
        words = rng.choice(THROUGH[first]).format(x=subject)
        yield Draft(
            category=Category.TWO_HOP,
            instruction=rng.choice(ASK[second]).format(x=words),
            answer=world.facts[middle, second],
            verifier="exact",
            entities=(subject, middle),
            golden_calls=(_search(subject, first), _search(middle, second)),
            tools_needed=("search",),
        )


def _search(subject: str, relation: str) -> ToolCall:
    return ToolCall(name="search", arguments={"query": f"{subject} {relation}"})
