"""Whether a policy reads preferences in ordinary English: sentences written without sight of training's."""

from collections.abc import Callable, Iterator

from orchestra.evaluation.claims.bar import Bar, Sign
from orchestra.evaluation.claims.measures import trial_ratio, uses
from orchestra.evaluation.probes.base import Change, Setting, experts, probe
from orchestra.evaluation.probes.trials import Trial
from orchestra.synthesis.preferences.sentences import NEUTRAL, stated
from orchestra.types import Example

NAME = "wording"


def _bars() -> list[Bar]:
    rows: list[tuple[str, str, Sign, float, Callable[[Trial], float]]] = [
        ("prefer", "use of X under “prefer X”, over neutral", "≥", 1.5, uses),
        ("avoid", "use of X under “avoid X”, over neutral", "≤", 0.6, uses),
        ("cheap", "dollars under “cheap”, over neutral", "≤", 0.85, lambda trial: trial.outcome.cost_usd),
        ("fast", "seconds under “fast”, over neutral", "≤", 0.875, lambda trial: trial.outcome.latency_s),
    ]
    return [
        Bar(f"ordinary English: {what}", sign, threshold, "times", trial_ratio(NAME, "neutral", kind, value))
        for kind, what, sign, threshold, value in rows
    ]


@probe(NAME, bars=_bars())
def wording_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """Without a preference, then one sentence of each kind in `Setting.wording`; one expert for all of them."""
    if not setting.wording:
        return
    offered, rng = experts(example), setting.rng
    chosen = rng.choice(offered)
    yield Change("neutral", example.model_copy(update={"preference": NEUTRAL}), chosen.tool)
    for kind, sentences in setting.wording.items():
        told = stated(kind, rng.choice(sentences), [spec.name for spec in offered], chosen.name)
        yield Change(kind, example.model_copy(update={"preference": told}), chosen.tool)
