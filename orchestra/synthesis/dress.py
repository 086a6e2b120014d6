"""A domain task as an example: with a toolbox, prices and a preference drawn for it."""

import random

from orchestra.config import Synthesize
from orchestra.synthesis import wishes
from orchestra.synthesis.domain_drafts import draft_of
from orchestra.synthesis.domain_examples import DomainTask, Split
from orchestra.synthesis.generator import Origin
from orchestra.synthesis.preferences import NEUTRAL
from orchestra.synthesis.toolbox import dated, sample_toolbox
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example, Provenance, Verifier


def dress(
    task: DomainTask,
    name: str,
    domain: str,
    toolkit: Toolkit,
    config: Synthesize,
    split: Split,
    origin: Origin,
) -> Example:
    """The example `name`; its draws depend on the seed and its name only, not on the examples before it."""
    rng = random.Random(f"{origin.seed}:{name}")
    world = toolkit.domain(domain)
    draft = draft_of(world, task)
    catalogue, day = dated(toolkit.catalogue, config, rng)
    toolbox = sample_toolbox(draft, catalogue, world.tools, config, rng)
    wish = NEUTRAL
    if rng.random() < config.preference_share:
        wish = wishes.draw(config, toolkit.catalogue.topics, rng, split, toolbox, experts_matter=False)
    return Example(
        id=name,
        kind="domain",
        category=draft.category,
        instruction=draft.instruction,
        domain=domain,
        toolbox=toolbox,
        preference=wish,
        verifier=Verifier(
            kind="database", answer=draft.answer, golden_calls=draft.golden_calls, communicate=draft.communicate
        ),
        entities=draft.entities,
        provenance=Provenance(
            source=origin.source,
            licence=origin.licence,
            generator=origin.generator,
            seed=origin.seed,
            parent=task.parent,
            prompts=task.prompts,
        ),
        user=task.user,
        price_date=day,
    )
