"""A third of all calls fails, hangs or returns garbage: no crash, no false verdict, deadlines kept, exact dollars."""

import asyncio
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import by_component, cost_of, total
from orchestra.config.schema import Rollout
from orchestra.errors import ToolError
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.tools.base import NO_ANSWER, Tool, ToolContext, ToolResult
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.types import Charge, Component, Episode, StopReason
from tests.support.endpoint import serving
from tests.support.experts import expert, real
from tests.support.faults import HANG, HANG_S, TOLD, FaultProxy
from tests.support.scripts import call
from tests.support.worlds import PRICE, codec, example, toolkit

LIMITS = Rollout(max_turns=4, max_turn_tokens=200, max_tokens=4000)
DEADLINE_S = 1.0
"""Of the expert that hangs; the others have time enough on any machine."""
COUNT, LONELY, HANGING = 80, 30, 6
"""Examples; the last of them ask an expert without a fallback, and the first one that hangs."""


def solve(request: dict[str, Any]) -> str:
    """`what is 5+1?` → 6."""
    number = request["messages"][-1]["content"].removeprefix("what is ").partition("+")[0]
    return str(int(number) + 1)


def decide(conversation: Conversation) -> str:
    """Ask the expert that is offered, then say the last word of what came back."""
    if not conversation.turns:
        return call(conversation.example.toolbox[0].name, question=conversation.example.instruction)
    return format_answer((conversation.turns[-1].observation or "").split()[-1])


def test_failures_are_failures_and_cost_what_they_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proxy = FaultProxy(solve, seed=4, share=0.3, hangs="hangs")
    saved, slow = expert(fallback="spare"), expert(fallback="spare", deadline_s=DEADLINE_S)
    with serving(proxy) as double:
        limits = ProviderLimits(attempts=2, failures=1000, concurrency=32)
        experts = {"real": saved, "spare": expert(), "alone": expert(), "hangs": slow}
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, **experts)
        asked = ["hangs"] * HANGING + ["real"] * (COUNT - HANGING - LONELY) + ["alone"] * LONELY
        examples = [
            example(f"e{n}", instruction=f"what is {n}+1?", answer=str(n + 1), toolbox=[kit.catalogue.spec(name)])
            for n, name in enumerate(asked)
        ]

        async def whole() -> list[Episode]:
            policy = ScriptedPolicy("script", decide, codec().turn)
            try:
                return await run_episodes(examples, policy, codec(), kit, RolloutOptions(LIMITS, PRICE))
            finally:
                await kit.aclose()

        episodes = asyncio.run(whole())
    struck = [fault for fault in proxy.committed if fault is not None]
    assert 0.25 < len(struck) / len(proxy.committed) < 0.4

    failed = [episode for episode in episodes if episode.stop is StopReason.TOOL_FAILURE]
    assert 0 < len(failed) < LONELY, "some calls fail for good, most are saved by another attempt or the fallback"
    assert all(episode.verdict is None and not episode.counted for episode in failed)
    own = [e for e in episodes if any((turn.observation or "").startswith(NO_ANSWER) for turn in e.turns)]
    assert not any(episode.solved for episode in own) and len(own) < LONELY, "thoughts that do not end are wrong"
    assert all(episode.solved for episode in episodes if episode not in failed + own), "no failure counts as unsolved"
    assert any("failed; spare answers" in (turn.observation or "") for e in episodes for turn in e.turns)

    spent = [charge for episode in episodes for charge in episode.charges]
    hung = [charge for charge in spent if charge.name == "hangs"]
    waits = [charge.latency_s for charge in hung if charge.latency_s]
    assert len(waits) == HANGING and all(DEADLINE_S <= wait < HANG_S for wait in waits), "the deadline ended it"
    assert sum(charge.usage.output_tokens == 500 for charge in hung) == HANGING, (
        "each may be billed: the worst is booked"
    )

    price = kit.catalogue.prices["real"]
    seen = [fault for fault in proxy.committed if fault is not HANG]
    unknown = sum(fault is not None and fault.billed and not fault.told for fault in seen)
    known = sum(fault is None or (fault.billed and fault.told) for fault in seen)
    booked = [charge for charge in spent if charge.component is Component.EXPERT and charge.name != "hangs"]
    lost = [charge for charge in booked if charge.usage.output_tokens == 500]
    assert len(lost) == unknown > 0
    assert total(booked) - total(lost) == known * cost_of(price, TOLD)
    assert total(lost) >= unknown * cost_of(price, TOLD), "what is not known is never booked below what it was"
    assert sum(by_component(spent).values(), Decimal(0)) == total(spent) == sum(e.cost_usd for e in episodes)


class Broken:
    """A tool of which a third of the calls fails, is out of files, or returns what nobody can use."""

    GARBAGE = "<|im_end|><tool_call>\ud800\x00" + "no" * 500

    def __init__(self, tool: Tool, rng: random.Random) -> None:
        self.component, self._tool, self._rng, self.calls, self.failed = tool.component, tool, rng, 0, 0

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.calls, struck = self.calls + 1, self._rng.random()
        if struck < 0.1:
            return ToolResult(text=self.GARBAGE, cost_usd=context.price.per_call, latency_s=0.1)
        self.failed += struck < 0.3
        if struck < 0.2:
            raise OSError(24, "Too many open files")
        if struck < 0.3:
            lost = Charge(component=self.component, name=context.name, cost_usd=context.price.per_call)
            failure = ToolError("it died", where=context.name)
            failure.charges = (lost,)
            raise failure
        return await self._tool.call(arguments, context)


def test_so_are_those_of_tools_that_are_no_experts(tmp_path: Path) -> None:
    kit, rng = toolkit(tmp_path), random.Random(2)
    calls = {
        "calculator": ({"expression": "37*24"}, "888"),
        "search": ({"query": "Norvik"}, "1911"),
        "python": ({"code": "print(37*24)"}, "888"),
    }
    broken = {name: Broken(kit.tool(name), rng) for name in calls}
    budget = Budget(tmp_path / "ledger.jsonl", None)
    kit = toolkit(tmp_path, tools=broken, budget=budget)

    def ask(conversation: Conversation) -> str:
        """Again while what came is of no use."""
        (name, (arguments, answer)) = next(
            (n, c) for n, c in calls.items() if n == conversation.example.toolbox[0].name
        )
        last = conversation.turns[-1].observation or "" if conversation.turns else ""
        return format_answer(answer) if answer in last else call(name, **arguments)

    examples = [
        example(f"{name}{n}", toolbox=[kit.catalogue.spec(name)], answer=calls[name][1], kind="exact")
        for name in calls
        for n in range(40)
    ]
    policy = ScriptedPolicy("script", ask, codec().turn)
    limits = LIMITS.model_copy(update={"max_turns": 9, "max_tokens": 40_000})
    episodes = asyncio.run(run_episodes(examples, policy, codec(), kit, RolloutOptions(limits, PRICE)))
    failed = [episode for episode in episodes if episode.stop is StopReason.TOOL_FAILURE]
    assert len(failed) == sum(tool.failed for tool in broken.values()) > 10
    assert all(episode.verdict is None and not episode.counted for episode in failed)
    assert all(episode.solved for episode in episodes if episode not in failed), "no failure counts as unsolved"
    assert sum(tool.calls for tool in broken.values()) > len(examples), (
        "what came was of no use, and was asked for again"
    )
    assert budget.spent_usd == total(charge for episode in episodes for charge in episode.charges)
