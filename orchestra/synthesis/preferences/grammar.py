"""Preferences by rule: an opener and a body, each split with its own; prices, seconds, subjects come from the toolbox.

Of being cheap, fast or right training hears far more, by forms and parts: what the tiny base never met it cannot read.
"""

import random
import re

from orchestra.errors import DataError
from orchestra.provenance import LICENCE
from orchestra.synthesis.preferences.sentences import WORDS
from orchestra.synthesis.preferences.templates import SLOTS, Kind, PreferenceTemplate, fixed, key, other
from orchestra.types import Provenance, Split

GENERATOR = "orchestra.synthesis.wish_grammar"
HELDOUT_EVERY = 5
"""Every fifth preference is held out."""

OPENERS: dict[Split, tuple[str, ...]] = {
    "train": (
        "", "please: ", "if you can, ", "for this one, ", "my wish: ", "one rule: ", "as always, ", "today ",
        "when you choose, ", "a hint: ", "mind this: ", "before you start, ",
    ),
    "heldout": ("kindly: ", "if at all possible, ", "one note: ", "this time, ", "my only rule: "),
}  # fmt: skip
BODIES: dict[Kind, dict[Split, tuple[str, ...]]] = {
    "cheap": {
        "train": (
            "keep every call cheap.", "the bill should stay small.", "cheaper tools come first.",
            "do not pay more than you must.", "ask whoever charges least.", "a low price beats a perfect answer.",
            "watch the money.", "pay little.",
        ),
        "heldout": ("the smaller the bill the better.", "choose low prices.", "every cent counts.", "stay frugal."),
    },
    "fast": {
        "train": (
            "quick tools come first.", "no long waits.", "ask whoever replies soonest.", "seconds count.",
            "a fast reply beats a perfect one.", "keep the wait short.", "slow experts are no use.", "lose no time.",
        ),
        "heldout": ("the shorter the wait the better.", "choose short times.", "do not dawdle.", "prompt replies."),
    },
    "accurate": {
        "train": (
            "the best expert comes first.", "a wrong answer is worse than a dear one.", "check what you are told.",
            "money and time do not matter.", "take nobody weak.", "a mistake would be bad.", "be certain.",
            "only the truth helps me.",
        ),
        "heldout": ("choose the ablest.", "correctness is everything.", "price is no object.", "be thorough."),
    },
    "prefer": {
        "train": (
            "start with {x}.", "{x} has my trust.", "{x} knows best.", "take {x} where it fits.",
            "specialists in {subject} come first.", "ask whoever is good at {subject}.",
            "let somebody who knows {subject} answer.", "prefer specialists in {subject}.",
        ),
        "heldout": (
            "turn to {x}.", "count on {x}.", "choose those strong in {subject}.", "experts on {subject} should answer.",
        ),
    },
    "avoid": {
        "train": (
            "skip {x}.", "ask others than {x}.", "do without {x}.", "nothing above {cents} cents a call.",
            "no call may cost more than {cents} cents.", "{cents} cents a call is the most I pay.",
            "nobody who takes more than {seconds} seconds.", "no call longer than {seconds} seconds.",
        ),
        "heldout": (
            "{x} is not welcome.", "spare me {x}.", "calls over {cents} cents are too dear.",
            "anything over {seconds} seconds is too slow.",
        ),
    },
}  # fmt: skip

