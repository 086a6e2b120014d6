"""Groups that try every choice once: episodes share a turn up to its choice point, then take each choice in turn.

An episode of a sampled group tells something about the one choice that it makes. Where a policy makes a choice in 2 of
100 episodes, few groups of 8 hold it, and nothing is learned about it. Here the first turn is sampled once and cut at
its choice point: the name of the expert that it calls, or the word that ends its thought. Every choice c then follows
in an episode of its own. A repeated question costs nothing twice where replies come from a tape or simulated experts.

Given tokens are not sampled, so they are no evidence of what the policy does; their weights have to say it. Let p be
the policy's own probabilities of the choices, scaled to add up to 1, and R the rewards. The gradient of Σ p(c) R(c) is
Σ p(c) (R(c) - b) ∇log p(c) with b = Σ p(c) R(c). So an episode of a group of n has the share w = p(c) / (episodes of c)
and the advantage n · w · (R - b): what n samples give in expectation, without the noise of which choices were sampled.
The tokens after the choice are sampled from the policy, and their gradient has the same weights. The tokens before the
choice are masked, since their gradient adds up to 0. Importance ratios compare the policy after an optimizer step with
the policy before it on the same tokens. Given tokens change nothing there, because p is the policy's before the step.

With uniform weights every choice counts alike: w = 1 / (choices · episodes of c). That is the natural gradient on the
choice (arXiv 1906.00190): its logit moves by its advantage, however seldom the policy makes it. It is no gradient of
what follows, so only the tokens of the choice learn.

With `entropy` a choice also earns for being rare. Rewards of few groups differ by chance, and a choice that fell below
`min_chance` is never tried again; so a policy would settle on what luck preferred.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from orchestra.config.reward import Branch
from orchestra.config.schema import Rollout
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.forced import Beginning
from orchestra.rollout.run import waited_for
from orchestra.training.grpo.branching import points
from orchestra.types import Episode, Example, Turn

if TYPE_CHECKING:
    from orchestra.rollout.policies.transformers import TransformersPolicy
    from orchestra.rollout.render import Codec


@dataclass(frozen=True)
class Choice:
    """One way on from a choice point."""

    name: str
    ids: tuple[int, ...]
    """The turn from its beginning to the end of the choice."""
    chance: float
    """The policy's own probability of it among the choices; they add up to 1."""


