"""What slow tools cost a rollout, turn by turn and episode by episode: `python -m benchmarks.rollout_latency`."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from benchmarks.bench import ROOT
from benchmarks.command import judge, run_benchmark, usage
from orchestra.config.schema import Rollout
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.render import Codec
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.types import (
    Category,
    Component,
    Episode,
    Example,
    Preference,
    Price,
    Provenance,
    ToolCall,
    ToolSpec,
    Verifier,
)

MEDIAN_S, P99_S = 0.2, 3.0
"""Of a tool's seconds, which are log-normal."""
SIGMA = math.log(P99_S / MEDIAN_S) / 2.3263
"""A normal variable exceeds 2.3263 standard deviations in 1 of 100 cases."""
FASTER, NEAR = 3.0, 0.9
"""Bars: how many times faster than turn by turn; the slowest episode's own seconds as a share of the whole."""


@dataclass
class SlowTool:
    """Replies after seconds that are drawn for each call of an episode, the same in every run."""

    scale: float
    waited_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each episode waited for its calls."""
    component: Component = Component.SANDBOX

    def seconds(self, episode: str, call: int) -> float:
        drawn = random.Random(f"{episode}/{call}").lognormvariate(math.log(MEDIAN_S), SIGMA)
        return drawn * self.scale

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        episode, call = str(arguments["expression"]).split("+")
        seconds = self.seconds(episode, int(call))
        self.waited_s[episode] = self.waited_s.get(episode, 0.0) + seconds
        await asyncio.sleep(seconds)
        return ToolResult(text=call, cost_usd=Decimal(0), latency_s=seconds)


@dataclass(frozen=True)
class Result:
    together_s: float
    by_episode_s: float
    slowest_s: float
    """Of the episode that waited longest, all by itself."""
    episodes: int
    whole: bool
    """Whether both ways gave each episode exactly once, with all of its calls."""

    @property
    def faster(self) -> float:
        return self.together_s / self.by_episode_s

    @property
    def near(self) -> float:
        return self.slowest_s / self.by_episode_s


class Together(ScriptedPolicy):
    """Asked for the turns of all episodes at once, as a policy is that computes a batch in one piece."""

    by_episode = False


def measure(episodes: int, calls: int, scale: float = 1.0) -> Result:
    """Run as many episodes of so many calls in both ways; `scale` shortens every wait."""
    tool = SlowTool(scale)
    catalogue = Catalogue.load(ROOT / "data/catalogue/tools.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15")
    toolkit = Toolkit(catalogue, {}, ROOT, tools={"calculator": tool})
    codec = Codec.load(ROOT / "models/base/embedded")
    examples = [_example(str(number), catalogue.spec("calculator")) for number in range(episodes)]

    def decide(conversation: Conversation) -> str:
        done = len(conversation.turns)
        if done == calls:
            return format_answer("7")
        asked = {"expression": f"{conversation.example.id}+{done}"}
        return format_call(ToolCall(name="calculator", arguments=asked), "next")

    limits = Rollout(max_turns=calls + 1, max_turn_tokens=200, max_tokens=100_000)
    options = RolloutOptions(limits, Price())
    found: list[tuple[float, list[Episode]]] = []
    kinds: Sequence[Callable[..., ScriptedPolicy]] = (Together, ScriptedPolicy)
    for kind in kinds:
        tool.waited_s.clear()
        policy = kind("script", decide, codec.turn)
        began = time.perf_counter()
        ended = asyncio.run(run_episodes(examples, policy, codec, toolkit, options))
        found.append((time.perf_counter() - began, ended))
    whole = all(
        [one.example_id for one in ended] == [one.id for one in examples]
        and all(len(one.turns) == calls + 1 and one.answer == "7" for one in ended)
        for _, ended in found
    )
    return Result(found[0][0], found[1][0], max(tool.waited_s.values()), episodes, whole)


def _example(name: str, spec: ToolSpec) -> Example:
    return Example(
        id=name, kind="question", category=Category.ARITHMETIC, instruction="add up", toolbox=(spec,),
        preference=Preference(kind="neutral", words="", outcome=1, compute=0, latency=0),
        verifier=Verifier(kind="exact", answer="7"),
        provenance=Provenance(source="benchmark", licence="Apache-2.0", generator=__name__, seed=0),
    )  # fmt: skip


def bars(result: Result) -> dict[str, bool]:
    """By name, whether each is met."""
    return {
        "faster": result.faster >= FASTER,
        "the slowest episode's share": result.near >= NEAR,
        "every episode once and whole": result.whole,
    }


def report(result: Result) -> str:
    return "\n".join(
        [
            f"{result.episodes} episodes; a call takes {MEDIAN_S} s (median) and {P99_S:g} s (1 of 100).",
            "",
            "| way | s |",
            "|---|---|",
            f"| turn by turn | {result.together_s:.2f} |",
            f"| episode by episode | {result.by_episode_s:.2f} |",
            f"| the slowest episode's calls | {result.slowest_s:.2f} |",
            "",
            f"Faster: {result.faster:.1f} x (bar: {FASTER:g} x). The slowest episode alone needs {result.near:.0%} of "
            f"the time (bar: {NEAR:.0%}). Every episode once and whole: {'yes' if result.whole else 'NO'}.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=12)
    chosen = parser.parse_args(arguments)
    result = measure(chosen.episodes, chosen.calls)
    print(report(result))
    return judge(bars(result))


if __name__ == "__main__":
    run_benchmark(main)
