"""Topic questions: about made-up things in a subject's own words; nothing but an expert knows the answer."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.names import Names, made_up
from orchestra.types import Category


@dataclass(frozen=True)
class TopicWords:
    """The words of a topic: what is asked about, and what is asked of it."""

    things: tuple[str, ...]
    asked: tuple[str, ...]
    """A `#` marks what is a number, a `!` what is hard: two of eight, which is `hard_share` of
    data/catalogue/tools.yaml."""


def _subject(things: str, asked: str) -> TopicWords:
    return TopicWords(tuple(things.split()), tuple(asked.split()))


SUBJECTS: dict[str, TopicWords] = {
    "math": _subject(
        "matrix polynomial integral group sequence curve lemma equation prime theorem",
        "rank# root# order# degree# bound axiom proof! genus#!",
    ),
    "physics": _subject(
        "particle laser boson beam plasma lens orbit quark photon field",
        "spin# voltage# mass# momentum# force wave decay! entropy#!",
    ),
    "medicine": _subject(
        "drug enzyme nerve fever syndrome vaccine infection surgery disease therapy",
        "dose# cure symptom doctor risk# patient receptor! prognosis!",
    ),
    "law": _subject(
        "court treaty trial statute contract lawsuit verdict appeal clause tort",
        "judge article# plaintiff crime penalty# witness doctrine! precedent!",
    ),
    "history": _subject(
        "battle empire peace fortress siege tribe revolt crusade dynasty war",
        "king year# queen century# ships# founder cause! envoy!",
    ),
    "code": _subject(
        "function file compiler flag library loop array pointer server program",
        "port# bytes# keyword method version# author complexity#! bug!",
    ),
    "finance": _subject(
        "bond fund shares loan broker trust index stock budget currency",
        "yield# coupon# bank auditor fee# owner hedge! beta#!",
    ),
    "music": _subject(
        "symphony sonata waltz ballad quartet hymn orchestra march song opera",
        "composer key bars# singer tempo# conductor chord! motif!",
    ),
}
FORMS = (
    "what is the {a} of the {x} {t}?",
    "which {a} has the {x} {t}?",
    "what {a} does the {x} {t} have?",
    "name the {a} of the {x} {t}.",
    "the {x} {t}: which {a}?",
    "{a} of the {x} {t}?",
    "I need the {a} of the {x} {t}.",
    "who knows the {a} of the {x} {t}?",
    "for the {x} {t}, what is the {a}?",
    "about the {x} {t}: its {a}?",
)
FRAMES = ("{q}",) * 7 + ("quick one: {q}", "please tell me: {q}", "I wonder, {q}", "do you know {q}")
NAMED = ("a {t} question: {q}", "in {t}: {q}")


def topic_questions(names: Names, rng: random.Random, topics: tuple[str, ...]) -> Iterator[Draft]:
    """Endless questions, each about a name not used before; one in ten says its topic."""
    while True:
        topic = rng.choice(topics)
        thing, asked = rng.choice(SUBJECTS[topic].things), rng.choice(SUBJECTS[topic].asked)
        name = names.new()
        question = rng.choice(FORMS).format(a=asked.rstrip("#!"), x=name, t=thing)
        frame = rng.choice(NAMED) if rng.random() < 0.1 else rng.choice(FRAMES)
        answer, *wrong = _answers(rng, number="#" in asked)
        yield Draft(
            category=Category.TOPIC,
            instruction=frame.format(q=question, t=topic),
            answer=answer,
            verifier="exact",
            entities=(name,),
            topic=topic,
            wrong=tuple(wrong),
            hard="!" in asked,
        )


def _answers(rng: random.Random, *, number: bool) -> list[str]:
    """Four different ones; the first is right."""
    found: set[str] = set()
    while len(found) < 4:
        found.add(str(rng.randint(2, 999)) if number else made_up(rng))
    answers = sorted(found)
    rng.shuffle(answers)
    return answers
