"""Makes the training and held-out examples, with the corpus and the answers that their tools know."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestra.config.schema import Params
from orchestra.errors import DataError
from orchestra.provenance import GENERATOR, LICENCE, made_by_rule
from orchestra.synthesis.assembly.example import NO_TOOLS, ExampleBuilder
from orchestra.synthesis.assembly.rename import vary
from orchestra.synthesis.dataset.evolved import Evolution, Places, evolved_places
from orchestra.synthesis.domain_tasks.drafts import DOMAIN_CATEGORIES, domain_drafts
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.filters.filters import Solver
from orchestra.synthesis.names import Names
from orchestra.synthesis.partition import Shard
from orchestra.synthesis.questions.arithmetic import arithmetic
from orchestra.synthesis.questions.everyday import direct
from orchestra.synthesis.questions.facts import PER_WORLD, FactWorld, fact, two_hop
from orchestra.synthesis.questions.topics import topic_questions
from orchestra.tools.experts.simulated import AnswerBook, BookEntry
from orchestra.tools.search.corpus import Document, SearchIndex
from orchestra.tools.toolkit import Toolkit
from orchestra.types import SPLITS, Category, Example, Split
from orchestra.validation.card import Tally
from orchestra.validation.replay import answerable, replay

MAX_UNANSWERABLE = 0.3
"""Share of topic questions that no expert of their toolbox gets right: some must be lost, as in the world."""
SPARE_WORLDS = 2
PATIENCE = 50
"""Drafts refused in a row before the generator is called broken."""


@dataclass
class Generated:
    """What synthesize writes."""

    examples: dict[Split, list[Example]] = field(default_factory=dict)
    documents: list[Document] = field(default_factory=list)
    answers: list[BookEntry] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    unanswerable: Counter[str] = field(default_factory=Counter)
    """Kept topic questions that no expert of their toolbox gets right, by split."""
    used_up: dict[str, dict[str, int]] = field(default_factory=dict)
    """By split and category (`train lookup`), the domains that ran out, with how many tasks they had."""

    def known_to(self, toolkit: Toolkit) -> Toolkit:
        """The same tools, which know this corpus and these answers."""
        index = SearchIndex.build(self.documents) if self.documents else None
        return toolkit.with_data(index, AnswerBook.of(self.answers))


def counts_of(mix: dict[Category, float], count: int) -> dict[Category, int]:
    """Examples by category; adds up to `count` (largest remainders first)."""
    exact = {category: share * count for category, share in mix.items()}
    counts = {category: int(value) for category, value in exact.items()}
    by_remainder = sorted(exact, key=lambda category: counts[category] - exact[category])
    for category in by_remainder[: count - sum(counts.values())]:
        counts[category] += 1
    return counts


def generate(
    params: Params,
    toolkit: Toolkit,
    on_progress: Callable[[int], None] | None = None,
    shard: Shard | None = None,
    solver: Callable[[Toolkit], Solver | None] | None = None,
) -> Generated:
    """Every example of a shard (default: all of them, as one), each replayed on tools like `toolkit` that know its
    corpus and answers (see `Generated.known_to`). `solver` makes what tries the evolved ones with these tools.

    The same seed gives the same examples. No entity is in both splits, nor in two shards, nor was any in what a base
    model was trained on (see `Disguise`). Raises `DataError` when too few can be made.
    """
    config = params.synthesize
    shard = shard or Shard(train=range(config.train_examples), heldout=range(config.heldout_examples))
    made, advance = Generated(), on_progress or (lambda _: None)
    with asyncio.Runner() as runner:
        toolkit, places = runner.run(_fill(made, params, toolkit, shard, advance))
    tried_by = solver(toolkit) if solver is not None else None
    for split, examples in made.examples.items():
        evolution = Evolution(params, toolkit, shard, split, tried_by, made.dropped)
        for number, example in evolution.filled(places[split], examples, advance):
            examples.insert(number, example)
    return made


async def _fill(
    made: Generated, params: Params, toolkit: Toolkit, shard: Shard, on_progress: Callable[[int], None]
) -> tuple[Toolkit, dict[Split, Places]]:
    """Make all but the evolved examples; returns the tools that know them, and the places left to the others."""
    places: dict[Split, Places] = {}
    seed = shard.seed(params.synthesize.seed)
    names, sums = Names(random.Random(f"{seed}:names"), share=shard), set[str]()
    counts = {split: counts_of(params.synthesize.mix, len(shard.numbers(split))) for split in SPLITS}
    worlds = {split: _worlds(shard, seed, split, counts[split], names, made) for split in SPLITS}
    toolkit = made.known_to(toolkit)
    for split in SPLITS:
        rng = random.Random(f"{seed}:{split}")
        streams = _streams(params, toolkit, shard, split, counts[split], rng, names, sums, worlds[split], made.used_up)
        allowed = MAX_UNANSWERABLE * counts[split].get(Category.TOPIC, 0)
        maker = _Maker(params, toolkit, made, split, shard.numbers(split).start, rng, allowed)
        order = [category for category, count in counts[split].items() for _ in range(count)]
        rng.shuffle(order)
        made.examples[split] = []
        places[split] = evolved_places(order, params.synthesize.evolved_share)
        for number, category in enumerate(order):
            if number not in places[split]:
                made.examples[split].append(await maker.next(streams[category], number))
                on_progress(1)
    return toolkit, places


def _streams(
    params: Params,
    toolkit: Toolkit,
    shard: Shard,
    split: Split,
    counts: dict[Category, int],
    rng: random.Random,
    names: Names,
    sums: set[str],
    worlds: list[FactWorld],
    used_up: dict[str, dict[str, int]],
) -> dict[Category, Iterator[Draft]]:
    """Drafts of each category; they are drawn as they are needed, so one `rng` makes one order."""
    seed = params.synthesize.seed
    streams: dict[Category, Iterator[Draft]] = {
        Category.ARITHMETIC: arithmetic(rng, sums, shard),
        Category.DIRECT: direct(rng, split, shard),
        Category.TOPIC: topic_questions(names, rng, toolkit.catalogue.topics),
        Category.FACT: (draft for world in worlds for draft in fact(world, rng)),
        Category.TWO_HOP: (draft for world in worlds for draft in two_hop(world, rng)),
    }
    domains = [toolkit.domain(name) for name in params.world.domains]
    for category in DOMAIN_CATEGORIES:
        if counts.get(category):
            most = counts[category] + PATIENCE
            ended = used_up.setdefault(f"{split} {category.value}", {})
            streams[category] = domain_drafts(domains, seed, split, category, most, shard, ended)
    return streams


def _worlds(
    shard: Shard, seed: str, split: Split, counts: dict[Category, int], names: Names, made: Generated
) -> list[FactWorld]:
    rng = random.Random(f"{seed}:{split}:worlds")
    most = max(counts.get(Category.FACT, 0), counts.get(Category.TWO_HOP, 0))
    worlds = [FactWorld.make(names, rng) for _ in range(-(-most // PER_WORLD) + SPARE_WORLDS if most else 0)]
    prefix = split if shard.whole else f"{split}-{shard.index}"
    for number, world in enumerate(worlds):
        made.documents += world.documents(f"{prefix}-{number}")
    return worlds


@dataclass
class _Maker:
    """Turns drafts of one split into verified examples."""

    params: Params
    toolkit: Toolkit
    made: Generated
    split: Split
    first: int
    """Number of the split's first example."""
    rng: random.Random
    allowed: float
    """Topic questions that may stay unanswerable."""

    async def next(self, drafts: Iterator[Draft], number: int) -> Example:
        """The next example that passes, as the shard's number `number`; raises `DataError` when drafts run out or none
        passes."""
        for _ in range(PATIENCE):
            draft = next(drafts, None)
            if draft is None:
                raise DataError("a generator ran out", where="synthesize", fix="lower that share of the mix")
            entry = None
            if draft.wrong and draft.topic:
                entry = BookEntry(
                    question=draft.instruction,
                    topic=draft.topic,
                    answer=draft.answer,
                    wrong=draft.wrong,
                    hard=draft.hard,
                )
                if self.toolkit.book.find(draft.instruction) is not None:
                    self.made.dropped["asked before"] += 1
                    continue
                self.toolkit.book.add(entry)
            example = self.example(draft, number)
            reason = await self._refused(example)
            if reason is None:
                self.made.answers += [entry] if entry is not None else []
                self.made.documents += [draft.record] if draft.record is not None else []
                return example
            self.made.dropped[reason] += 1
            if entry is not None:
                self.toolkit.book.remove(entry)
        raise DataError(f"{PATIENCE} drafts refused in a row: {reason}", where="synthesize", fix="see verify.py")

    def example(self, draft: Draft, number: int) -> Example:
        """Draw toolbox and preference for a draft."""
        config, rng = self.params.synthesize, self.rng
        domain_tools = self.toolkit.domain(draft.domain).tools if draft.domain is not None else NO_TOOLS
        name = f"{self.split}-{self.first + number:06d}"
        builder = ExampleBuilder(self.toolkit.catalogue, config, self.split)
        made = builder.build(draft, name, rng, made_by_rule(config.seed), domain_tools)
        renamed = self.split == "train" and rng.random() < config.renamed_share
        return vary(made, self.toolkit.catalogue, rng) if renamed else made

    async def _refused(self, example: Example) -> str | None:
        if example.category is Category.DIRECT:
            return None
        if example.kind == "domain":
            return None  # domain_tasks has replayed it already, and validate will again
        if example.category is not Category.TOPIC:
            return await replay(example, self.toolkit)
        if answerable(example, self.toolkit):
            return None
        if self.made.unanswerable[self.split] + 1 > self.allowed:
            return "no expert of the toolbox knows the answer"
        self.made.unanswerable[self.split] += 1
        return None


