"""What `deploy.least_confidence` would keep and refuse: `python -m benchmarks.confidence models/grpo`.

Plays held-out examples and prints, for several values, the share of solved and of unsolved episodes that hold a doubted
turn. A value is chosen here, on questions of the model's own world, and never on those that it is to refuse.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import run_benchmark, usage
from orchestra.config.schema import load_params
from orchestra.files.examples import read_examples
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.serving.episodes.caution import confidence
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode

VALUES = (-0.1, -0.15, -0.2, -0.25, -0.3, -0.4)


def least(episode: Episode) -> float:
    """The confidence of the turn that is doubted most; 0 without one."""
    return min((confidence(turn.logprobs) for turn in episode.turns), default=0.0)


def share(values: list[float], below: float) -> str:
    """The share of them below a value, in percent."""
    return f"{100 * sum(value < below for value in values) / len(values):.1f}" if values else "—"


def main(given: Sequence[str] | None = None) -> None:
    """Print a table."""
    from orchestra.rollout.policies.transformers import TransformersPolicy

    parser = usage(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--examples", type=int, default=512)
    arguments = parser.parse_args(given)
    root = Path(__file__).parents[1]
    params = load_params(root / "params.yaml")
    toolkit, codec = Toolkit.from_params(params, root), Codec.load(arguments.model)
    examples = read_examples(root / "data/validated/heldout.jsonl")
    examples = random.Random(0).sample(examples, min(arguments.examples, len(examples)))
    policy = TransformersPolicy(arguments.model, name="confidence")
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price)
    episodes = rollout(examples, policy, codec, toolkit, options)
    solved = [least(one) for one in episodes if one.solved]
    missed = [least(one) for one in episodes if not one.solved]
    print(f"{len(solved)} solved and {len(missed)} unsolved episodes")
    print("| least_confidence | % of solved ones refused | % of unsolved ones refused |\n|---:|---:|---:|")
    for value in VALUES:
        print(f"| {value} | {share(solved, value)} | {share(missed, value)} |")


if __name__ == "__main__":
    run_benchmark(main)
