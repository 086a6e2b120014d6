"""Made-up names: no model can have met what they name, and none is given twice."""

import math
import random
from collections.abc import Collection
from functools import lru_cache
from itertools import product

from orchestra.errors import DataError
from orchestra.synthesis.partition import WHOLE, SetPart

HEADS = """
    Bor Kel Tam Zan Lir Mov Pel Dar Fen Gal Hol Jun Kor Lum Mar Nol Pra Quin Ros Sel Tor Ul Ver Wen Yar Zed Bram Cal
    Dov Esk Far Gor Hes Ilm Jor Kad Lan Mer Nar Osk
"""
MIDDLES = "va mi to ra ne lo si du ka be fo gi hu ja me no pi ru sa te vo wi zo li mo ga de ri ta nu"
TAILS = "n r l s th x m k sh nd ne rus lin dor mar vik tas len ra o a is ek on ar um et"
SECONDS = """
    ne ra ve me zo ma be fo si ga ge he gi to de ja te hu va vi wi re le se vo la ka ta li do mo pi mi ni no lo ri ro na
    sa so ti du ke di ki ko pe ru wo
"""
LONG_TAILS = "n r s nd ne m k l sh ra x st th er rd ve on ld nt id rt ar in an il re en et el ik is us a as"
SHORT = tuple(tuple(syllables.split()) for syllables in (HEADS, MIDDLES, TAILS))
LONG = tuple(tuple(syllables.split()) for syllables in (HEADS, MIDDLES, SECONDS, LONG_TAILS))
"""Two million names, of syllables that the shipped tokenizer splits little: 4.3 tokens, where a short one has 3."""
TRIES = 8
"""Short names that may be taken before a long one is made: short ones first, for copying is what a small model finds
hard; long ones as the short run out."""
MOST_TRIES = 10_000
"""Names in a row that may be taken before they are said to have run out."""


def made_up(rng: random.Random, syllables: tuple[tuple[str, ...], ...] = SHORT) -> str:
    """A name such as "Borvane", or "Borvamen" of LONG syllables; ten letters at most; may have been given before."""
    return "".join(rng.choice(part) for part in syllables)


def numbered(number: int, syllables: tuple[tuple[str, ...], ...]) -> str:
    """The name of that number: each number below the product of the lengths has its own name."""
    parts = []
    for part in reversed(syllables):
        number, digit = divmod(number, len(part))
        parts.append(part[digit])
    return "".join(reversed(parts))


@lru_cache(maxsize=1)
def _short() -> frozenset[str]:
    """All of them: some can be spelled of LONG syllables too."""
    return frozenset(map("".join, product(*SHORT)))


class Names:
    """Names that are never repeated; those in `taken` count as given. Two shares never give the same."""

    def __init__(self, rng: random.Random, taken: Collection[str] = (), share: SetPart = WHOLE) -> None:
        self._rng, self._share = rng, share
        self._given: set[str] = set(taken)

    def new(self) -> str:
        """Raises `DataError` when there are none left."""
        for tries in range(MOST_TRIES):
            name = self._draw(SHORT if tries < TRIES else LONG)
            if name not in self._given:
                self._given.add(name)
                return name
        what = f"names ran out after {len(self._given)}"
        raise DataError(what, where="synthesize", fix="make fewer examples, or fewer shards of them")

    def _draw(self, syllables: tuple[tuple[str, ...], ...]) -> str:
        if self._share.whole:
            return made_up(self._rng, syllables)
        while True:
            number = self._rng.randrange(self._share.index, math.prod(map(len, syllables)), self._share.count)
            name = numbered(number, syllables)
            if syllables is SHORT or name not in _short():
                return name

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self._given)
