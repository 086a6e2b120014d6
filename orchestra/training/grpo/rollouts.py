"""Rollouts for TRL: the examples of each round, their episodes through the one loop, and their rewards."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestra.config.reward import Branch
from orchestra.config.schema import Grpo, Rollout
from orchestra.errors import TrainingError
from orchestra.rewards.advantages import Group, step_advantages
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.rewards.limits import Multipliers
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.policies.forced import Beginning, ForcedPolicy
from orchestra.training.distributed import gathered, rank, wait_for_all, whole_weights, world_size
from orchestra.training.grpo.branching.means import ChoiceMeans
from orchestra.training.grpo.branching.plan import Plan, first_turns, own_share, tried
from orchestra.training.grpo.branching.plan import plan as branches
from orchestra.training.grpo.engine.ahead import Ahead
from orchestra.training.grpo.health import measure
from orchestra.training.grpo.spent import StepSpending
from orchestra.types import Episode, Example, Price, add_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.policies.transformers import TransformersPolicy
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit
    from orchestra.training.grpo.engine.sync import RolloutEngine

Row = tuple[list[Episode], tuple[list[Reward], dict[str, float]], Plan | None]
"""A group: its episodes, its rewards with the weights P behind them, and its plan where it was branched."""


MOST_CHOICES = 1000
"""More than any turn has: all of them are wanted."""


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
    engine: RolloutEngine | None = None
    """What plays the episodes where `policy` does not."""
    spent: StepSpending | None = None
    """What this process books; None: nothing is told of dollars."""
    order: Sequence[str] = ()
    """Ids of the examples that training takes, in its order: what comes next can be played ahead."""
    history: list[dict[str, float]] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """Of this rank's last round, in the order TRL asked for."""
    unlogged_usd: Decimal = Decimal(0)
    """What all ranks paid for rounds that are not logged yet."""

    def __post_init__(self) -> None:
        self.multipliers = Multipliers(self.settings.constraint)
        branch = self.settings.branch
        self.means = ChoiceMeans(branch.mean_of, branch.own) if branch is not None and branch.mean_of else None
        self.ahead = Ahead(self._served) if self.settings.steps_ahead else None

    def resume(self, history: Sequence[dict[str, float]], means: Sequence[Any] = ()) -> None:
        """Take up what the rounds before a restart left: their measures, the multipliers among them, and the means."""
        self.history += history
        if self.means is not None:
            self.means.restore(means)
        if self.history:
            self.multipliers.restore(self.history[-1])

    def __call__(self, prompts: Sequence[Sequence[dict[str, Any]]], trainer: Any) -> dict[str, Any]:
        """TRL's rollout function: `prompts` repeats each example `group_size` times, a group's copies together."""
        size = self.settings.group_size
        ids = [prompt[0]["example_id"] for prompt in prompts]
        if any(len(set(ids[i : i + size])) != 1 for i in range(0, len(ids), size)):
            raise TrainingError("a group is split over processes", where="grpo", fix="see the batch sizes")
        step = trainer.state.global_step
        self.policy.seed = self._seed(step)
        chosen = [self.examples[name] for name in ids[::size]]
        played, waited = self.ahead.take(chosen) if self.ahead is not None else (None, 0.0)
        with self.playable(trainer, branches=self.settings.branch is not None) as self.policy.model:
            groups, plans = self._episodes(chosen) if played is None else (played, [None] * len(chosen))
        self.book()
        if self.ahead is not None:
            self._play_ahead(step, len(chosen))
        scored = [self._rewards(group, example) for group, example in zip(groups, chosen, strict=True)]
        own = list(zip(groups, scored, plans, strict=True))
        everyone = [row for part in gathered(own) for row in part]
        self._step(everyone, own_from=rank() * len(own), own=len(own))
        episodes = [episode for group in groups for episode in group]
        masks = [_trimmed(self._mask(e, plan)) for group, plan in zip(groups, plans, strict=True) for e in group]
        if self.engine is not None:
            self.history[-1] |= self.engine.measures
        if self.ahead is not None:
            self.history[-1] |= {"engine/staleness": float(played is not None), "engine/waited_s": waited}
        return {
            "prompt_ids": [list(e.prompt_ids) for e in episodes],
            # What follows the last token that learns changes no gradient: attention looks back only.
            # TRL needs at least one token; an episode without any has advantage 0 and a mask of 0.
            "completion_ids": [
                e.completion_ids[: len(mask)] or [self.codec.eos_id] for e, mask in zip(episodes, masks, strict=True)
            ],
            "env_mask": [mask or [0] for mask in masks],
            "logprobs": None if self.engine is None else self._logprobs(episodes, masks),
            "eq2": [r.value for rewards, _ in scored for r in rewards],
        }

    @contextmanager
    def playable(self, trainer: Any, *, branches: bool = False) -> Iterator[PreTrainedModel]:
        """The model as it is now, once the engine has its weights; every rank must enter.

        Where the engine plays, no rank keeps what is another's under ZeRO-3, unless it plans `branches` itself.
        """
        if self.ahead is not None:
            # What is played ahead keeps the weights that it began with, and its tools to itself.
            self.ahead.settle()
        if self.engine is not None:
            # What another rank still plays needs its episodes' weights in the server, and no GPU that waits in NCCL.
            wait_for_all()
        with ExitStack() as whole:
            model = whole.enter_context(whole_weights(trainer))
            if self.engine is not None:
                self.engine.sync(model)
                if not branches:
                    whole.close()
            yield model

    def book(self) -> None:
        """Count what the ranks have paid; every rank must enter, and nothing may be played meanwhile."""
        if self.spent is not None:
            self.unlogged_usd = add_up([self.unlogged_usd, *gathered(self.spent.steps())])

    def logged(self) -> dict[str, float]:
        """`spent_usd` of what is not logged yet; {} where nothing is told of dollars."""
        usd, self.unlogged_usd = self.unlogged_usd, Decimal(0)
        return {"spent_usd": float(usd)} if self.spent is not None else {}

    def close(self, *, wait: bool = True) -> None:
        """Let go of what was played ahead."""
        if self.ahead is not None:
            self.ahead.close(wait=wait)

    def _seed(self, step: int) -> int:
        return self.settings.seed * 1_000_003 + step

    def _play_ahead(self, step: int, own: int) -> None:
        """Begin this rank's next round, if there is one, with the weights that the server has now."""
        assert self.ahead is not None
        settings = self.settings
        begin = (step // settings.num_iterations + 1) * settings.examples_per_step + rank() * own
        following = [self.examples[name] for name in self.order[begin : begin + own]]
        if following:
            self.ahead.start(following, self._seed(step + settings.num_iterations))

    def _served(self, chosen: Sequence[Example], seed: int) -> list[list[Episode]]:
        """A group for each example, through the engine."""
        assert self.engine is not None
        size = self.settings.group_size
        policy = self.engine.policy(self.settings.temperature, seed)
        options = RolloutOptions(self.limits, self.price, samples=size, batch=len(chosen) * size)
        made = rollout(chosen, policy, self.codec, self.toolkit, options)
        return [made[i : i + size] for i in range(0, len(made), size)]

    def _logprobs(self, episodes: Sequence[Episode], masks: Sequence[list[int]]) -> list[list[float]]:
        """Sampled log-probabilities, as long as the masks."""
        return [sampled_logprobs(e)[: len(mask)] or [math.nan] for e, mask in zip(episodes, masks, strict=True)]

    def _episodes(self, chosen: list[Example]) -> tuple[list[list[Episode]], list[Plan | None]]:
        """A group for each example, and what its episodes had to begin with."""
        size, branch = self.settings.group_size, self.settings.branch
        plans: list[Plan | None] = [None] * len(chosen)
        if branch is not None:
            later = chosen[: own_share(branch.later * branch.share, len(chosen), rank(), world_size())]
            first = first_turns(chosen, self.policy, self.codec, self.limits)
            begun = self._starts(later, first, branch) if branch.starts == "even" else {}
            played = self._played(later, begun, samples=[1] * len(later))
            wanted = own_share(branch.share, len(chosen), rank(), world_size())
            plans = branches(chosen, first, self.policy, self.codec, self.limits, branch, size, played, wanted)
        # Played apart: where what follows a choice is greedy, and where other turns come before it.
        groups: list[list[Episode]] = [[] for _ in chosen]
        sorts = [(branch is not None and branch.greedy and p is not None, len(p.before) if p else 0) for p in plans]
        for greedy, turns in sorted(set(sorts)):
            places = [place for place, sort in enumerate(sorts) if sort == (greedy, turns)]
            begun = {
                (chosen[place].id, sample): plan.beginning(sample)
                for place in places
                if (plan := plans[place]) is not None
                for sample in range(plan.played)
            }
            counts = [size if (plan := plans[place]) is None else plan.played for place in places]
            made = iter(self._played([chosen[place] for place in places], begun, samples=counts, greedy=greedy))
            for place, count in zip(places, counts, strict=True):
                own = list(islice(made, count))
                groups[place] = own + [own[n % count].model_copy(update={"sample": n}) for n in range(count, size)]
        return groups, plans

    def _starts(
        self, chosen: Sequence[Example], first: Mapping[str, list[int]], branch: Branch
    ) -> dict[tuple[str, int], Beginning]:
        """The first turn of each example that has a choice, with each choice as likely as any other."""
        every = branches(chosen, first, self.policy, self.codec, self.limits, branch, MOST_CHOICES)
        rng = random.Random(f"starts/{self.policy.seed}")
        return {
            (example.id, 0): plan.beginning(rng.randrange(len(plan.choices)))
            for example, plan in zip(chosen, every, strict=True)
            if plan is not None
        }

    def _played(
        self,
        chosen: Sequence[Example],
        begun: Mapping[tuple[str, int], Beginning],
        *,
        samples: Sequence[int],
        greedy: bool = False,
    ) -> list[Episode]:
        """As many episodes of each example as `samples` tells, of which some have a beginning."""
        heat = self.policy.temperature
        inner: Policy = self.policy
        if self.engine is not None:
            inner = self.engine.policy(0.0 if greedy else heat, self.policy.seed)
        policy = ForcedPolicy(inner, begun) if begun else inner
        options = RolloutOptions(self.limits, self.price, samples=samples, batch=max(1, sum(samples)))
        self.policy.temperature = 0.0 if greedy else heat
        try:
            return rollout(chosen, policy, self.codec, self.toolkit, options) if chosen else []
        finally:
            self.policy.temperature = heat

    def _rewards(self, group: Sequence[Episode], example: Example) -> tuple[list[Reward], dict[str, float]]:
        """The rewards of a group and the weights P behind them."""
        preference, parts = example.preference, self.settings.reward
        limit, toolbox = self.multipliers.limit(preference.kind), example.toolbox
        found = group_rewards(
            group, preference, malformed=self.settings.malformed, parts=parts, shape=self.settings, toolbox=toolbox,
            limit=limit,
        )  # fmt: skip
        return found, weights(preference, parts, self.settings, toolbox, limit)

    def _step(self, rows: Sequence[Row], own_from: int, own: int) -> None:
        """Advantages, multipliers and measures of a step, from the groups of every rank."""
        settings = self.settings
        shares = [plan.shares(settings.branch.weights) if plan and settings.branch else None for _, _, plan in rows]
        found = step_advantages(
            [Group(rewards, weighed, share) for (_, (rewards, weighed), _), share in zip(rows, shares, strict=True)],
            min_std=settings.min_group_std, clip=settings.advantage_clip, normalise=settings.normalise, shape=settings,
        )  # fmt: skip
        if settings.branch is not None and self.means is not None:
            found = self._smoothed(rows, found, settings.branch, self.means)
        if settings.branch is not None and settings.branch.entropy:
            found = [_open(group, row, settings.branch) for group, row in zip(found, rows, strict=True)]
        self.advantages = [a for group in found[own_from : own_from + own] for a in group]
        groups = [group for group, _, _ in rows]
        measured = measure(groups, [rewards for _, (rewards, _), _ in rows], found, self.examples)
        spent: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for group, _, plan in rows:
            kind = self.examples[group[0].example_id].preference.kind
            chances = plan.shares("policy") if plan else [1 / len(group)] * len(group)
            spent[kind] += [(p, float(e.cost_usd)) for p, e in zip(chances, group, strict=True) if e.counted]
        means = self.multipliers.ascend(spent)
        measured |= {f"limited_usd/{kind}": usd for kind, usd in means.items()} | self.multipliers.measures()
        if settings.branch is not None:
            # Of tokens that were given there is none, and what is tried no longer hangs on it.
            measured.pop("entropy", None)
        self.history.append(measured | tried(groups, [plan for _, _, plan in rows], settings.branch))

    def _smoothed(
        self, rows: Sequence[Row], advantages: list[list[float]], branch: Branch, means: ChoiceMeans
    ) -> list[list[float]]:
        """The advantages of branched groups over the groups before (`Branch.mean_of`)."""
        counted = []
        for place, (group, (rewards, _), plan) in enumerate(rows):
            if plan is None:
                continue
            out = {sample for sample, reward in enumerate(rewards) if reward.value is None}
            if gains := plan.gains(advantages[place], branch.weights, out):
                kind = self.examples[group[0].example_id].preference.kind
                counted.append((place, plan, out, ((kind, plan.said), gains)))
        smooth = means.learn([one for *_, one in counted])
        paid = {
            place: plan.paid(gains, branch.weights, out)
            for (place, plan, out, _), gains in zip(counted, smooth, strict=True)
        }
        return [paid.get(place, own) for place, own in enumerate(advantages)]

    def _mask(self, episode: Episode, plan: Plan | None) -> list[int]:
        branch = self.settings.branch
        return episode.mask if plan is None or branch is None else plan.mask(episode, branch.weights)


def _open(advantages: list[float], row: Row, branch: Branch) -> list[float]:
    """The advantages of a group with what its choices earn for being rare; an episode without a reward keeps its 0."""
    _, (rewards, _), plan = row
    if plan is None:
        return advantages
    bonus = plan.bonus(branch.entropy, branch.weights)
    return [a if reward.value is None else a + b for a, b, reward in zip(advantages, bonus, rewards, strict=True)]


def _trimmed(mask: list[int]) -> list[int]:
    """The mask up to its last 1."""
    learned = [place for place, one in enumerate(mask) if one]
    return mask[: learned[-1] + 1] if learned else []


def sampled_logprobs(episode: Episode) -> list[float]:
    """Log-probability with which each of `completion_ids` was sampled; NaN where it is not known: (time,)."""
    found: list[float] = []
    for turn in episode.turns:
        known = len(turn.logprobs) == len(turn.ids)
        found += [*turn.logprobs] if known else [math.nan] * len(turn.ids)
        found += [0.0] * len(turn.observation_ids)
    return found or [math.nan]


def eq2(prompts: Any, completions: Any, eq2: list[float | None], **kwargs: Any) -> list[float | None]:
    """TRL's reward function: what the rollout already computed per group. None leaves a row out."""
    return eq2