PARTS: dict[str, dict[Kind, tuple[str, ...]]] = {
    "good": {
        "cheap": ("cheap", "low in price", "low in cost"),
        "fast": ("fast", "quick", "prompt"),
        "accurate": ("right", "accurate", "sure", "correct", "exact"),
    },
    "bad": {"cheap": ("dear", "expensive", "costly"), "fast": ("slow", "late"), "accurate": ("wrong", "careless")},
    "how": {
        "cheap": ("cheaply", "for little money", "at a low price", "at low cost", "for a few cents"),
        "fast": ("soon", "now", "at once", "quickly", "without a wait", "in no time"),
        "accurate": ("without mistakes", "without errors", "with care", "correctly"),
    },
    "means": {"cheap": ("money",), "fast": ("time",)},
}
FORMS: dict[str, tuple[str, ...]] = {
    "good": (
        "{}, please.", "please, {}.", "be {}.", "please be {}.", "be as {} as you can.", "as {} as possible.",
        "as {} as you can.", "{} answers, please.", "I need something {}.", "I want something {}.",
        "give me something {}.", "I would like it {}.", "the answer must be {}.", "the answer should be {}.",
        "it must be {}.", "it has to be {}.", "I want it {}.", "I need it {}.", "make it {}.", "{} is best.",
        "{} tools, please.", "only what is {}.", "{} is what I need.", "{} comes first.", "I want a {} answer.",
        "give me a {} answer.", "I need a {} answer.", "I need a {} reply.", "find a {} way.", "a {} one, please.",
    ),
    "bad": (
        "do not be {}.", "please do not be {}.", "not too {}, please.", "nothing {}, please.", "it must not be {}.",
        "the answer must not be {}.", "no {} answer, please.", "no {} tools.", "a {} answer is no good.",
        "I want nothing {}.", "{} is no use to me.", "do not let it be {}.", "avoid what is {}.", "never be {}.",
    ),
    "how": (
        "{}, please.", "I need it {}.", "I want it {}.", "I want this {}.", "answer {}.", "please answer {}.",
        "I need the answer {}.", "I need a reply {}.", "do it {}.", "I must have it {}.", "let me know {}.",
        "it should be done {}.", "{} is how I want it.",
    ),
    "means": (
        "save {}.", "please save {}.", "save me some {}.", "do not waste {}.", "do not waste my {}.", "I have no {}.",
        "I want to save {}.", "{} matters most.", "{} is what counts.", "as little {} as you can.", "I have little {}.",
        "it must not take much {}.", "I have no {} to lose.", "I do not have much {}.", "mind the {}.", "spare my {}.",
    ),
}  # fmt: skip
"""What can be said of being cheap, fast or right in many ways: each form goes with each part."""


def composed(kind: Kind) -> list[str]:
    """Every form with every part of a kind, for training: none holds a fixed held-out sentence or is held by one."""
    said = (form.format(part) for sort, forms in FORMS.items() for part in PARTS[sort].get(kind, ()) for form in forms)
    spelt = [re.sub(r"\ba (?=[aeiou])", "an ", one) for one in said]
    held = fixed("heldout")
    return [one for one in spelt if not _holds_heldout(one) and not any(_within(key(one), taken) for taken in held)]


def lesson(seed: int) -> list[PreferenceTemplate]:
    """What the base learns wishes from: every way of training to say one, bare and after an opener, the composed too.

    Without wishes about prices, seconds and subjects.
    """
    rng = random.Random(f"{seed}:lesson")
    made = []
    for kind, bodies in BODIES.items():
        every = [body for body in bodies["train"] if "{" not in body or "{x}" in body]
        every += [*WORDS[kind]["train"], *(composed(kind) if kind in SLOTS[""] else ())]
        for body in dict.fromkeys(every):
            said = [body, rng.choice(OPENERS["train"][1:]) + body]
            made += [_wish("train", kind, one, seed) for one in said if not _holds_heldout(one)]
        made += [_wish("heldout", kind, body, seed) for body in WORDS[kind]["heldout"]]
    return made


def _holds_heldout(words: str) -> bool:
    return any(_within(taken, key(words)) for taken in fixed("heldout"))


def _within(part: str, whole: str) -> bool:
    return f" {part} " in f" {whole} "


def _wish(split: Split, kind: Kind, words: str, seed: int) -> PreferenceTemplate:
    origin = Provenance(source="synthetic", licence=LICENCE, generator=GENERATOR, seed=seed)
    return PreferenceTemplate(split=split, kind=kind, words=words, provenance=origin)


def wishes(count: int, seed: int) -> list[PreferenceTemplate]:
    """`count` different preferences, every fifth held out, the kinds in turn; raises `DataError` when there are fewer.

    Words that the other split has already, in whatever case and with whatever marks, are left out.
    """
    left = {split: _turns(split, seed) for split in OPENERS}
    made: list[PreferenceTemplate] = []
    for number in range(count):
        split: Split = "heldout" if number % HELDOUT_EVERY == HELDOUT_EVERY - 1 else "train"
        if not left[split]:
            raise DataError(f"the grammar has only {len(made)} preferences", where="--count", fix="ask for fewer")
        kind, words = left[split].pop()
        made.append(_wish(split, kind, words, seed))
    return made


def _turns(split: Split, seed: int) -> list[tuple[Kind, str]]:
    """Every sentence of a split, the kinds in turn, the first last."""
    rng = random.Random(f"{seed}:wishes:{split}")
    kinds: list[list[tuple[Kind, str]]] = []
    for kind, bodies in BODIES.items():
        said = [*bodies[split], *(composed(kind) if split == "train" and kind in SLOTS[""] else ())]
        every = [f"{opener}{body}" for opener in OPENERS[split] for body in said]
        own = [(kind, words) for words in every if key(words) not in fixed(other(split)) | fixed(split)]
        rng.shuffle(own)
        kinds.append(own)
    return [one for turn in zip(*kinds, strict=False) for one in turn][::-1]
