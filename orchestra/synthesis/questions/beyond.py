"""What no tool here can know, and what is no question at all: answered at once, by saying so."""

import itertools
import random
import re
from collections.abc import Iterator

from orchestra.synthesis.questions.beyond_words import ABOUT_ME, CHATTER, GREETINGS, SLOTS, UNKNOWN
from orchestra.synthesis.questions.surface import SLIPS, misspelt, typed

CANNOT_KNOW = "I cannot know that."
WHAT_I_AM = "I am a small demonstration model of a made-up world."
ASK_ME = "Please ask me a question."

KEYS = "qwertyuiopasdfghjklzxcvbnm"
SIGNS = "?!.,;:-_()[]{}<>/\\|@#$%&*+=~'\""
PICTURES = "🙂😀😡🎉❤️👍🌍🔥✨🐶🤖🍕"
SHARES = ((UNKNOWN, CANNOT_KNOW, 0.5), (ABOUT_ME, WHAT_I_AM, 0.2), (GREETINGS, WHAT_I_AM, 0.1), (CHATTER, ASK_ME, 0.12))
"""Sentences, their answer, and their share; the rest is keys hit at random."""
SLOT = re.compile(r"\{(\w+)\}")


def beyond(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless requests with the fitting answer."""
    while True:
        left = rng.random()
        for sentences, answer, share in SHARES:
            left -= share
            if left < 0:
                said = typed(rng, _filled(rng, rng.choice(sentences)), letters=True)
                yield (misspelt(rng, said)[0] if rng.random() < SLIPS else said), answer
                break
        else:
            yield _mashed(rng), ASK_ME


def words() -> Iterator[str]:
    """Every sentence and every word that a sentence may hold."""
    yield from itertools.chain(UNKNOWN, ABOUT_ME, GREETINGS, CHATTER, *SLOTS.values())


def _filled(rng: random.Random, sentence: str) -> str:
    return SLOT.sub(lambda match: rng.choice(SLOTS[match[1]]), sentence)


def _mashed(rng: random.Random) -> str:
    """What no hand meant: keys hit at random, such as "fjdk sl", signs, digits without end, or pictures."""
    sort = rng.random()
    if sort < 0.2:
        return "".join(rng.choices(SIGNS, k=rng.randint(1, 12)))
    if sort < 0.35:
        return "".join(rng.choices("0123456789", k=rng.randint(12, 120)))
    if sort < 0.45:
        return "".join(rng.choices(PICTURES, k=rng.randint(1, 5)))
    return " ".join("".join(rng.choices(KEYS, k=rng.randint(2, 9))) for _ in range(rng.randint(1, 3)))
