"""What users ask for, in words and as the vector P; training and held-out examples use different words."""

import random
from collections.abc import Collection, Sequence

from orchestra.types import Preference, Split

WORDS: dict[str, dict[Split, tuple[str, ...]]] = {
    "cheap": {
        "train": (
            "keep it cheap.",
            "money is tight.",
            "spend as little as possible.",
            "the cheapest way, please.",
            "I am on a small budget.",
            "save money on this.",
            "cost matters most.",
            "do not spend much.",
            "avoid expensive tools.",
            "low cost, please.",
            "keep the price low.",
            "as little money as possible.",
            "I cannot pay much.",
            "please do not spend a lot.",
            "cheap is best.",
            "the less it costs the better.",
            "my budget is small, so save.",
            "please keep costs down.",
            "I want to save money.",
            "I want a cheap answer.",
            "a cheap answer is best.",
            "the answer must be cheap.",
            "I need it cheap.",
            "the cheap way, please.",
            "I need to save money.",
            "avoid a high price.",
        ),
        "heldout": (
            "keep the cost low.",
            "as cheap as possible.",
            "I cannot spend much.",
            "please save money.",
            "I have little money.",
            "please be cheap about it.",
            "save what you can.",
            "it must not cost much.",
        ),
    },
    "fast": {
        "train": (
            "be quick.",
            "I am in a hurry.",
            "speed matters most.",
            "answer as fast as you can.",
            "I need this now.",
            "do not keep me waiting.",
            "the fastest way, please.",
            "time is short.",
            "avoid slow tools.",
            "quick, please.",
            "please hurry.",
            "I have little time.",
            "no time to lose.",
            "as soon as you can.",
            "a fast answer, please.",
            "I cannot wait.",
            "the sooner the better.",
            "please be quick about it.",
            "I need it fast.",
            "I want a fast answer.",
            "a quick answer is best.",
            "the answer must be fast.",
            "I need it quick.",
            "the quick way, please.",
            "I need to be quick.",
            "avoid a long wait.",
        ),
        "heldout": (
            "please be fast.",
            "I need a quick answer.",
            "I have no time.",
            "as quick as you can.",
            "fast, please.",
            "please do not be slow.",
            "I want it now.",
            "I need the answer soon.",
        ),
    },
    "accurate": {
        "train": (
            "it must be right.",
            "accuracy matters most.",
            "cost does not matter.",
            "be sure of the answer.",
            "take the time you need.",
            "I cannot afford a mistake.",
            "the best answer, whatever it costs.",
            "double-check if needed.",
            "be as accurate as possible.",
            "please be right.",
            "no errors, please.",
            "it has to be right.",
            "whatever it takes, be sure.",
            "the right answer matters most.",
            "be very careful.",
            "I want no mistake.",
            "whatever the price, get it right.",
            "please be accurate.",
            "I must have the right answer.",
            "I want an accurate answer.",
            "an accurate answer is best.",
            "the answer must be accurate.",
            "I need it right.",
            "the right way, please.",
            "I need to be sure.",
            "avoid mistakes.",
        ),
        "heldout": (
            "the answer must be right.",
            "no mistakes, please.",
            "whatever it costs, be right.",
            "be very accurate.",
            "please be sure of it.",
            "I want to be sure.",
            "it must not be wrong.",
            "a right answer, please.",
        ),
    },
    "prefer": {
        "train": (
            "use {x} if you can.",
            "I like {x}.",
            "I trust {x}.",
            "please ask {x}.",
            "prefer {x}.",
            "{x} would be best for me.",
            "go with {x} where possible.",
            "my favourite is {x}.",
            "I would like {x}.",
            "please prefer {x}.",
            "ask {x}.",
            "use {x}, please.",
            "{x}, if you can.",
            "I want {x} to answer.",
            "my first choice is {x}.",
            "let {x} answer.",
            "{x} is the one I like.",
            "please go to {x}.",
            "take {x}.",
            "please take {x}.",
            "please choose {x}.",
            "pick {x} if it is there.",
            "try {x} first.",
            "please call {x}.",
            "{x} is my choice.",
            "{x} is good enough for me.",
            "I favour {x}.",
            "I choose {x}.",
            "please let {x} do it.",
            "rely on {x} if you can.",
        ),
        "heldout": ("I prefer {x}.", "please use {x}.", "{x} is my favourite.", "ask {x} if you can."),
    },
    "avoid": {
        "train": (
            "do not use {x}.",
            "avoid {x}.",
            "I do not trust {x}.",
            "anything but {x}.",
            "stay away from {x}.",
            "no {x}, please.",
            "leave {x} out of it.",
            "I would rather not use {x}.",
            "please do not use {x}.",
            "I do not like {x}.",
            "not {x}.",
            "do not ask {x}.",
            "please leave out {x}.",
            "never {x}.",
            "anyone except {x}, please.",
            "I want anything but {x}.",
            "please stay away from {x}.",
            "without {x}, please.",
            "please leave {x} alone.",
            "please ignore {x}.",
            "please drop {x}.",
            "please never use {x}.",
            "please do not call {x}.",
            "please do not go to {x}.",
            "keep away from {x}.",
            "I do not need {x}.",
            "I do not wish for {x}.",
            "I want no {x}.",
            "I dislike {x}.",
            "{x} is not for me.",
            "{x} is not my choice.",
            "not {x} again.",
            "not {x}, anyone else.",
        ),
        "heldout": ("please avoid {x}.", "not {x}, please.", "please do not ask {x}.", "I do not want {x}."),
    },
}
"""{x} is a tool's shown name."""
OPENINGS = (
    "today ",
    "for this one, ",
    "as always, ",
    "my wish: ",
    "mind: ",
    "just this: ",
    "once more: ",
    "by the way, ",
    "you know, ",
    "in short, ",
)
"""What every second wish of training begins with, so that its words are met in the middle of a sentence too."""
WEIGHTS = {
    "neutral": (1.0, 0.1, 0.02),
    "cheap": (1.0, 0.6, 0.05),
    "fast": (1.0, 0.1, 0.6),
    "accurate": (1.0, 0.02, 0.02),
}
"""(outcome, compute, latency). At these weights a table of chances finds 77 % at half of the strongest expert's dollars
for a user without a preference, and a quarter of those dollars for a cheap one (docs/log.md)."""
PREFERRED, OTHERS = 1.0, 1.0
"""Weight of the tool a user likes, and of those left when one is disliked."""


