"""What makes an example of an outside row: a sampled toolbox at random prices, a preference, and where it came from."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from orchestra.config import Synthesize
from orchestra.synthesis import wishes
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.preferences import NEUTRAL, Split
from orchestra.synthesis.toolbox import dated, sample_toolbox
from orchestra.tools.catalogue import Catalogue, DomainToolLike
from orchestra.types import Category, Example, Provenance, Verifier

GENERATOR = "orchestra.synthesis.sources"
"""The generator of rows that nobody generated: which code turned them into examples."""
NO_TOOLS: Mapping[str, DomainToolLike] = {}


@dataclass(frozen=True)
class Refused:
    """A row that was read and is not taken."""

    row: str
    """Its id in its source; empty when it could not be read."""
    source: str
    reason: str
    """In words that hold for other rows too, so that reasons can be counted."""


Outside = tuple[str, Example | Refused]
"""What a loader makes of a row, after where it stands: `file:line`."""


@dataclass(frozen=True)
class Origin:
    """Where a row came from."""

    source: str
    licence: str
    parent: str
    """Its id in its source."""


@dataclass(frozen=True)
class Offer:
    """Draws tools, prices and wishes as synthesize does; by id, so that neither order nor other rows matter."""

    catalogue: Catalogue
    settings: Synthesize
    split: Split = "train"

    def example(
        self,
        name: str,
        draft: Draft,
        verifier: Verifier,
        origin: Origin,
        domain_tools: Mapping[str, DomainToolLike] = NO_TOOLS,
    ) -> Example:
        """The example called `name`; the same every time for one seed."""
        rng = random.Random(f"{self.settings.seed}:{self.split}:{name}")
        catalogue, day = dated(self.catalogue, self.settings, rng)
        toolbox = sample_toolbox(draft, catalogue, domain_tools, self.settings, rng)
        wish = NEUTRAL
        if rng.random() < self.settings.preference_share:
            topics, topical = self.catalogue.topics, draft.category is Category.TOPIC
            wish = wishes.draw(self.settings, topics, rng, self.split, toolbox, experts_matter=topical)
        return Example(
            id=name,
            kind="question" if draft.domain is None else "domain",
            category=draft.category,
            instruction=draft.instruction,
            domain=draft.domain,
            toolbox=toolbox,
            preference=wish,
            verifier=verifier,
            entities=draft.entities,
            topic=draft.topic,
            hard=draft.hard,
            price_date=day,
            provenance=Provenance(
                source=origin.source,
                licence=origin.licence,
                generator=GENERATOR,
                seed=self.settings.seed,
                parent=origin.parent,
            ),
        )
