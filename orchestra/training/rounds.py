"""What TRL asks of us: the examples of each round, their episodes through the one loop, and their rewards."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestra.config import Grpo, Rollout
from orchestra.errors import TrainingError
from orchestra.rewards.advantages import advantages
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.rollout.loop import rollout
from orchestra.training.health import measure
from orchestra.training.ranks import gathered, whole_weights
from orchestra.types import Category, Example, Price

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec
    from orchestra.rollout.transformers_policy import TransformersPolicy
    from orchestra.tools.toolkit import Toolkit


@dataclass
class Rounds:
    """Runs each generation round's episodes and keeps what the trainer's filters need.

    Each rank runs the groups that TRL hands to it: rank 0 the first ones of the step, in the same order as one process.
    """

    examples: Mapping[str, Example]
    codec: Codec
    toolkit: Toolkit
    limits: Rollout
    price: Price
    settings: Grpo
    policy: TransformersPolicy
    history: list[dict[str, float]] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """Of this rank's last round, in the order TRL asked for."""

    def __call__(self, prompts: Sequence[Sequence[dict[str, Any]]], trainer: Any) -> dict[str, Any]:
        """TRL's rollout function: `prompts` repeats each example `group_size` times, a group's copies together."""
        size = self.settings.group_size
        ids = [prompt[0]["example_id"] for prompt in prompts]
        if any(len(set(ids[i : i + size])) != 1 for i in range(0, len(ids), size)):
            raise TrainingError("a group is split over processes", where="grpo", fix="see the batch sizes")
        self.policy.seed = self.settings.seed * 1_000_003 + trainer.state.global_step
        chosen = [self.examples[name] for name in ids[::size]]
        with whole_weights(trainer) as self.policy.model:
            episodes = rollout(
                chosen, self.policy, self.codec, self.toolkit, self.limits, price=self.price, samples=size,
                batch=len(ids),
            )  # fmt: skip
        groups = [episodes[i : i + size] for i in range(0, len(episodes), size)]
        rewards = [
            group_rewards(group, example.preference, malformed=self.settings.malformed, parts=self.settings.reward)
            for group, example in zip(groups, chosen, strict=True)
        ]
        clipped = [
            advantages(
                group, weights(example.preference, self.settings.reward), min_std=self.settings.min_group_std,
                clip=self.settings.advantage_clip, normalise=self.settings.normalise,
            )
            for group, example in zip(rewards, chosen, strict=True)
        ]  # fmt: skip
        self.advantages = [a for group in clipped for a in group]
        everyone = [row for part in gathered(list(zip(groups, rewards, clipped, strict=True))) for row in part]
        told = ([row[0] for row in everyone], [row[1] for row in everyone], [row[2] for row in everyone])
        self.history.append(measure(*told, self.examples))
        flat: list[Reward] = [r for group in rewards for r in group]
        return {
            "prompt_ids": [list(e.prompt_ids) for e in episodes],
            # TRL needs at least one token; an episode without any has advantage 0 and a mask of 0.
            "completion_ids": [e.completion_ids or [self.codec.eos_id] for e in episodes],
            "env_mask": [e.mask or [0] for e in episodes],
            "logprobs": None,
            "eq2": [r.value for r in flat],
        }


def eq2(prompts: Any, completions: Any, eq2: list[float | None], **kwargs: Any) -> list[float | None]:
    """TRL's reward function: what the rollout already computed per group. None leaves a row out."""
    return eq2


def training_rows(examples: Sequence[Example], settings: Grpo) -> list[dict[str, Any]]:
    """One epoch's rows: exactly as many examples as the steps take, in a seeded order, repeated when there are few.

    Categories come in the shares of `settings.mix`, or as often as they are in `examples` when it is empty. Resuming
    replays the order only within the first epoch, so the whole training is one.
    """
    need = settings.steps * settings.examples_per_step
    by_category: defaultdict[Category, list[Example]] = defaultdict(list)
    for example in examples:
        by_category[example.category].append(example)
    shares = {c: settings.mix.get(c, 0.0) if settings.mix else len(each) for c, each in by_category.items()}
    if not any(shares.values()):
        fix = f"give one of these a share: {', '.join(by_category)}"
        raise TrainingError("no training example is of a category in it", where="params.yaml grpo.mix", fix=fix)
    streams = {c: _shuffled_for_ever(each, random.Random(f"{settings.seed}/{c}")) for c, each in by_category.items()}
    order = random.Random(settings.seed).choices(list(shares), list(shares.values()), k=need)
    return [{"prompt": [{"role": "user", "content": "", "example_id": next(streams[c]).id}]} for c in order]


def _shuffled_for_ever(examples: Sequence[Example], rng: random.Random) -> Iterator[Example]:
    """Each example once, in a new order every time round."""
    while True:
        yield from rng.sample(examples, len(examples))
