"""Made-up names: no model can have met what they name, and none is given twice."""

import random
from collections.abc import Collection

HEADS = """
    Bor Kel Tam Zan Lir Mov Pel Dar Fen Gal Hol Jun Kor Lum Mar Nol Pra Quin Ros Sel Tor Ul Ver Wen Yar Zed Bram Cal
    Dov Esk Far Gor Hes Ilm Jor Kad Lan Mer Nar Osk
"""
MIDDLES = "va mi to ra ne lo si du ka be fo gi hu ja me no pi ru sa te vo wi zo li mo ga de ri ta nu"
TAILS = "n r l s th x m k sh nd ne rus lin dor mar vik tas len ra o a is ek on ar um et"
PARTS = tuple(tuple(syllables.split()) for syllables in (HEADS, MIDDLES, TAILS))


def made_up(rng: random.Random) -> str:
    """A name such as "Borvane"; may have been given before."""
    return "".join(rng.choice(part) for part in PARTS)


class Names:
    """Names that are never repeated; those in `taken` count as given."""

    def __init__(self, rng: random.Random, taken: Collection[str] = ()) -> None:
        self._rng = rng
        self._given: set[str] = set(taken)

    def new(self) -> str:
        while (name := made_up(self._rng)) in self._given:
            continue
        self._given.add(name)
        return name

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self._given)
