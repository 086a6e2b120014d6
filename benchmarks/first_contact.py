"""What newcomers ask first: `python -m benchmarks.first_contact --url http://127.0.0.1:8800` asks a running gateway.

`python -m benchmarks.first_contact models/grpo` asks a checkpoint in this process, with the tools that the gateway
offers. The questions were written without sight of training's. A number must be right; what no tool can know must be
said not to be known; who is asked must say what it is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import judge, run_benchmark, usage
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.render import Codec
from orchestra.serving import client
from orchestra.serving.episodes.caution import CautiousPolicy
from orchestra.serving.toolbox import preference, toolbox
from orchestra.serving.wire.request import PreferenceSpec
from orchestra.synthesis.questions.beyond import ASK_ME, CANNOT_KNOW, WHAT_I_AM
from orchestra.tools.base import UNSURE
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Provenance, Record, Verifier

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests/data/wording/first_contact.jsonl"
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


@dataclass(frozen=True)
class FirstReply:
    """What came back."""

    answer: str | None
    calls: list[str]
    """For people."""


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


def from_gateway(url: str, samples: Iterable[First]) -> list[FirstReply]:
    """Ask a running gateway as any client does, one question after the other; a refused one has no answer."""
    replies = []
    for one in samples:
        try:
            reply = client.ask(one.ask, root=ROOT, url=url)
        except ConfigError as error:
            print(f"{one.ask!r} was refused: {error}")
            replies.append(FirstReply(None, []))
            continue
        replies.append(FirstReply(reply.answer, [f"{call.name} {call.arguments}" for call in reply.tool_calls]))
    return replies


def from_checkpoint(model: Path, samples: Sequence[First]) -> list[FirstReply]:
    """Ask a checkpoint in this process, with the settings of params.yaml."""
    from orchestra.rollout.policies.transformers import TransformersPolicy

    params = load_params(ROOT / "params.yaml")
    toolkit, codec = Toolkit.from_params(params, ROOT), Codec.load(model)
    examples = asked(samples, toolkit, params.synthesize.experts_per_toolbox[1])
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price, judge=False)
    policy: Policy = TransformersPolicy(model, name="first contact")
    if params.deploy.least_confidence is not None:
        policy = CautiousPolicy(policy, params.deploy.least_confidence, codec.turn(CANNOT_KNOW), codec)
    replies = []
    for episode in rollout(examples, policy, codec, toolkit, options):
        calls = [turn.call for turn in episode.turns if turn.call is not None]
        replies.append(FirstReply(episode.answer, [f"{call.name} {call.arguments}" for call in calls]))
    return replies


def counted(samples: Sequence[First], replies: Sequence[FirstReply]) -> float:
    """Print what did not fit, and how many of each sort did; the share of all."""
    right: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for one, reply in zip(samples, replies, strict=True):
        sort = one.expect if one.expect in FITTING else "number"
        every[sort] += 1
        right[sort] += fits(one.expect, reply.answer)
        if not fits(one.expect, reply.answer):
            print(f"{one.ask!r}: expected {one.expect}, said {reply.answer!r} after {reply.calls}")
    for sort, count in every.items():
        print(f"{sort}: {right[sort]} of {count}")
    share = right.total() / every.total()
    print(f"all: {100 * share:.1f} %")
    return share


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a checkpoint's folder")
    parser.add_argument("--url", help="a gateway's address; ORCHESTRA_API_KEY is the key")
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="JSON lines with `ask`, `expect` and `why`")
    parser.add_argument("--bar", type=float, help="the least share that must fit, such as 0.9")
    chosen = parser.parse_args(given)
    if (chosen.model is None) == (chosen.url is None):
        parser.error("name a checkpoint's folder or --url, one of the two")
    samples = read_jsonl(chosen.samples, First)
    if not samples:
        parser.error(f"{chosen.samples} has no question")
    replies = from_checkpoint(chosen.model, samples) if chosen.url is None else from_gateway(chosen.url, samples)
    share = counted(samples, replies)
    return judge({} if chosen.bar is None else {f"{chosen.bar:.0%} fit": share >= chosen.bar})


if __name__ == "__main__":
    run_benchmark(main)
