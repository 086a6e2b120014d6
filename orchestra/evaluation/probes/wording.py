"""Whether a policy reads preferences in ordinary English: sentences written without sight of training's."""

from collections.abc import Iterator

from orchestra.evaluation.claims.bar import Bar
from orchestra.evaluation.claims.measures import trial_ratio
from orchestra.evaluation.probes.base import Change, Setting, probe
from orchestra.evaluation.probes.shipped import ASKED
from orchestra.synthesis.preferences.sentences import NEUTRAL, stated
from orchestra.types import Example

NAME = "wording"


THRESHOLDS = {"prefer": 1.5, "avoid": 0.6, "cheap": 0.85, "fast": 0.875}
BARS = [
    Bar(f"ordinary English: {what}", sign, THRESHOLDS[kind], "times", trial_ratio(NAME, "neutral", kind, value))
    for kind, what, sign, value in ASKED
]


@probe(NAME, bars=BARS)
def wording_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """Without a preference, then one sentence of each kind in `Setting.wording`; one expert for all of them."""
    if not setting.wording:
        return
    offered, rng = example.experts, setting.rng
    chosen = rng.choice(offered)
    yield Change("neutral", example.model_copy(update={"preference": NEUTRAL}), chosen.tool)
    for kind, sentences in setting.wording.items():
        told = stated(kind, rng.choice(sentences), [spec.name for spec in offered], chosen.name)
        yield Change(kind, example.model_copy(update={"preference": told}), chosen.tool)
