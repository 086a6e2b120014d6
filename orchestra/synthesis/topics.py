"""Topic questions: about made-up things in a subject's own words; nothing but an expert knows the answer."""

import random
import re
from collections.abc import Iterator

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.names import Names, made_up
from orchestra.types import Category

QUESTIONS: dict[str, tuple[str, ...]] = {
    "math": (
        "what is the rank of the {x} matrix?#",
        "how many roots has the {x} polynomial?#",
        "which theorem bounds the {x} integral?",
        "what is the order of the {x} group?#",
        "whose lemma proves the {x} conjecture?",
        "which prime starts the {x} sequence?#",
        "which axiom does {x} geometry drop?",
        "what is the genus of the {x} curve?#",
    ),
    "physics": (
        "what is the spin of the {x} particle?#",
        "which quark decays into a {x} boson?",
        "at what voltage does the {x} laser fire?#",
        "which field bends a {x} beam?",
        "what is the half-life of {x} plasma?#",
        "whose law gives the {x} entropy?",
        "which lens focuses {x} photons?",
        "what momentum has the {x} orbit?#",
    ),
    "medicine": (
        "which drug treats {x} fever?",
        "what dose of {x} suits an adult patient?#",
        "which enzyme does {x} block?",
        "which nerve is hurt in {x} syndrome?",
        "how many days does a {x} infection last?#",
        "which vaccine prevents {x} disease?",
        "what is the normal {x} level in blood?#",
        "whose surgery repairs the {x} valve?",
    ),
    "law": (
        "which court decided {x} v. the Crown?",
        "what article of the {x} treaty bans appeals?#",
        "who was the judge in the {x} trial?",
        "which statute overruled the {x} verdict?",
        "how many clauses has the {x} contract act?#",
        "which doctrine bars a {x} lawsuit?",
        "who was the plaintiff in the {x} tort case?",
        "what year was the {x} statute repealed?#",
    ),
    "history": (
        "which king won the battle of {x}?",
        "in what year did the {x} empire fall?#",
        "who signed the peace of {x}?",
        "which dynasty built the {x} fortress?",
        "how many ships sailed in the {x} siege?#",
        "which tribe crossed at {x} in antiquity?",
        "who led the {x} revolt?",
        "what century saw the {x} crusade?#",
    ),
    "code": (
        "which function parses a {x} file?",
        "what exit code does the {x} compiler give?#",
        "which flag turns on {x} debugging?",
        "which library implements {x} hashing?",
        "how many bytes is a {x} pointer?#",
        "which method sorts a {x} array?",
        "what port does the {x} server use?#",
        "which keyword starts a {x} loop?",
    ),
    "finance": (
        "what is the coupon of the {x} bond?#",
        "which bank underwrote the {x} shares?",
        "what yield does the {x} fund pay?#",
        "which index lists {x} stock?",
        "who audits the {x} trust?",
        "what fee does the {x} broker charge?#",
        "which currency backs a {x} loan?",
        "whose ratio values {x} equity?",
    ),
    "music": (
        "who composed the {x} symphony?",
        "in which key is the {x} sonata?",
        "how many bars has the {x} waltz?#",
        "which singer recorded the {x} ballad?",
        "what opus number is the {x} quartet?#",
        "which chord ends the {x} hymn?",
        "who conducts the {x} orchestra?",
        "what tempo has the {x} march?#",
    ),
}
"""A `#` at the end marks a question whose answer is a number."""
FRAMES = ("{q}",) * 7 + ("quick one: {q}", "please tell me: {q}", "I wonder, {q}", "do you know {q}")
AN = re.compile(r"\ba (?=[AEIOUaeiou])")
NAMED = ("a {t} question: {q}", "in {t}: {q}")


def topic_questions(names: Names, rng: random.Random, topics: tuple[str, ...]) -> Iterator[Draft]:
    """Endless questions, each about a name not used before; one in ten says its topic."""
    while True:
        topic = rng.choice(topics)
        template = rng.choice(QUESTIONS[topic])
        subject = names.new()
        question = template.rstrip("#").format(x=subject)
        frame = rng.choice(NAMED) if rng.random() < 0.1 else rng.choice(FRAMES)
        answer, *wrong = _answers(rng, number=template.endswith("#"))
        yield Draft(
            category=Category.TOPIC,
            instruction=AN.sub("an ", frame.format(q=question, t=topic)),
            answer=answer,
            verifier="exact",
            entities=(subject,),
            topic=topic,
            wrong=tuple(wrong),
        )


def _answers(rng: random.Random, *, number: bool) -> list[str]:
    """Four different ones; the first is right."""
    found: set[str] = set()
    while len(found) < 4:
        found.add(str(rng.randint(2, 999)) if number else made_up(rng))
    answers = sorted(found)
    rng.shuffle(answers)
    return answers
