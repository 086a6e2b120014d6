"""The same examples with other experts: renamed, re-described, re-priced, so that a policy learns to read the table."""

import random

from orchestra.synthesis.names import MIDDLES, TAILS
from orchestra.tools.catalogue import Catalogue
from orchestra.types import Example, ToolKind, ToolSpec

SPECIALIST = (
    "{t}",
    "knows {t}",
    "good at {t}",
    "expert in {t}",
    "made for {t}",
    "strong in {t}",
    "best asked about {t}",
    "{t} only",
    "trained on {t}",
)
GENERALIST = {
    0.6: ("strong in every subject", "best at everything", "top in all subjects", "excellent in any field"),
    0.5: ("good in every subject", "good at most things", "solid in all subjects", "good in any field"),
    0.0: ("fair in every subject", "average at everything", "fair in all subjects", "passable in any field"),
}
"""By mean skill from which the words hold."""
TRUSTED = 0.58
"""Skill in a topic from which a specialist's description names it."""
SYLLABLES = MIDDLES.split()


def invented_name(rng: random.Random) -> str:
    """A model's name such as `toravik-34b`."""
    stem = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2))) + rng.choice(TAILS.split())
    suffix = rng.choice([f"{rng.randint(1, 99)}b", str(rng.randint(1, 9)), "mini", "pro", "large", "chat", "max"])
    return f"{stem}-{suffix}"


def describe(catalogue: Catalogue, tool: str, rng: random.Random) -> str:
    """Other words for what an expert is good at; they say no more than its skills warrant."""
    topics = [topic for topic in catalogue.topics if catalogue.skill(tool, topic) >= TRUSTED]
    strength = catalogue.strength(tool)
    if not topics or len(topics) > 3 or strength >= 0.4:
        return rng.choice(next(words for floor, words in GENERALIST.items() if strength >= floor))
    rng.shuffle(topics)
    return rng.choice(SPECIALIST).format(t=rng.choice([" and ", ", "]).join(topics))


def vary(example: Example, catalogue: Catalogue, rng: random.Random) -> Example:
    """The example with every expert renamed and re-described, in toolbox and preference alike."""
    new: dict[str, ToolSpec] = {}
    for spec in example.toolbox:
        if spec.kind is ToolKind.EXPERT:
            update = {"name": invented_name(rng), "description": describe(catalogue, spec.tool, rng)}
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
