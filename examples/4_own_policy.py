"""Runs the loop with two policies of your own, and rewards their episodes as a group under what the user prefers."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from orchestra import Codec, RolloutOptions, ScriptedPolicy, Toolkit, advantages, group_rewards, load_params

from orchestra import question, run_episodes, weights  # isort: skip
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.experts.simulated import AnswerBook, BookEntry
from orchestra.types import ToolCall, ToolSpec

ROOT = Path(__file__).parents[1]
KNOWN = [
    BookEntry(question=f"who wrote Opal {n}?", topic="music", answer="Tesk", wrong=("Burr", "Olm")) for n in range(6)
]


def always(choose: Callable[[list[ToolSpec]], ToolSpec]) -> Callable[[Conversation], str]:
    """Asks the expert that `choose` names, and repeats its answer."""

    def decide(conversation: Conversation) -> str:
        if not conversation.turns:
            return format_call(ToolCall(name=choose(list(conversation.example.toolbox)).name))
        return format_answer(conversation.turns[-1].observation or "")

    return decide


def main() -> None:
    params, codec = load_params(ROOT / "params.yaml"), Codec.load(ROOT / "models/base/embedded")
    toolkit = Toolkit.from_params(params, ROOT, book=AnswerBook.of(KNOWN))
    experts = ["gpt-5", "gpt-5-mini", "llama-3.3-70b"]
    items = [question(entry.question, toolkit, tools=experts, answer=entry.answer) for entry in KNOWN]
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price)
    policies = {
        "cheapest": always(lambda tools: min(tools, key=lambda spec: spec.call_usd)),
        "most expensive": always(lambda tools: max(tools, key=lambda spec: spec.call_usd)),
    }
    found = {
        name: asyncio.run(run_episodes(items, ScriptedPolicy(name, decide, codec.turn), codec, toolkit, options))
        for name, decide in policies.items()
    }
    for name, episodes in found.items():
        solved, cost_usd = sum(e.solved for e in episodes), sum(e.cost_usd for e in episodes)
        print(f"{name}: {solved} of {len(items)} solved, ${cost_usd:f} with simulated experts")
    settings, preference = params.grpo, items[0].preference
    rewards = group_rewards([episodes[0] for episodes in found.values()], preference)
    better = advantages(
        rewards, weights(preference), min_std=settings.min_group_std, clip=settings.advantage_clip,
        normalise=settings.normalise,
    )  # fmt: skip
    print(f"advantages on the first question: {dict(zip(found, (round(a, 2) for a in better), strict=True))}")


if __name__ == "__main__":
    main()
