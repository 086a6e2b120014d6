"""Whether a policy reads ordinary English: preferences and questions written without sight of training's."""

from collections.abc import Iterator

from orchestra.evaluation.claims.bar import Bar
from orchestra.evaluation.claims.measures import trial_gain, trial_ratio
from orchestra.evaluation.probes.base import Change, Setting, probe
from orchestra.evaluation.probes.shipped import ASKED
from orchestra.synthesis.preferences.sentences import NEUTRAL, stated
from orchestra.synthesis.questions.topics import asked_in
from orchestra.types import Example

NAME, FORMS = "wording", "forms"
QUESTION = "question"
"""The key of `Setting.wording` for ways to ask; the others are kinds of preference."""

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
        if kind == QUESTION:
            continue
        told = stated(kind, rng.choice(sentences), [spec.name for spec in offered], chosen.name)
        yield Change(kind, example.model_copy(update={"preference": told}), chosen.tool)


SOLVED = trial_gain(FORMS, "as it is", "otherwise", lambda trial: float(trial.outcome.solved or 0))


@probe(FORMS, bars=[Bar("ordinary English: accuracy on questions in other forms", "≥", -0.10, "points", SOLVED)])
def form_changes(example: Example, setting: Setting) -> Iterator[Change]:
    """As it is asked, then in one of the forms of `Setting.wording`; the preference stays."""
    forms = setting.wording.get(QUESTION)
    asked = asked_in(example) if forms else None
    if forms is None or asked is None:
        return
    yield Change("as it is", example)
    text = setting.rng.choice(forms).format(a=asked.noun, t=asked.kind, x=asked.name)
    yield Change("otherwise", example.model_copy(update={"instruction": text}))
