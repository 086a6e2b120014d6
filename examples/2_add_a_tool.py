"""Adds a tool: one class, and one entry of the catalogue with its price; a scripted policy calls it."""

import asyncio
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from orchestra import Codec, RolloutOptions, ScriptedPolicy, Toolkit, load_params, question, run_episodes
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.experts.simulated import AnswerBook
from orchestra.types import Component, ToolCall

ROOT = Path(__file__).parents[1]
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"km": {"type": "number", "minimum": 0}},
    "required": ["km"],
    "additionalProperties": False,
}


class Miles:
    """Converts kilometres to miles."""

    component = Component.SANDBOX

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        km = float(str(arguments["km"]))
        return ToolResult(text=f"{km / 1.609344:.2f}", cost_usd=context.price.per_call, latency_s=context.latency_s)


def decide(conversation: Conversation) -> str:
    """Call the tool, then answer with what it said."""
    if not conversation.turns:
        return format_call(ToolCall(name="miles", arguments={"km": 42.195}))
    return format_answer(conversation.turns[-1].observation or "")


def main() -> None:
    params = load_params(ROOT / "params.yaml")
    shipped = Toolkit.from_params(params, ROOT).catalogue
    entry = shipped.entry("calculator").model_copy(update={"description": "kilometres to miles", "parameters": SCHEMA})
    entries, prices = shipped.entries | {"miles": entry}, shipped.prices | {"miles": shipped.prices["calculator"]}
    catalogue = replace(shipped, entries=entries, prices=prices)
    toolkit = Toolkit(catalogue, {}, ROOT, book=AnswerBook(), tools={"miles": Miles()})
    item = question("how many miles is a marathon?", toolkit, tools=["miles"], answer="26.22")
    codec, options = Codec.load(ROOT / "models/base/embedded"), RolloutOptions(params.rollout, catalogue.policy_price)
    policy = ScriptedPolicy("scripted", decide, codec.turn)
    (episode,) = asyncio.run(run_episodes([item], policy, codec, toolkit, options))
    print(f"answer {episode.answer}, solved: {episode.solved}, ${episode.cost_usd:f}")
    print("no expert was asked; experts are simulated unless the catalogue names an endpoint")


if __name__ == "__main__":
    main()
