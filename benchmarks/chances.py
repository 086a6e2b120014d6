"""How likely a model is to make each first choice, by wish: `python -m benchmarks.chances models/base/embedded`.

Exact chances under the model, the thought before the choice given. A base that favours nothing has nearly even chances;
which of them is the greatest is arbitrary, so greedy answers would not show that it is flat.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.choices import CHOICES, KINDS, options
from benchmarks.command import run_benchmark, usage
from benchmarks.reckoning import questions
from orchestra.config.schema import load_params
from orchestra.rollout.render import Codec
from orchestra.synthesis.preferences.sentences import NEUTRAL, say, stated
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.training.choices import carried_out
from orchestra.training.teacher import candidates, opening, reasoned, searchable, wish
from orchestra.types import Example, ToolKind

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENDING = "\n</think>\n\n"


@dataclass(frozen=True)
class Chances:
    """Means over examples whose users wish for one thing."""

    by_choice: dict[str, float]
    usd: float
    """Expected dollars of the first call, and its seconds."""
    seconds: float
    named: float
    """How often it asks the expert that the wish names, or would have named."""
    mass: float
    """What all choices that can be carried out have together; the rest is nonsense."""


def first_choices(model: "PreTrainedModel", codec: Codec, catalogue: Catalogue, example: Example) -> dict[str, float]:
    """The chance of each choice that can be carried out."""
    import torch

    listed = candidates(catalogue, example)
    thought = "<think>\n" + "\n".join(opening(example, listed)) + " "
    among = options("first", listed, searchable(example) is not None, 0)
    ways = [(choice, reasoned(None, wish(example), choice)) for choice in among]
    prompt, end = codec.prompt(example), len(codec.turn("x"))
    turns = [codec.turn(f"{thought}{written}{ENDING}x")[:-end] for _, written in ways]
    # What is the same in all of them is given, and has no chance of its own.
    shared = next(
        (i for i, column in enumerate(zip(*turns, strict=False)) if len(set(column)) > 1), min(map(len, turns))
    )
    longest = max(map(len, turns))
    rows = [[*prompt, *ids, *([0] * (longest - len(ids)))] for ids in turns]
    with torch.inference_mode():
        logps = model(torch.tensor(rows)).logits.log_softmax(-1)  # (way, time, token)
    found = dict.fromkeys(among, 0.0)
    for number, ((choice, _), ids) in enumerate(zip(ways, turns, strict=True)):
        each = (logps[number, len(prompt) + i - 1, ids[i]].item() for i in range(shared, len(ids)))
        found[choice] += math.exp(sum(each))
    return found


def chances(
    model: "PreTrainedModel", codec: Codec, catalogue: Catalogue, examples: Sequence[Example], kind: str, seed: int
) -> Chances:
    """Means over the examples, their users all wishing for that."""
    total: dict[str, float] = dict.fromkeys(CHOICES, 0.0)
    mass, usd, seconds, named = 0.0, 0.0, 0.0, 0.0
    for example in examples:
        rng = random.Random(f"{seed}/{example.id}")
        experts = [spec.name for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        about = rng.choice(experts)
        told = NEUTRAL if kind == "neutral" else stated(kind, say(kind, "train", rng), experts, about)
        asked = example.model_copy(update={"preference": told})
        listed, found = candidates(catalogue, asked), first_choices(model, codec, catalogue, asked)
        whole = sum(found.values())
        mass += whole / len(examples)
        for choice, chance in found.items():
            share = chance / whole / len(examples)
            total[choice] += share
            one = carried_out(choice, listed)
            if one is not None:
                usd += share * float(one.spec.call_usd)
                seconds += share * one.spec.latency_s
                named += share * (one.spec.name == about)
    return Chances({name: value for name, value in total.items() if value}, usd, seconds, named, mass)


def line(kind: str, one: Chances, neutral: Chances) -> str:
    """Dollars, seconds and the named expert's share over neutral's, and the chances."""
    ratios = (one.usd / neutral.usd, one.seconds / neutral.seconds, one.named / neutral.named)
    each = ", ".join(f"{choice} {one.by_choice[choice]:.2f}" for choice in CHOICES if choice in one.by_choice)
    return f"| {kind} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} | {one.mass:.2f} | {each} |"


def main(given: Sequence[str] | None = None) -> None:
    """Print a row for each wish."""
    from orchestra.rollout.policies.transformers import load_model

    parser = usage(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=13)
    arguments = parser.parse_args(given)
    root = Path(__file__).parents[1]
    rows = questions(load_params(root / "params.yaml"), root, arguments.examples, arguments.seed)
    model, codec = load_model(arguments.model), Codec.load(arguments.model)
    examples, catalogue = [row.example for row in rows], rows[0].catalogue
    found = {kind: chances(model, codec, catalogue, examples, kind, arguments.seed) for kind in KINDS}
    print("| wish | dollars | seconds | named expert | mass | chances |\n|---|---:|---:|---:|---:|---|")
    for kind, one in found.items():
        print(line(kind, one, found["neutral"]))


if __name__ == "__main__":
    run_benchmark(main)
