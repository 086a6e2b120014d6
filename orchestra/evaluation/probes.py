"""Controlled re-evaluations: the same examples with one thing changed, to see whether the policy reads it."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestra.accounting.ledger import cost_of
from orchestra.config.schema import Rollout
from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import STRONGEST, baseline_policy
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.evaluation.outcomes import Outcome, outcome
from orchestra.evaluation.run import Contender, OnProgress, evaluate
from orchestra.synthesis.assembly.rename import vary
from orchestra.synthesis.preferences.sentences import NEUTRAL, Split, say, stated
from orchestra.tools.catalogue.catalogue import Catalogue, scaled
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Price, Record, ToolKind, ToolSpec

ProbeName = Literal["price", "preference", "unseen"]
SUITED = 0.38
"""Skill in the topic from which an expert is worth considering: that of a fair generalist."""
WISHES = ("prefer", "avoid", "cheap", "fast")
SPLITS: tuple[Split, ...] = ("train", "heldout")
UNSEEN_SPREAD = 1.2
"""Unseen experts' prices are drawn from a range this many times wider, at both ends, than training's."""


@dataclass(frozen=True)
class Variant:
    """An example with one thing changed; its own id is unique among variants."""

    probe: ProbeName
    name: str
    """price: low, high · preference: neutral, prefer/train, prefer/heldout, avoid/…, cheap/…, fast/… · unseen: known,
    unseen."""
    of: str
    """Id of the example that it was made from."""
    example: Example
    tool: str | None = None
    """Catalogue entry of the expert that is re-priced, preferred or avoided."""


class Trial(Record):
    """One variant, attempted once."""

    probe: ProbeName
    variant: str
    """As `Variant.name`; and `strongest`: always-strongest on the unseen variant."""
    example_id: str
    """Of the example that the variant was made from."""
    tool: str | None = None
    outcome: Outcome


class ProbeResults(Record):
    """Every trial of one policy."""

    trials: tuple[Trial, ...]

    def of(self, probe: ProbeName, variant: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.probe == probe and trial.variant == variant]


def price_variants(example: Example, catalogue: Catalogue, spread: float) -> Iterator[Variant]:
    """For each suited expert: its list price times 1/spread and times spread, the others as they are.

    Nobody's wish decides: the preference is neutral. An expert that has no suited rival in the toolbox is left out,
    since no price makes a wrong one worth asking.
    """
    suited = [spec for spec in experts(example) if catalogue.skill(spec.tool, example.topic or "") >= SUITED]
    for spec in suited if len(suited) > 1 else []:
        for name, factor in (("low", 1 / spread), ("high", spread)):
            toolbox = tuple(repriced(s, catalogue, factor) if s.name == spec.name else s for s in example.toolbox)
            changed = example.model_copy(update={"toolbox": toolbox, "preference": NEUTRAL})
            yield _variant("price", name, changed, spec.tool)


def preference_variants(example: Example, rng: random.Random) -> Iterator[Variant]:
    """Without a wish, then each wish in training's words and in held-out ones; one expert for all of them."""
    offered = experts(example)
    chosen = rng.choice(offered)
    yield _variant("preference", "neutral", example.model_copy(update={"preference": NEUTRAL}), chosen.tool)
    for kind in WISHES:
        for split in SPLITS:
            wish = stated(kind, say(kind, split, rng), [spec.name for spec in offered], chosen.name)
            yield _variant(
                "preference", f"{kind}/{split}", example.model_copy(update={"preference": wish}), chosen.tool
            )


