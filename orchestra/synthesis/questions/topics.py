"""Topic questions: about made-up things in plain English; experts know the answers, and a record holds some of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.names import Names, made_up
from orchestra.synthesis.questions.surface import typed
from orchestra.synthesis.questions.topic_words import APART, FORMS, NAMED, THINGS, Asked, Thing
from orchestra.tools.experts.simulated import uniform
from orchestra.tools.search.corpus import Document
from orchestra.types import Category, Example

OWN_FORM, APART_FORM = 0.45, 0.12
"""Share of the questions in a form that only this noun has, and of those that say name and kind apart."""
SAYS_SUBJECT = 0.08
"""Share of the questions that say their subject."""
HARD = (0.14, 0.52)
"""Chances to be hard, from the easiest sort of question to the hardest. The middle is the catalogue's `hard_share`."""
RECORDED = 0.2
"""Share of the questions whose answer a search of the records finds."""
YEARS = (1420, 1990)


def topic_questions(names: Names, rng: random.Random, topics: tuple[str, ...]) -> Iterator[Draft]:
    """Endless questions, each about a name not used before."""
    while True:
        topic = rng.choice(topics)
        thing = rng.choice(THINGS[topic])
        asked = rng.choice(thing.asked)
        name = names.new()
        answer, *wrong = _answers(rng, asked.answer)
        yield Draft(
            category=Category.TOPIC,
            instruction=worded(rng, topic, thing, name, asked),
            answer=answer,
            verifier="exact",
            entities=(name,),
            topic=topic,
            wrong=tuple(wrong),
            hard=rng.random() < hard_chance(topic, thing, asked),
            record=record(thing, asked, name, answer) if rng.random() < RECORDED else None,
            query=f"{name} {asked.noun}",
        )


def worded(rng: random.Random, topic: str, thing: Thing, name: str, asked: Asked) -> str:
    """A question in one of its forms, such as "When was the Battle of Tamora fought?"."""
    drawn = rng.random()
    forms = asked.forms if drawn < OWN_FORM else APART if drawn < OWN_FORM + APART_FORM else FORMS
    question = rng.choice(forms).format(t=thing.called.format(x=name), a=asked.noun, k=thing.kind, x=name)
    question = question[0].upper() + question[1:]
    if rng.random() < SAYS_SUBJECT:
        question = rng.choice(NAMED).format(q=question, s=topic)
    return typed(rng, question)


@dataclass(frozen=True)
class Words:
    """What a topic question asks, apart from its form."""

    noun: str
    kind: str
    name: str


def asked_in(example: Example) -> Words | None:
    """What a topic example of ours asks; None where it was made elsewhere."""
    name, said = "".join(example.entities[:1]), example.instruction.lower()
    noun = example.query.removeprefix(f"{name} ")
    for thing in THINGS.get(example.topic or "", ()):
        known = thing.called.format(x=name).lower() in said or f" {thing.kind}" in said
        if known and any(asked.noun == noun for asked in thing.asked):
            return Words(noun, thing.kind, name)
    return None


def hard_chance(topic: str, thing: Thing, asked: Asked) -> float:
    """How often a question of this sort is hard: its words tell a little, and never all."""
    return HARD[0] + (HARD[1] - HARD[0]) * uniform("hard", topic, thing.called, asked.noun)


def record(thing: Thing, asked: Asked, name: str, answer: str) -> Document:
    """The record that answers the question."""
    called = thing.called.format(x=name)
    text = f"The {asked.noun} of {called} is {answer}."
    return Document(id=f"topic-{name}", title=f"{name} {asked.noun}", text=text)


def _answers(rng: random.Random, sort: str) -> list[str]:
    """Four different ones; the first is right."""
    low, _, high = sort.partition("-")
    span = YEARS if sort == "year" else (int(low), max(int(high), int(low) + 3)) if high else None
    found: set[str] = set()
    while len(found) < 4:
        found.add(made_up(rng) if span is None else str(rng.randint(*span)))
    answers = sorted(found)
    rng.shuffle(answers)
    return answers
