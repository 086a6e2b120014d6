"""What newcomers ask first, answered by a model: `python -m benchmarks.first_contact models/grpo`.

The questions were written without sight of training's. Each is offered the tools that the gateway offers. A number
must be right; what no tool can know must be said not to be known; who is asked must say what it is.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestra.config.schema import load_params
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.render import Codec
from orchestra.serving.episodes.caution import CautiousPolicy
from orchestra.serving.toolbox import preference, toolbox
from orchestra.serving.wire.request import PreferenceSpec
from orchestra.synthesis.questions.beyond import ASK_ME, CANNOT_KNOW, WHAT_I_AM
from orchestra.tools.base import UNSURE
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Provenance, Record, Verifier

SAMPLES = Path(__file__).parents[1] / "tests/data/wording/first_contact.jsonl"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
FITTING = {
    "cannot know": (CANNOT_KNOW, UNSURE),
    "says what it is": (WHAT_I_AM,),
    "stays calm": (ASK_ME, CANNOT_KNOW, WHAT_I_AM, UNSURE),
}
"""Fitting answers by what is expected, where that is no number."""


class First(Record):
    """A line of the samples."""

    ask: str
    expect: str
    """A number, or a key of `FITTING`."""
    why: str


def fits(expected: str, answer: str | None) -> bool:
    """Whether an answer is the number, or of the sort that is expected."""
    said = (answer or "").strip()
    if expected in FITTING:
        return said in FITTING[expected]
    return any(abs(float(number) - float(expected)) < 0.01 for number in NUMBER.findall(said.replace(",", "")))


def asked(samples: Sequence[First], toolkit: Toolkit, experts: int) -> list[Example]:
    """Each sample as the gateway would make an example of it."""
    return [
        Example(
            id=f"first-{number}",
            kind="question",
            category=Category.TOPIC,
            instruction=one.ask,
            toolbox=toolbox(toolkit, one.ask, None, experts),
            preference=preference(PreferenceSpec()),
            verifier=Verifier(kind="judge"),
            provenance=Provenance(source="hand", licence="Apache-2.0", generator="hand", seed=0),
        )
        for number, one in enumerate(samples)
    ]


def main() -> None:
    """Print what did not fit, and the share that did."""
    from orchestra.rollout.policies.transformers import TransformersPolicy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="JSON lines with `ask`, `expect` and `why`")
    arguments = parser.parse_args()
    root = Path(__file__).parents[1]
    params, samples = load_params(root / "params.yaml"), read_jsonl(arguments.samples, First)
    toolkit, codec = Toolkit.from_params(params, root), Codec.load(arguments.model)
    examples = asked(samples, toolkit, params.synthesize.experts_per_toolbox[1])
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price, judge=False)
    policy: Policy = TransformersPolicy(arguments.model, name="first contact")
    if params.deploy.least_confidence is not None:
        policy = CautiousPolicy(policy, params.deploy.least_confidence, codec.turn(CANNOT_KNOW), codec)
    right: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for one, episode in zip(samples, rollout(examples, policy, codec, toolkit, options), strict=True):
        sort = one.expect if one.expect in FITTING else "number"
        every[sort] += 1
        right[sort] += fits(one.expect, episode.answer)
        if not fits(one.expect, episode.answer):
            calls = [turn.call.model_dump() for turn in episode.turns if turn.call is not None]
            print(f"{one.ask!r}: expected {one.expect}, said {episode.answer!r} after {calls}")
    for sort, count in every.items():
        print(f"{sort}: {right[sort]} of {count}")
    print(f"all: {100 * right.total() / every.total():.1f} %")


if __name__ == "__main__":
    main()
