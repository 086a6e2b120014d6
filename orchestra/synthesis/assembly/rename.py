"""The same examples with other experts: renamed and re-described, so that a policy learns to read the table."""

import random
import string

from orchestra.synthesis.names import MIDDLES, TAILS
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import MASTERED
from orchestra.types import Example, Split, ToolKind, ToolSpec

SPECIALIST: dict[Split, tuple[str, ...]] = {
    "train": (
        "{t}",
        "knows {t}",
        "good at {t}",
        "expert in {t}",
        "made for {t}",
        "strong in {t}",
        "best asked about {t}",
        "{t} only",
        "trained on {t}",
    ),
    "heldout": (
        "a specialist for {t}",
        "answers {t} questions",
        "strong at {t}",
        "best in {t}",
        "solid in {t}",
        "ask it about {t}",
        "{t} is what it knows",
    ),
}
GENERALIST: dict[float, dict[Split, tuple[str, ...]]] = {
    0.6: {
        "train": ("strong in every subject", "best at everything", "top in all subjects", "excellent in any field"),
        "heldout": ("excellent in every subject", "strong at everything", "best in any field", "top at everything"),
    },
    0.5: {
        "train": ("good in every subject", "good at most things", "solid in all subjects", "good in any field"),
        "heldout": ("solid at most things", "good in all subjects", "solid in any field", "good at everything"),
    },
    0.0: {
        "train": ("fair in every subject", "average at everything", "fair in all subjects", "passable in any field"),
        "heldout": ("average in every subject", "passable at everything", "fair in any field", "average in all fields"),
    },
}
"""By mean skill from which the words hold. No description is in both splits; the grades themselves (strong, solid, …)
are, for a model of our size has no other source of what a word means."""
TRUSTED = 0.45
"""Skill in a topic from which a specialist's description names it."""
SYLLABLES, STEM_ENDS = MIDDLES.split(), TAILS.split()
SUFFIXES = ("mini", "pro", "large", "chat", "max", "lite", "turbo", "flash", "nano", "small")
INVENTED_SUFFIXES = 0.6
"""Share of training's names with an ending that nobody uses: from a short list of endings a model learns the list, and
then completes a name from memory where it should copy it."""
SUFFIX_PIECES, SUFFIX_LETTERS = (1, 4), 9
"""An invented ending's pieces, least and most, and its length at most: of short endings only, a model learns to stop
early, and writes `-instru` where it reads `-instruct`."""
NUMBERED = 0.15
"""Share of invented endings with a digit behind."""
HELDOUT_SUFFIXES = ("plus", "ultra", "v2", "v3", "next", "base", "instruct")
"""Endings that no name of training has, so that no held-out name was ever met."""


def invented_name(rng: random.Random, split: Split = "train") -> str:
    """A model's name such as `toravik-34b` or `toravik-dunor`; held out, such as `toravik-v2`."""
    stem = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2))) + rng.choice(STEM_ENDS)
    if split == "heldout":
        return f"{stem}-{rng.choice(HELDOUT_SUFFIXES)}"
    if rng.random() < INVENTED_SUFFIXES:
        return f"{stem}-{invented_suffix(rng)}"
    return f"{stem}-{rng.choice([f'{rng.randint(1, 99)}b', str(rng.randint(1, 9)), *SUFFIXES])}"


def invented_suffix(rng: random.Random) -> str:
    """An ending such as `k`, `wo2` or `linstka`: never one that is held out."""
    while True:
        pieces = rng.randint(*SUFFIX_PIECES)
        letters = (rng.choice(string.ascii_lowercase) for _ in range(pieces))
        made = "".join(rng.choice([letter, rng.choice(SYLLABLES), rng.choice(STEM_ENDS)]) for letter in letters)
        made += str(rng.randint(1, 9)) if rng.random() < NUMBERED else ""
        if len(made) <= SUFFIX_LETTERS and made not in HELDOUT_SUFFIXES:
            return made


def describe(catalogue: Catalogue, tool: str, rng: random.Random, split: Split = "train") -> str:
    """Other words for what an expert is good at; they say no more than its skills warrant."""
    skills = {topic: catalogue.skill(tool, topic) for topic in catalogue.topics}
    topics = [t if skill >= MASTERED else f"some {t}" for t, skill in skills.items() if skill >= TRUSTED]
    strength = catalogue.strength(tool)
    if not topics or len(topics) > 3 or strength >= 0.4:
        return rng.choice(next(words[split] for floor, words in GENERALIST.items() if strength >= floor))
    rng.shuffle(topics)
    return rng.choice(SPECIALIST[split]).format(t=rng.choice([" and ", ", "]).join(topics))


def vary(example: Example, catalogue: Catalogue, rng: random.Random, split: Split = "train") -> Example:
    """The example with every expert renamed and re-described, in toolbox and preference alike.

    What `split` "heldout" uses, names and descriptions, training never does. Unchanged when two names collide.
    """
    new: dict[str, ToolSpec] = {}
    for spec in example.toolbox:
        if spec.kind is ToolKind.EXPERT:
            update = {"name": invented_name(rng, split), "description": describe(catalogue, spec.tool, rng, split)}
            new[spec.name] = spec.model_copy(update=update)
    if len({spec.name for spec in new.values()}) < len(new):
        return example
    words = example.preference.words
    for old in sorted(new, key=len, reverse=True):
        words = words.replace(old, new[old].name)
    tools = {new[name].name if name in new else name: weight for name, weight in example.preference.tools.items()}
    return example.model_copy(
        update={
            "toolbox": tuple(new.get(spec.name, spec) for spec in example.toolbox),
            "preference": example.preference.model_copy(update={"words": words, "tools": tools}),
        }
    )