def say(kind: str, split: Split, rng: random.Random) -> str:
    """Words of a preference, `{x}` in the place of a name."""
    words = rng.choice(WORDS[kind][split])
    return rng.choice(OPENINGS) + words if split == "train" and rng.random() < 0.5 else words


def sayable(kind: str, split: Split) -> list[str]:
    """All that `say` can say. Nothing of training holds a held-out sentence."""
    openings = ("", *OPENINGS) if split == "train" else ("",)
    return [opening + words for opening in openings for words in WORDS[kind][split]]


def preference(rng: random.Random, split: Split, experts: list[str], *, experts_matter: bool) -> Preference:
    """A stated preference. Liking or disliking an expert is drawn only where experts are what solves the example."""
    kind = rng.choice(["cheap", "fast", "accurate", *(["prefer", "avoid"] if experts_matter else [])])
    words = say(kind, split, rng)
    return stated(kind, words, experts, "" if kind in WEIGHTS else rng.choice(experts))


def stated(kind: str, words: str, experts: list[str], chosen: str = "") -> Preference:
    """The vector P of one preference; `chosen` is the expert that "prefer" and "avoid" are about."""
    return weighed(kind, words.format(x=chosen), experts, (chosen,))


def weighed(kind: str, words: str, experts: Sequence[str], chosen: Collection[str]) -> Preference:
    """The vector P of a preference in its final words; `chosen` are the experts that "prefer" and "avoid" are about."""
    outcome, compute, latency = WEIGHTS.get(kind, WEIGHTS["neutral"])
    tools: dict[str, float] = {}
    if kind == "prefer":
        tools = dict.fromkeys(chosen, PREFERRED)
    elif kind == "avoid":
        tools = {name: OTHERS for name in experts if name not in chosen}
    return Preference(kind=kind, words=words, outcome=outcome, compute=compute, latency=latency, tools=tools)


NEUTRAL = weighed("neutral", "", (), ())
"""Of users who state no preference."""
