"""Whether a policy reads prices, preferences and descriptions of experts: the probes behind the claims."""

import math
import random
from collections.abc import Callable, Iterator

from orchestra.accounting.ledger import cost_of
from orchestra.evaluation.claims.bar import Bar, Sign
from orchestra.evaluation.claims.measures import price_fall, trial_ratio, uses
from orchestra.evaluation.probes.base import Change, Setting, probe
from orchestra.evaluation.probes.trials import Trial
from orchestra.synthesis.assembly.rename import vary
from orchestra.synthesis.preferences.sentences import NEUTRAL, say, stated
from orchestra.tools.catalogue.catalogue import Catalogue, scaled
from orchestra.types import SPLITS, Example, ToolKind, ToolSpec

SUITED = 0.38
"""Skill in the topic from which an expert is worth considering: that of a fair generalist."""
STATED_KINDS = ("prefer", "avoid", "cheap", "fast")
UNSEEN_SPREAD = 1.2
"""Unseen experts' prices are drawn from a range this many times wider, at both ends, than training's."""


STREAM = "probes"
"""The preference probe draws from it first, then that of unseen experts."""


ASKED: tuple[tuple[str, str, Sign, Callable[[Trial], float]], ...] = (
    ("prefer", "use of X under “prefer X”, over neutral", "≥", uses),
    ("avoid", "use of X under “avoid X”, over neutral", "≤", uses),
    ("cheap", "dollars under “cheap”, over neutral", "≤", lambda trial: trial.outcome.cost_usd),
    ("fast", "seconds under “fast”, over neutral", "≤", lambda trial: trial.outcome.latency_s),
)
"""What each kind of preference should change: its name, in words, which way, and by what it is measured."""
THRESHOLDS = {"prefer": 1.5, "avoid": 0.5, "cheap": 0.8, "fast": 0.8}


def _preference_bars() -> list[Bar]:
    words = {"train": "", "heldout": ", in unseen words"}
    return [
        Bar(
            f"preferences: {what}{words[split]}", sign, THRESHOLDS[kind], "times",
            trial_ratio("preference", "neutral", f"{kind}/{split}", value), (kind, split) == ("prefer", "train"),
        )
        for split in SPLITS
        for kind, what, sign, value in ASKED
    ]  # fmt: skip


PRICE = [Bar("prices: fall of an expert's share of calls from low to high price", "≥", 0.30, "share", price_fall)]
KEPT = trial_ratio("unseen", "known", "unseen", lambda trial: float(trial.outcome.solved or 0))
COST = trial_ratio("unseen", "strongest", "unseen", lambda trial: trial.outcome.cost_usd)
UNSEEN = [
    Bar("unseen experts: accuracy kept", "≥", 0.95, "share", KEPT),
    Bar("unseen experts: dollars as a share of the strongest expert's", "≤", 0.40, "share", COST),
]


@probe("price", bars=PRICE)
def price_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """For each suited expert: its list price times 1/spread and times spread, the others as they are.

    The preference is neutral, so that only prices decide. An expert without a suited rival in the toolbox is left out,
    since no price makes a wrong one worth asking.
    """
    catalogue, spread = setting.catalogue, setting.spread
    suited = [spec for spec in example.experts if catalogue.skill(spec.tool, example.topic or "") >= SUITED]
    for spec in suited if len(suited) > 1 else []:
        for name, factor in (("low", 1 / spread), ("high", spread)):
            toolbox = tuple(repriced(s, catalogue, factor) if s.name == spec.name else s for s in example.toolbox)
            changed = example.model_copy(update={"toolbox": toolbox, "preference": NEUTRAL})
            yield Change(name, changed, spec.tool)


@probe("preference", bars=_preference_bars(), stream=STREAM)
def preference_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """A neutral preference, then each kind in training wording and in held-out wording; one expert for all of them."""
    offered, rng = example.experts, setting.rng
    chosen = rng.choice(offered)
    yield Change("neutral", example.model_copy(update={"preference": NEUTRAL}), chosen.tool)
    for kind in STATED_KINDS:
        for split in SPLITS:
            preference = stated(kind, say(kind, split, rng), [spec.name for spec in offered], chosen.name)
            yield Change(f"{kind}/{split}", example.model_copy(update={"preference": preference}), chosen.tool)


@probe("unseen", bars=UNSEEN, rival_on="unseen", stream=STREAM)
def unseen_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """As it is; then with every expert renamed, described in words training lacks, and re-priced from a wider range."""
    catalogue, rng, spread = setting.catalogue, setting.rng, setting.spread
    yield Change("known", example)
    changed = renamed(example, catalogue, rng)
    widest = math.log(spread * UNSEEN_SPREAD)
    toolbox = tuple(
        repriced(spec, catalogue, math.exp(rng.uniform(-widest, widest))) if spec.kind is ToolKind.EXPERT else spec
        for spec in changed.toolbox
    )
    yield Change("unseen", changed.model_copy(update={"toolbox": toolbox}))


def renamed(example: Example, catalogue: Catalogue, rng: random.Random) -> Example:
    """Every expert under an invented name, described in words that training lacks."""
    changed = vary(example, catalogue, rng, "heldout")
    while {spec.name for spec in changed.experts} & {spec.name for spec in example.experts}:
        changed = vary(example, catalogue, rng, "heldout")  # Two invented names were the same.
    return changed


def repriced(spec: ToolSpec, catalogue: Catalogue, factor: float) -> ToolSpec:
    """The tool at `factor` times its list price; what the model is shown follows."""
    price = scaled(catalogue.prices[spec.tool], factor)
    usage = catalogue.entry(spec.tool).usage
    return spec.model_copy(update={"price": price, "call_usd": cost_of(price, usage, seconds=spec.latency_s)})