def card(made: Generated, params: Params) -> dict[str, Any]:
    """What the data is: counts, seed, licence, generator, costs, what was refused, and what the experts in it are."""
    tallies = {split: Tally.of(examples) for split, examples in made.examples.items()}

    def by_split(counts: str) -> dict[str, dict[str, int]]:
        return {split: tally.counts()[counts] for split, tally in tallies.items()}

    harder = {s: [e for e in x if e.provenance.parent is not None] for s, x in made.examples.items()}
    evolution = {
        "evolved": {split: len(examples) for split, examples in harder.items()},
        "with_a_user": {split: sum(e.user is not None for e in examples) for split, examples in harder.items()},
    }
    return {
        "simulated": True,
        "note": "Experts are simulated stand-ins, calibrated as data/catalogue/tools.yaml says. Entities are made up.",
        "generator": GENERATOR,
        "licence": LICENCE,
        "seed": params.synthesize.seed,
        "price_date": params.world.price_date,
        "domains": params.world.domains,
        "counts": {split: len(examples) for split, examples in made.examples.items()},
        "categories": by_split("categories"),
        "preferences": by_split("preferences"),
        "examples_by_domain": by_split("domains"),
        "sources": by_split("sources"),
        "licences": by_split("licences"),
        "cost_usd": "0",
        "topics": {s: dict(sorted(Counter(e.topic for e in x if e.topic).items())) for s, x in made.examples.items()},
        "hard_topic_questions": {s: sum(e.hard for e in x) for s, x in made.examples.items()},
        "unanswerable_topic_questions": {split: made.unanswerable[split] for split in SPLITS},
        "max_unanswerable_share": MAX_UNANSWERABLE,
        "dropped": dict(sorted(made.dropped.items())),
        "documents": len(made.documents),
        "answers": len(made.answers),
        "split": "by entity: no entity, sum or question is both in training and held out; preferences are worded apart",
        **(evolution if params.synthesize.evolved_share else {}),
        **({"used_up": used_up} if (used_up := {of: ended for of, ended in made.used_up.items() if ended}) else {}),
    }
