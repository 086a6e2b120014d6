"""Wishes by rule: an opener and a body, each split with its own; prices, seconds and subjects come from the toolbox."""

import random

from orchestra.errors import DataError
from orchestra.synthesis.draft import LICENCE
from orchestra.synthesis.preferences import Split
from orchestra.synthesis.wishes import Kind, Wish, fixed, key, other
from orchestra.types import Provenance

GENERATOR = "orchestra.synthesis.wish_grammar"
HELDOUT_EVERY = 5
"""Every fifth wish is held out."""

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


def wishes(count: int, seed: int) -> list[Wish]:
    """`count` different wishes, every fifth held out, the kinds in turn; raises `DataError` when there are not as many.

    Words that the other split has already, in whatever case and with whatever marks, are left out.
    """
    origin = Provenance(source="synthetic", licence=LICENCE, generator=GENERATOR, seed=seed)
    left = {split: _turns(split, seed) for split in OPENERS}
    made: list[Wish] = []
    for number in range(count):
        split: Split = "heldout" if number % HELDOUT_EVERY == HELDOUT_EVERY - 1 else "train"
        if not left[split]:
            raise DataError(f"the grammar has only {len(made)} wishes", where="--count", fix="ask for fewer")
        kind, words = left[split].pop()
        made.append(Wish(split=split, kind=kind, words=words, provenance=origin))
    return made


def _turns(split: Split, seed: int) -> list[tuple[Kind, str]]:
    """Every sentence of a split, the kinds in turn, the first last."""
    rng = random.Random(f"{seed}:wishes:{split}")
    kinds: list[list[tuple[Kind, str]]] = []
    for kind, bodies in BODIES.items():
        every = [f"{opener}{body}" for opener in OPENERS[split] for body in bodies[split]]
        own = [(kind, words) for words in every if key(words) not in fixed(other(split)) | fixed(split)]
        rng.shuffle(own)
        kinds.append(own)
    return [one for turn in zip(*kinds, strict=False) for one in turn][::-1]