@dataclass(frozen=True)
class Plan:
    """What the episodes of one group begin with: the choices in turn, again from the first when all are taken."""

    shared: int
    """Tokens of the turn before its choice point."""
    choices: tuple[Choice, ...]
    size: int
    """Episodes of the group."""
    before: tuple[Turn, ...] = ()
    """The turns before that one, which all episodes have in common."""
    once: bool = False
    """Whether one episode says all about its choice: what follows is greedy, so that its repeats are copies."""
    said: str = ""
    """What the line of the choice says before it."""

    @property
    def played(self) -> int:
        """Episodes that are played; the others are copies of them."""
        return min(self.size, len(self.choices)) if self.once else self.size

    def choice(self, sample: int) -> Choice:
        return self.choices[sample % len(self.choices)]

    def beginning(self, sample: int) -> Beginning:
        """What the episode of that sample begins with."""
        return Beginning(self.choice(sample).ids, self.before)

    def shares(self, weights: str) -> list[float]:
        """How much each episode counts; they add up to 1. A copy counts nothing, so that no pass computes it again."""
        of = [sample % len(self.choices) for sample in range(self.played)]
        taken = Counter(of)
        chance = [one.chance if weights == "policy" else 1 / len(self.choices) for one in self.choices]
        total = sum(chance[place] for place in taken)
        return [chance[place] / taken[place] / total for place in of] + [0.0] * (self.size - self.played)

    def gains(self, advantages: Sequence[float], weights: str, left_out: Collection[int] = ()) -> dict[str, float]:
        """What each choice earned above the group's mean, without its share; `left_out`: samples without a reward."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for sample, share in enumerate(self.shares(weights)):
            if share and sample not in left_out:
                found[self.choice(sample).name].append(advantages[sample] / (self.size * share))
        return {name: fmean(each) for name, each in found.items()}

    def paid(self, gains: Mapping[str, float], weights: str, left_out: Collection[int] = ()) -> list[float]:
        """The advantage of each episode where its choice earned that: the other way round of `gains`."""
        counts = [0.0 if n in left_out else share for n, share in enumerate(self.shares(weights))]
        return [self.size * share * gains[self.choice(n).name] if share else 0.0 for n, share in enumerate(counts)]

    def bonus(self, entropy: float, weights: str) -> list[float]:
        """The advantage of each episode for the entropy of its choice (`Branch.entropy`); they add up to 0."""
        shares = self.shares(weights)
        earned = [-entropy * math.log(self.choice(sample).chance) for sample in range(self.size)]
        mean = sum(share * one for share, one in zip(shares, earned, strict=True))
        return [self.size * share * (one - mean) for share, one in zip(shares, earned, strict=True)]

    def mask(self, episode: Episode, weights: str) -> list[int]:
        """1 for the tokens of `completion_ids` that learn: (time,). All are masked before the choice point."""
        own, start = episode.mask, len(Beginning(before=self.before).tokens)
        point, end = start + self.shared, start + len(self.choice(episode.sample).ids)
        return [m * (place >= point and (weights == "policy" or place < end)) for place, m in enumerate(own)]


def own_share(share: float, own: int, rank: int = 0, ranks: int = 1) -> int:
    """How many of this rank's `own` groups are of that share of all ranks' groups, which the ranks part evenly."""
    most = math.ceil(share * own * ranks)
    return (rank + 1) * most // ranks - rank * most // ranks


def plan(
    examples: Sequence[Example],
    first: Mapping[str, list[int]],
    policy: TransformersPolicy,
    codec: Codec,
    limits: Rollout,
    branch: Branch,
    size: int,
    played: Sequence[Episode] = (),
    most: int | None = None,
) -> list[Plan | None]:
    """A plan for each of the first `most` examples (default: by `branch.share`); None where there is no choice point,
    and for the others: their groups are sampled.

    `first` has their `first_turns`. `played` holds an episode of each of the first examples, whose later turns are
    tried. They all try turns of one number, which is drawn among the later turns; the first turn where an episode has
    none of that number.
    """
    wanted = examples[: own_share(branch.share, len(examples)) if most is None else most]
    depth = _depth(played, random.Random(f"later/{policy.seed}"))
    later = []
    for example, episode in zip(wanted, played, strict=False):
        if depth and len(episode.turns) > depth:
            conversation = Conversation(example, codec.prompt(example), turns=list(episode.turns[:depth]))
            later.append((conversation, list(episode.turns[depth].ids)))
    found = _plans(later, policy, codec, limits, branch, size)
    rest = [Conversation(one, codec.prompt(one)) for one in wanted if found.get(one.id) is None]
    found |= _plans([(c, first[c.example.id]) for c in rest], policy, codec, limits, branch, size)
    return [found.get(example.id) for example in examples]


def _depth(played: Sequence[Episode], rng: random.Random) -> int:
    """The number of a later turn, each alike however few episodes have it; 0: there is none.

    What asking again is worth hangs on what is done after it. Few episodes of a policy that mostly answers show that.
    """
    most = max((len(episode.turns) for episode in played), default=0)
    return rng.randint(1, most - 1) if most > 1 else 0


@dataclass(frozen=True)
class _Tried:
    """A turn that was sampled, and the ways on from its choice point."""

    conversation: Conversation
    """Up to that turn."""
    ways: dict[str, tuple[int, ...]]
    shared: int
    """How many tokens all ways begin with."""
    said: str


def _plans(
    turns: Sequence[tuple[Conversation, list[int]]],
    policy: TransformersPolicy,
    codec: Codec,
    limits: Rollout,
    branch: Branch,
    size: int,
) -> dict[str, Plan | None]:
    """By example id, the plan of each turn that was sampled."""
    tried = []
    for conversation, turn in turns:
        found = points.ways(conversation, turn, codec, limits, branch)
        said = points.said(codec.decode(turn), conversation.example, branch)
        tried.append(_Tried(conversation, found, points.shared(list(found.values())), said))
    scores = _scores(policy, tried)
    return {
        one.conversation.example.id: _plan(one, score, policy.seed, branch, size)
        for one, score in zip(tried, scores, strict=True)
    }


def _plan(tried: _Tried, scores: list[float], seed: int, branch: Branch, size: int) -> Plan | None:
    """The plan of one turn; None where nothing is open."""
    choices = _likely(tried.ways, scores, branch.min_chance)
    if len(choices) > size:
        rng = random.Random(f"branch/{seed}/{tried.conversation.example.id}")
        choices = rng.sample(sorted(choices, key=lambda one: one.name), size)
    total = sum(one.chance for one in choices)
    scaled = tuple(replace(one, chance=one.chance / total) for one in choices)
    if len(scaled) < 2 or max(one.chance for one in scaled) > branch.settled:
        return None
    return Plan(tried.shared, scaled, size, tuple(tried.conversation.turns), branch.greedy, tried.said)


def _likely(ways: dict[str, tuple[int, ...]], scores: list[float], least: float) -> list[Choice]:
    """The choices with at least that chance among all."""
    chances = [math.exp(score - max(scores)) for score in scores]
    rows = zip(ways.items(), chances, strict=True)
    return [Choice(name, ids, one / sum(chances)) for (name, ids), one in rows if one / sum(chances) >= least]


def tried(groups: Sequence[Sequence[Episode]], plans: Sequence[Plan | None], branch: Branch | None) -> dict[str, float]:
    """What is logged of a branched step: how many groups were, how open the choice is, and what the policy would earn.

    Other measures of the step count each episode alike: they are those of the choices tried. {} without branching.
    """
    if branch is None:
        return {}
    rows = [(group, plan) for group, plan in zip(groups, plans, strict=True) if plan is not None]
    found = {"branched": len(rows) / len(groups) if groups else 0.0}
    if rows:
        chances = [[one.chance for one in plan.choices] for _, plan in rows]
        found["choice_entropy"] = fmean(-sum(p * math.log(p) for p in each if p > 0) for each in chances)
        shares = [(plan.shares("policy"), group) for group, plan in rows]
        found["expected_accuracy"] = fmean(sum(p * e.solved for p, e in zip(*row, strict=True)) for row in shares)
        found["expected_usd"] = fmean(sum(p * float(e.cost_usd) for p, e in zip(*row, strict=True)) for row in shares)
    return found


def first_turns(
    examples: Sequence[Example], policy: TransformersPolicy, codec: Codec, limits: Rollout
) -> dict[str, list[int]]:
    """By example id, the tokens of a first turn; [] where it did not end.

    They are sampled as those of sample 0, so that a plan depends on the policy, its seed and the examples alone.
    """

    async def generated() -> list[Generation]:
        policy.begin(conversations)
        try:
            return await policy.generate(conversations, room)
        finally:
            policy.end()

    conversations = [Conversation(one, codec.prompt(one)) for one in examples]
    room = [max(1, min(limits.max_turn_tokens, limits.max_tokens - c.length)) for c in conversations]
    turns = waited_for(generated()) if conversations else []
    return {one.id: turn.ids if turn.stop == "stop" else [] for one, turn in zip(examples, turns, strict=True)}


def _scores(policy: TransformersPolicy, tried: Sequence[_Tried]) -> list[list[float]]:
    """For each conversation, the log-probability of each way's tokens from the choice point on, as the policy samples.

    Prompts and what the ways share are read once, all together.
    """
    import torch

    from orchestra.rollout.inference.contexts import open_contexts

    asked = [n for n, one in enumerate(tried) if len(one.ways) > 1]
    found = [[0.0] * len(one.ways) for one in tried]
    if not asked:
        return found
    # A row for each way: (conversation, way, its tokens from the choice point on).
    rows = [(n, place, way[tried[n].shared :]) for n in asked for place, way in enumerate(tried[n].ways.values())]
    begun = {n: [*tried[n].conversation.ids, *next(iter(tried[n].ways.values()))[: tried[n].shared]] for n in asked}
    heat = policy.temperature or 1.0

    def add(scored: Sequence[int], logits: torch.Tensor, step: int) -> None:
        """Score the token number `step` of rows by logits (rows, vocabulary)."""
        logp = torch.log_softmax(logits.float() / heat, dim=-1)
        ids = torch.tensor([rows[row][2][step] for row in scored], device=logp.device)
        for row, value in zip(scored, logp.gather(1, ids[:, None])[:, 0].tolist(), strict=True):
            found[rows[row][0]][rows[row][1]] += value

    with torch.inference_mode():
        owner = [asked.index(n) for n, _, _ in rows]
        contexts = open_contexts(policy.model, [begun[n][:-1] for n in asked], owner)
        # What comes first after the shared tokens has the same chances in every way: the first row tells them.
        first = [owner.index(place) for place in range(len(asked))]
        told = contexts.feed(first, [begun[n][-1:] for n in asked])
        add(range(len(rows)), told[torch.tensor(owner, device=told.device)], 0)
        live = [row for row in range(len(rows)) if len(rows[row][2]) > 1]
        chunks = [[*([] if row in first else begun[rows[row][0]][-1:]), rows[row][2][0]] for row in live]
        for step in range(1, max(len(tail) for _, _, tail in rows)):
            contexts.keep(live)
            add(live, contexts.feed(live, chunks), step)
            live = [row for row in live if len(rows[row][2]) > step + 1]
            chunks = [[rows[row][2][step]] for row in live]
    return found