def unseen_variants(example: Example, catalogue: Catalogue, rng: random.Random, spread: float) -> Iterator[Variant]:
    """As it is; then with every expert renamed, described in words training lacks, and re-priced from a wider range."""
    yield _variant("unseen", "known", example)
    changed = vary(example, catalogue, rng, "heldout")
    while {spec.name for spec in experts(changed)} & {spec.name for spec in experts(example)}:
        changed = vary(example, catalogue, rng, "heldout")  # Two invented names were the same.
    widest = math.log(spread * UNSEEN_SPREAD)
    toolbox = tuple(
        repriced(spec, catalogue, math.exp(rng.uniform(-widest, widest))) if spec.kind is ToolKind.EXPERT else spec
        for spec in changed.toolbox
    )
    yield _variant("unseen", "unseen", changed.model_copy(update={"toolbox": toolbox}))


def variants(examples: Sequence[Example], catalogue: Catalogue, *, spread: float, seed: int) -> list[Variant]:
    """Every probe's variants of the examples, each of which must offer an expert."""
    made: list[Variant] = []
    for example in examples:
        rng = random.Random(f"{seed}:probes:{example.id}")
        made += price_variants(example, catalogue, spread)
        made += preference_variants(example, rng)
        made += unseen_variants(example, catalogue, rng, spread)
    return made


def run_probes(
    contender: Contender,
    examples: Sequence[Example],
    toolkit: Toolkit,
    limits: Rollout,
    *,
    price_spread: float,
    seed: int,
    count: int,
    file: Path,
    on_progress: OnProgress | None = None,
) -> ProbeResults:
    """Every probe of one policy on the first `count` topic examples of `examples` (about 15 episodes each).

    `file` collects episodes as in `run.evaluate`, so a killed run continues; keep it in a folder of that checkpoint.
    `price_spread` is that of the profile's synthesize section. Raises `DataError` when there is no topic example.
    """
    chosen = [example for example in examples if example.category is Category.TOPIC and experts(example)][:count]
    if not chosen:
        raise DataError("no topic example to probe with", where="run_probes", fix="raise evaluate.examples")
    made = variants(chosen, toolkit.catalogue, spread=price_spread, seed=seed)
    trials = _play(contender, made, toolkit, limits, file, on_progress)
    knowledge = Knowledge(toolkit.catalogue, max_turns=limits.max_turns)
    codec = contender.codec
    rival = Contender(STRONGEST, lambda: baseline_policy(STRONGEST, knowledge, codec.turn), codec, Price())
    unseen = [variant for variant in made if variant.name == "unseen"]
    beside = file.with_name(f"{file.stem}_{STRONGEST}{file.suffix}")
    strongest = _play(rival, unseen, toolkit, limits, beside, on_progress)
    return ProbeResults(trials=(*trials, *(trial.model_copy(update={"variant": "strongest"}) for trial in strongest)))


def experts(example: Example) -> list[ToolSpec]:
    return [spec for spec in example.toolbox if spec.kind is ToolKind.EXPERT]


def repriced(spec: ToolSpec, catalogue: Catalogue, factor: float) -> ToolSpec:
    """The tool at `factor` times its list price; what the model is shown follows."""
    price = scaled(catalogue.prices[spec.tool], factor)
    usage = catalogue.entry(spec.tool).usage
    return spec.model_copy(update={"price": price, "call_usd": cost_of(price, usage, seconds=spec.latency_s)})


def _play(
    contender: Contender,
    made: Sequence[Variant],
    toolkit: Toolkit,
    limits: Rollout,
    file: Path,
    on_progress: OnProgress | None,
) -> list[Trial]:
    played = evaluate([contender], [v.example for v in made], toolkit, limits, file=file, on_progress=on_progress)
    return [
        Trial(
            probe=variant.probe,
            variant=variant.name,
            example_id=variant.of,
            tool=variant.tool,
            outcome=outcome(episode, variant.example),
        )
        for variant, episode in zip(made, played[contender.name], strict=True)
    ]


def _variant(probe: ProbeName, name: str, changed: Example, tool: str | None = None) -> Variant:
    unique = ":".join([changed.id, probe, name, tool or ""])
    return Variant(probe, name, changed.id, changed.model_copy(update={"id": unique}), tool)
