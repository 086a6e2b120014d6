"""A draft as an example: with a toolbox, prices and a preference drawn for it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from orchestra.config.schema import Synthesize
from orchestra.synthesis.assembly.toolbox import dated, sample_toolbox
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.preferences import templates
from orchestra.synthesis.preferences.sentences import NEUTRAL
from orchestra.tools.catalogue.catalogue import Catalogue, DomainToolLike
from orchestra.types import Category, Example, Provenance, Split, Verifier

NO_TOOLS: Mapping[str, DomainToolLike] = {}


@dataclass(frozen=True)
class ExampleBuilder:
    """What is drawn from: the tools there are, and how often what is drawn."""

    catalogue: Catalogue
    config: Synthesize
    split: Split
    """Whose wording of preferences is used."""

    def build(
        self,
        draft: Draft,
        name: str,
        rng: random.Random,
        provenance: Provenance,
        domain_tools: Mapping[str, DomainToolLike] = NO_TOOLS,
        verifier: Verifier | None = None,
    ) -> Example:
        """The example `name`, whose draws are `rng`'s. `verifier`: in place of the draft's own."""
        catalogue, day = dated(self.catalogue, self.config, rng)
        toolbox = sample_toolbox(draft, catalogue, domain_tools, self.config, rng)
        topic, wish = draft.category is Category.TOPIC, NEUTRAL
        if rng.random() < self.config.preference_share:
            topics = self.catalogue.topics
            wish = templates.draw(self.config, topics, rng, self.split, toolbox, experts_matter=topic)
        return Example(
            id=name,
            kind="question" if draft.domain is None else "domain",
            category=draft.category,
            instruction=draft.instruction,
            domain=draft.domain,
            toolbox=toolbox,
            preference=wish,
            verifier=verifier
            or Verifier(
                kind=draft.verifier,
                answer=draft.answer,
                golden_calls=draft.golden_calls,
                communicate=draft.communicate,
            ),
            entities=draft.entities,
            topic=draft.topic if topic else None,
            hard=draft.hard,
            provenance=provenance,
            user=draft.user,
            price_date=day,
            query=draft.query,
        )
