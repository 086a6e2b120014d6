"""A corpus of private records, and questions over it that take one search or two."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.names import Names
from orchestra.synthesis.questions.surface import typed
from orchestra.synthesis.questions.topic_words import FORMS
from orchestra.tools.search.corpus import Document
from orchestra.types import Category, ToolCall

COLOURS = ("red", "blue", "green", "black", "white", "amber", "violet", "grey")
PER_WORLD = 3
"""Questions of each kind asked of one small world."""

ASK = {
    "leader": (
        "Who leads {x}?",
        "Who is the head of {x}?",
        "{x} is run by whom?",
        "Who runs {x}?",
        "Who is in charge of {x}?",
    ),
    "city": (
        "In which city is {x} based?",
        "Where is {x} based?",
        "Where does {x} have its office?",
        "{x} is based where?",
    ),
    "year": (
        "When was {x} founded?",
        "In which year did {x} start?",
        "How old is {x}, when did it begin?",
        "{x} exists since when?",
    ),
    "product": (
        "What does {x} make?",
        "Which product comes from {x}?",
        "What is made by {x}?",
        "What can I buy from {x}?",
    ),
    "maker": (
        "Who makes {x}?",
        "Which firm makes {x}?",
        "Where does {x} come from, which firm?",
        "{x} is made by whom?",
    ),
    "colour": ("What colour is {x}?", "Which colour does {x} have?", "What does {x} look like, which colour?"),
    "firm": (
        "Which firm does {x} lead?",
        "What is the firm of {x}?",
        "What does {x} run?",
        "Which business has {x} at its head?",
    ),
    "home": ("Where does {x} live?", "In which town is {x} at home?", "Where is the home of {x}?", "{x} lives where?"),
    "teacher": ("Who taught {x}?", "Who was the teacher of {x}?", "{x} learned from whom?", "Who gave lessons to {x}?"),
    "mayor": ("Who is mayor of {x}?", "Who governs {x}?", "Who is the mayor in {x}?", "{x} has which mayor?"),
    "river": ("Which river runs through {x}?", "What river is {x} on?", "What is the river in {x} called?"),
}
"""Questions by relation; {x} is the subject, or words for it."""
NOUNS = {"year": "founding year"}
"""What a relation is called where it is not its own name."""
OWN_FORM = 0.6
"""Share of the questions in a form that only this relation has."""
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
            instruction=worded(rng, relation, subject),
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
            instruction=worded(rng, second, words),
            answer=world.facts[middle, second],
            verifier="exact",
            entities=(subject, middle),
            golden_calls=(_search(subject, first), _search(middle, second)),
            tools_needed=("search",),
        )


def worded(rng: random.Random, relation: str, subject: str) -> str:
    """A question for that relation of the subject, or of the words that lead to it."""
    if rng.random() < OWN_FORM:
        question = rng.choice(ASK[relation]).format(x=subject)
    else:
        question = rng.choice(FORMS).format(a=NOUNS.get(relation, relation), t=subject)
    return typed(rng, question[0].upper() + question[1:])


def _search(subject: str, relation: str) -> ToolCall:
    return ToolCall(name="search", arguments={"query": f"{subject} {relation}"})
