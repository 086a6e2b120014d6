"""The same episode about other names and numbers: what can only be copied, never remembered.

A teacher's episode says "Kilvane moves to Paxvova" and calls move_customer(Kilvane, Paxvova); disguised, it says and
calls the same of Drumoth and Elkisa. A model that meets every name once learns to look, not to know.
"""

import random
import re
from collections.abc import Callable, Collection, Iterator

from orchestra.rollout.render import Codec
from orchestra.synthesis.names import HEADS, MIDDLES, TAILS
from orchestra.synthesis.questions import arithmetic, arithmetic_words, beyond, facts, stories, surface
from orchestra.synthesis.questions.everyday import every
from orchestra.synthesis.questions.topic_words import APART, FORMS, NAMED, THINGS
from orchestra.types import Episode


def wordings() -> Iterator[str]:
    """Every sentence of the questions that holds no made-up name, with its answer where everybody knows it."""
    yield from (*FORMS, *APART, *NAMED, *surface.OPENINGS, *surface.CLOSINGS, *surface.STARTS)
    yield from (sentence for forms in facts.ASK.values() for sentence in forms)
    yield from (
        *arithmetic_words.ASK,
        *(story for _, told in stories.STORIES for story in told),
        *(order for _, orders in arithmetic_words.ORDERS for order in orders),
        *map(str.capitalize, arithmetic.WORDS.values()),
    )
    yield from (form for _, forms in arithmetic_words.FORMS for form in (*forms, *map(str.capitalize, forms)))
    yield from beyond.words()
    for thing in (thing for things in THINGS.values() for thing in things):
        yield from (thing.called, *(form for asked in thing.asked for form in asked.forms))
    for question, answer in every():
        yield from (question, answer)


NAME = re.compile(r"\b[A-Z][a-z]+\b")
NUMBER = re.compile(r"(?<![\w.$])(?<!\d,)(?<![a-z]-)[1-9]\d+(?!\w|\.\d|,\d{3})")
"""Two digits or more; neither a price, nor the seconds of a tool, nor part of its name or of a number with commas."""
ENGLISH = frozenset({"The", "Crown", *NAME.findall(" ".join(wordings()))})
"""Capitalised words of the examples' own wording, and those that everybody knows."""
GIVEN = re.compile("(?:{})(?:{})+(?:{})".format(*("|".join(part.split()) for part in (HEADS, MIDDLES, TAILS))))
"""What `Names` may give: a disguise never uses such a name, so that none in later data was seen."""
LENGTHS = (4, 9)
PARTS = (1, 3)
"""Pieces of a name after its first."""
OTHER_LENGTH = 0.3
"""How often a number changes its count of digits."""


class Disguise:
    """Draws names from the tokenizer's own pieces, so that each piece is copied many times, and numbers at random."""

    def __init__(self, codec: Codec, rng: random.Random, taken: Collection[str] = ()) -> None:
        self._codec, self._rng, self._taken = codec, rng, frozenset(taken)
        words = sorted(word for word in codec.tokenizer.get_vocab() if word.isascii() and word.isalpha())
        self._heads = [word for word in words if len(word) <= 4 and word[0].isupper() and word.istitle()]
        self._pieces = [word for word in words if word.islower() and len(word) <= 4]

    def name(self) -> str:
        """A capitalised name of 4-9 letters that is neither taken nor one that `Names` could give."""
        while True:
            count = self._rng.randint(*PARTS)
            name = self._rng.choice(self._heads) + "".join(self._rng.choice(self._pieces) for _ in range(count))
            fits = LENGTHS[0] <= len(name) <= LENGTHS[1] and NAME.fullmatch(name)
            if fits and name not in self._taken and not GIVEN.fullmatch(name):
                return name

    def number(self, like: str) -> str:
        """A number of as many digits, or sometimes of two to five."""
        digits = self._rng.randint(2, 5) if self._rng.random() < OTHER_LENGTH else len(like)
        return str(self._rng.randint(10 ** (digits - 1), 10**digits - 1))

    def __call__(self, episode: Episode) -> Episode:
        """The episode with every name and number of request and observations replaced, everywhere alike.

        Ids are made again from the text: it is for what a script wrote, never for what a policy sampled.
        """
        prompt = str(self._codec.tokenizer.decode(list(episode.prompt_ids), skip_special_tokens=False))
        head, marker, request = prompt.rpartition("<|im_start|>user\n")
        told = " ".join([request, *(turn.observation or "" for turn in episode.turns)])
        new: dict[str, str] = {}
        for old in sorted(set(NAME.findall(told)) - ENGLISH):
            new[old] = self._unlike(new, self.name)
        for old in sorted(set(NUMBER.findall(told))):
            new[old] = self._unlike(new, lambda old=old: self.number(old))  # type: ignore[misc]

        def hide(text: str) -> str:
            named = NAME.sub(lambda match: new.get(match[0], match[0]), text)
            return NUMBER.sub(lambda match: new.get(match[0], match[0]), named)

        turns = []
        for turn in episode.turns:
            observation = None if turn.observation is None else hide(turn.observation)
            update = {
                "text": (text := hide(turn.text)),
                "ids": tuple(self._codec.turn(text)),
                "observation": observation,
            }
            by_user = turn.call is None and turn.parse_error is None
            shown = self._codec.reply if by_user else self._codec.observation
            update["observation_ids"] = () if observation is None else tuple(shown(observation))
            turns.append(turn.model_copy(update=update))
        ids = tuple(self._codec.encode(head + marker + hide(request)))
        return episode.model_copy(update={"prompt_ids": ids, "turns": tuple(turns)})

    def _unlike(self, new: dict[str, str], draw: Callable[[], str]) -> str:
        while (found := draw()) in new.values():
            continue
        return found
