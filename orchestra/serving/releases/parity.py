"""Parity of a new server: the same tokens as the checkpoint in this process, on a canary and on a smoke set.

What the tools replied to the checkpoint is replayed to the server: real experts answer in other words each time, take
minutes and cost dollars.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params
from orchestra.errors import DataError, ServiceError
from orchestra.rollout.policies.base import Conversation, Policy
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.releases import vllm
from orchestra.system.progress import while_waiting
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Category, Episode, Example, StopReason, add_up

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Generation
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit

CANARY_TOKENS = 32
PLAYER = "smoke set"
"""Name of all that play it: replies are kept for a policy's name."""
LOST = (StopReason.TOOL_FAILURE, StopReason.CANCELLED)


@dataclass(eq=False)
class Proof:
    """The smoke set as the checkpoint works it through in this process, and the means to compare a server with it."""

    params: Params
    codec: Codec
    toolkit: Toolkit
    examples: Sequence[Example]
    canaries: list[Generation]
    episodes: list[Episode]
    kept: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)
    """What the tools replied so far, where no cassette is named."""

    @classmethod
    def prepare(
        cls, root: Path, folder: Path, params: Params, examples: Sequence[Example], budget: Budget | None = None
    ) -> Self:
        """Load the checkpoint and run the smoke set; raises `OrchestraError` when it or a tool cannot be used, and when
        the budget, which books what both players spend, does not allow it."""
        import torch

        from orchestra.rollout.policies.transformers import load_model
        from orchestra.rollout.render import Codec
        from orchestra.serving.engines.finite import FinitePolicy
        from orchestra.tools.toolkit import Toolkit

        if not examples:
            raise DataError("no held-out example to try", where="smoke set", fix="run the validate stage")
        toolkit = Toolkit.from_params(params, root, budget=budget)
        proof = cls(params, Codec.load(folder), toolkit, examples, [], [])
        # In the type that serves: like is compared with like.
        model = load_model(folder, dtype=getattr(torch, params.deploy.vllm.dtype))
        policy = FinitePolicy(folder, PLAYER, model)
        proof.canaries, proof.episodes = asyncio.run(proof._work(policy, first=True))
        del model, policy
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        _usable(proof.episodes, toolkit)
        return proof

    def check(self, root: Path, url: str, name: str) -> str:
        """Put a server to the proof; what it gave, for people. Raises `ServiceError` when it is not the checkpoint."""
        policy = VllmPolicy(url, vllm.SERVED_NAME, name=PLAYER, timeout_s=vllm.TURN_S, api_key=vllm.api_key(root))
        canaries, episodes = asyncio.run(self._work(policy, first=False))
        tolerance = vllm.TOLERANCES[self.params.deploy.vllm.dtype]
        why = vllm.disagreement(self.canaries, canaries, tolerance)
        if why is not None:
            fix = "the server does not serve this checkpoint's weights: see its log"
            raise ServiceError(f"the canary failed: {why}", where=name, fix=fix)
        _usable(episodes, self.toolkit)
        same = sum(a.stop == b.stop and a.answer == b.answer for a, b in zip(self.episodes, episodes, strict=True))
        # A near tie between two tokens may fall the other way once.
        if len(episodes) - same > tolerance.allowed(len(episodes)):
            what = f"{len(episodes) - same} of {len(episodes)} smoke examples ended otherwise than in process"
            raise ServiceError(what, where=name, fix="the server does not serve this checkpoint: see its log")
        return f"canary equal; {same} of {len(episodes)} smoke examples as in process"

    @property
    def summary(self) -> str:
        """What the smoke set gave in this process."""
        spent = add_up(episode.cost_usd for episode in self.episodes)
        solved = sum(episode.solved for episode in self.episodes)
        return f"{len(self.episodes)} smoke examples, {solved} solved, ${spent:.4f}"

    @property
    def question(self) -> Example:
        """The example to show: a solved one, else one with an answer; rather one that asks an expert."""
        pairs = list(zip(self.examples, self.episodes, strict=True))

        def merit(pair: tuple[Example, Episode]) -> tuple[bool, bool, bool, bool]:
            example, episode = pair
            return episode.solved, bool(episode.answer), bool(episode.tool_counts), example.category is Category.TOPIC

        return max(pairs, key=merit)[0]

    def _replies(self, *, first: bool) -> Cassette:
        """The next player's: it gets what the first one was replied, failures too."""
        named = self.toolkit.cassette
        if named is None:
            return Cassette(Path(self.kept.name) / "replies.jsonl", exact=not first)
        return Cassette(named.path, "auto" if named.mode == "record" and not first else named.mode, exact=not first)

    async def _work(self, policy: Policy, *, first: bool) -> tuple[list[Generation], list[Episode]]:
        """`first`: the checkpoint plays in this process; else it is a server, which gets the replies of that play."""
        from orchestra.rollout.loop import RolloutOptions, run_episodes

        prompts = [Conversation(example, self.codec.prompt(example)) for example in self.examples]
        canaries = await vllm.generate(policy, prompts, CANARY_TOKENS)
        options = RolloutOptions(self.params.rollout, self.toolkit.catalogue.policy_price)
        toolkit = self.toolkit.with_cassette(self._replies(first=first))
        with while_waiting("the smoke set is played"):
            episodes = await run_episodes(self.examples, policy, self.codec, toolkit, options)
        return canaries, episodes


def _usable(episodes: Sequence[Episode], toolkit: Toolkit) -> None:
    lost = [episode for episode in episodes if episode.stop in LOST]
    if lost:
        reason = toolkit.resources.failures.most_frequent or lost[0].stop.value
        what = f"{len(lost)} of {len(episodes)} smoke examples were lost to infrastructure ({reason})"
        raise ServiceError(what, where="smoke set", fix="see that every tool of the catalogue can be used")
